"""Whether the main job comes out the same with another component: shown not to be worse.

The stages of examples/quickstart/run.toml before reinforcement learning run once for each seed, without the component;
then reinforcement learning goes on from that checkpoint, on the same seed and tasks, with it and without it. Tasks,
attempts and noise of the evaluation after training are the same, so each task's solve rate (over seeds and attempts) in
one arm is paired with that in the other. Non-inferior means a mean paired difference of at least -0.05 whose 95 %
bootstrap interval, clustered by task, is at most 0.05 to either side. Finished runs are read and not repeated,
interrupted ones resumed.

With --whole the component is there from the first stage on, and what it is compared with are the runs of
`benchmarks/quickstart.py`. No weights are shared then, so the arms differ by the spread of seeds as well.

    python benchmarks/non_inferior.py mxfp8 --seeds 1 2 3
    python benchmarks/non_inferior.py mxfp8 --seeds 1 2 3 --whole
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen
from results import ROOT, Results, Row, parser

from composer_core import statistics

RUN = "examples/quickstart/run.toml"
ARMS: Mapping[str, tuple[str, Sequence[str]]] = {
    "base": ("", ()),
    "mxfp8": ("mxfp8", ('model.experts.kernel="mxfp8/experts"',)),
    "ray": ("ray", ('executor.use="ray/ray"',)),
    "docker": ("docker", ('sandbox.use="docker/docker"',)),
}
"""Plugins beside the run file's own, and what is set."""
BOUND = 0.05
TITLE = "The main job with another component, beside the main job without"


def inline(value: Any) -> str:
    """A value of TOML on one line, for --set."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    return json.dumps(value)


def train(path: Path, plugins: str, settings: Sequence[str]) -> Path:
    """The finished run folder."""
    if (path / "summary.json").exists():
        return path
    loaded = ["--plugins", plugins] if plugins else []
    sets = [word for text in settings for word in ("--set", text)]
    command = [*loaded, "train", RUN, "--run-dir", str(path), "--or-resume", *sets]
    subprocess.run([sys.executable, "-m", "composer_core.cli", *command], cwd=ROOT, check=True)
    return path


def part(file: Mapping[str, Any], stages: Sequence[Any], evaluations: Sequence[Any]) -> list[str]:
    """Settings that leave these stages and evaluations of a run file, and the samplers that they name."""
    named = {row.get("sampler") for row in (*stages, *evaluations)}
    samplers = {name: table for name, table in file["samplers"].items() if name in named}
    chosen = {"stages": list(stages), "evaluations": list(evaluations), "samplers": samplers}
    return [f"{name}={inline(value)}" for name, value in chosen.items()]


@frozen
class Job:
    """The run file, and where and how its runs are made."""

    folder: Path
    settings: Sequence[str] = ()
    """Set in every run that is made, but for those that are `benchmarks/quickstart.py`'s."""
    file: Mapping[str, Any] = field(factory=lambda: tomllib.loads((ROOT / RUN).read_text(encoding="utf-8")))

    @property
    def compared(self) -> list[Any]:
        """The one evaluation that arms are compared by."""
        return [{**row, "when": ["after"]} for row in self.file["evaluations"] if row["name"] == "main"]

    def learning(self, arm: str, seed: int) -> Path:
        """The finished run of reinforcement learning alone, from the seed's checkpoint, which is made beside it."""
        learning = [stage for stage in self.file["stages"] if stage["kind"] == "rl"]
        before = [stage for stage in self.file["stages"] if stage["kind"] != "rl"]
        start = self._train(f"checkpoint-seed{seed}", "", seed, part(self.file, before, []))
        model = {"use": "hf/causal-lm", "path": str((start / "model").resolve())}
        chosen = [f"model={inline(model)}", *part(self.file, learning, self.compared)]
        return self._arm(f"{arm}-seed{seed}", arm, seed, chosen)

    def whole(self, arm: str, seed: int) -> Path:
        """The finished run of every stage; without a component it is that of `benchmarks/quickstart.py`."""
        if arm == "base":
            return train(self.folder / f"quickstart-seed{seed}", "", [f"seed={seed}"])
        stages = [{**stage, "evaluate_every": 0} if stage["kind"] == "rl" else stage for stage in self.file["stages"]]
        return self._arm(f"{arm}-whole-seed{seed}", arm, seed, part(self.file, stages, self.compared))

    def _arm(self, name: str, arm: str, seed: int, chosen: Sequence[str]) -> Path:
        plugins, settings = ARMS[arm]
        return self._train(name, plugins, seed, [*chosen, *settings])

    def _train(self, name: str, plugins: str, seed: int, settings: Sequence[str]) -> Path:
        return train(self.folder / name, plugins, [f"seed={seed}", *self.settings, *settings])


def rows_of(paths: Sequence[Path]) -> dict[str, list[int]]:
    """Outcomes of the main evaluation after training by task, over all seeds; void attempts are no rows."""
    found: dict[str, list[int]] = {}
    for path in paths:
        evaluation = json.loads((path / "evaluations/after-main.json").read_text(encoding="utf-8"))
        for task, outcomes in evaluation["rows"].items():
            found.setdefault(task, []).extend(outcomes)
    return found


def summary(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    return found


def compare(arm: str, base: Sequence[Path], other: Sequence[Path]) -> tuple[list[Row], str]:
    """The rows of an arm, and what each seed alone would say."""
    ours, without = rows_of(other), rows_of(base)
    mean, low, high = statistics.paired_interval(without, ours)
    half_width = max(high - mean, mean - low)
    attempts = f"{len(ours)} tasks x {len(next(iter(ours.values())))} attempts"
    void = max(float(summary(path)["void_share"]) for path in other)
    rows = [
        Row(f"{arm}: solve rate after, {attempts}", statistics.solve_rate(ours), "of attempts"),
        Row("the same without it", statistics.solve_rate(without), "of attempts"),
        Row(f"{arm}: mean paired difference", mean, "of attempts", target=f"ours >= -{BOUND}"),
        Row(f"{arm}: half-width of its 95 % interval", half_width, "of attempts", target=f"ours <= {BOUND}"),
        Row(f"{arm}: void episodes", void, "of episodes"),
    ]
    pairs = zip(base, other, strict=True)
    each = [statistics.paired_interval(rows_of([one]), rows_of([two]))[0] for one, two in pairs]
    return rows, f"{arm}: difference of each seed {', '.join(f'{value:+.3f}' for value in each)}"


def main() -> int:
    options = parser(__doc__)
    options.add_argument("arms", nargs="+", choices=[arm for arm in ARMS if arm != "base"])
    options.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options.add_argument("--runs", type=Path, default=ROOT / "runs", help="folder of the run folders")
    options.add_argument("--whole", action="store_true", help="with the component in every stage, from random weights")
    options.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="set in every run made here")
    chosen = options.parse_args()
    job = Job(chosen.runs, chosen.set)
    made = job.whole if chosen.whole else job.learning
    results = Results(f"non_inferior{'_whole' * chosen.whole}", TITLE + ", every stage of it" * chosen.whole)
    base = [made("base", seed) for seed in chosen.seeds]
    for arm in chosen.arms:
        rows, remark = compare(arm, base, [made(arm, seed) for seed in chosen.seeds])
        results.rows += rows
        results.remarks.append(remark)
    return results.finish(chosen)


if __name__ == "__main__":
    sys.exit(main())
