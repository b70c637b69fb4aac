"""A full step of reinforcement learning beside TRL 1.16.0's GRPOTrainer: rollouts with tools, rewards, one update.

    python benchmarks/rl_step.py [--repeats 6] [--threads 2] [--tool-ms 0,20]

Both sides load one model folder (the `tiny-moe` preset with random weights, and its tokenizer) and play the script of
`peers/rl_step/workload.py`: the same tasks, group sizes, turns, sampled ids of each turn and results. Ids are really
sampled, by forward passes at temperature 1, and trained with the log-probabilities of forward passes; only a turn's
length and the call it made are scripted, because random weights never write a call. Each side parses what was sampled
before the scripted call takes its place. Then one update: dr_grpo (rewards minus the group's mean, loss summed over
sampled ids and divided by one constant), no KL, fp32, AdamW and clipping with the same settings; both gradient norms
are told. Sides run in processes of their own, on the same cores, with the same number of threads, in turns; the first
step of each process is warm-up. The peer is given four batch settings, of which the best counts: rows x parts of the
update.

Ours is the `train` of composer-run over `peers/rl_step/run.toml`: ledger, loop, in-memory sandboxes, traces and events
on disk, weights exported, published and swapped in every step. It is measured twice: `max_staleness = 0` waits for
every episode before it trains, as the peer does, and this is the ratio that was promised; `max_staleness = 1` rolls out
while it trains, with one thread for each of the two, which the peer offers on GPU servers only.

Not equal. A turn of the peer ends with a forced closing tag, which counts as sampled and is trained; a turn of ours
ends by length and the renderer appends the tag: one id of context more. The objective of ours weighs ids by their
sampler's log-probabilities; the peer's `generate` gives none, and it assumes they are its own. The peer keeps no
traces, runs no sandbox and takes no patch; its rollouts and update share one copy of the weights, where ours writes and
loads a file in every step. A tool that waits is a coroutine with us and a plain method with the peer, whose loop calls
the episodes' tools one after the other either way.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from results import ROOT, Results, Row, parser, versions_of
from workers import environment

SIDES = ROOT / "benchmarks/peers/rl_step"
PEER = "trl==1.16.0"
OURS, OVERLAPPED = "composer", "composer, rollouts beside the update"
TARGETS = {0.0: 2.0, 20.0: 3.0}
"""Cost of the tool in milliseconds -> least ratio of seconds per step."""
COMPLETION_TOKENS = 512
"""The peer's longest completion, and the constant that both sides divide the summed loss by."""
TIMEOUT_S = 900
"""Of one side's process."""


class Sides:
    """Runs one side's script on one job, in a process of its own."""

    def __init__(self, options: argparse.Namespace, peer: Path | None, folder: Path) -> None:
        self._options, self._peer, self._folder = options, peer, folder
        self._environment = {
            **os.environ,
            **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(options.threads)),
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "TRL_EXPERIMENTAL_SILENCE": "1",
            "PYTHONWARNINGS": "ignore",
        }

    def prepare(self) -> None:
        """The model folder; with the peer's own template, as the peer reads calls only under templates it knows."""
        template = self._call(self._peer, "trl_side.py", "template", {}) if self._peer else {"template": None}
        self._call(Path(sys.executable), "composer_side.py", "prepare", self._job(0.0, 1) | template)

    def run(self, side: str, tool_ms: float, steps: int) -> dict[str, Any]:
        """The figures of `steps` steps, a list for each."""
        if side == OURS:
            job = self._job(tool_ms, steps) | {"max_staleness": 0}
            return self._call(Path(sys.executable), "composer_side.py", "run", job)
        if side == OVERLAPPED:  # the trainer leaves a thread to the sampler; beside the last step nothing rolls out
            threads = max(1, self._options.threads - 1)
            job = self._job(tool_ms, steps + 1) | {"max_staleness": 1, "threads": threads}
            found = self._call(Path(sys.executable), "composer_side.py", "run", job)
            return {key: value[:-1] if isinstance(value, list) else value for key, value in found.items()}
        rows, parts = (int(number) for number in side.rsplit(maxsplit=1)[-1].split("x"))
        job = self._job(tool_ms, steps) | {"rows": rows, "parts": parts, "generation": rows * parts}
        return self._call(self._peer, "trl_side.py", "run", job)

    def _job(self, tool_ms: float, steps: int) -> dict[str, Any]:
        return {
            "model": str(self._folder / "model"),
            "workload": {"groups": self._options.groups, "group_size": self._options.group_size},
            "tool_ms": tool_ms,
            "steps": steps,
            "threads": self._options.threads,
            "learning_rate": 1e-5,
            "completion_tokens": COMPLETION_TOKENS,
            "cache": str(self._folder / "peer"),
            "overrides": self._options.set,
        }

    def _call(self, python: Path | None, script: str, verb: str, job: dict[str, Any]) -> dict[str, Any]:
        path = self._folder / "job.json"
        path.write_text(json.dumps(job), encoding="utf-8")
        done = subprocess.run(
            [str(python), SIDES / script, verb, path],
            env=self._environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        if done.returncode:
            raise SystemExit(f"{script} {verb} failed:\n{done.stderr[-4000:]}")
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1]) if verb != "prepare" else {}
        return found


def measure(sides: Sides, names: list[str], tool_ms: float, repeats: int, rounds: int) -> dict[str, dict[str, Any]]:
    """All sides at one cost of the tool, in turns; the first step of each process is left out."""
    steps = 1 + -(-repeats // rounds)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names:
            print(f"tools at {tool_ms:g} ms, round {number + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
            runs[name].append(sides.run(name, tool_ms, steps))
    waiting = {name: found for name, found in runs.items() if name != OVERLAPPED}  # groups of that run may trade steps
    sampled = {name: {count for run in found for count in run["sampled_tokens"]} for name, found in waiting.items()}
    if len(set.union(*sampled.values())) != 1:
        raise SystemExit(f"the sides did not sample equally many ids a step: {sampled}")
    return {name: pooled(found) for name, found in runs.items()}


def pooled(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the steps of all rounds, without each process's first."""
    times = {key: [value for run in runs for value in run[key][1:]] for key in ("step_s", "rollout_s", "update_s")}
    return {
        **{key: statistics.median(values) for key, values in times.items()},
        "spread": (min(times["step_s"]), max(times["step_s"])),
        "sampled_tokens": statistics.mean(value for run in runs for value in run["sampled_tokens"][1:]),
        "peak_rss_bytes": max(run["peak_rss_bytes"] for run in runs),
        "grad_norm": runs[0]["grad_norm"][0],
        "an_episode": runs[0]["an_episode"],
    }


def rows_of(found: Mapping[str, dict[str, Any]], tool_ms: float) -> Iterator[Row]:
    """Ours, and ours with rollouts beside the update, each beside the peer's best setting."""
    peers = {name: side["step_s"] for name, side in found.items() if name.startswith(PEER)}
    best = min(peers, key=lambda name: peers[name]) if peers else ""
    what = f"a step, tools at {tool_ms:g} ms"
    target = f"ratio >= {TARGETS[tool_ms]:g}" if tool_ms in TARGETS else ""
    yield Row(what, found[OURS]["step_s"], "s", peers.get(best), best, target)
    yield Row(f"{what}, rollouts beside the update", found[OVERLAPPED]["step_s"], "s", peers.get(best), best)


def told(name: str, side: Mapping[str, Any], tool_ms: float) -> str:
    low, high = side["spread"]
    rate = side["sampled_tokens"] / side["step_s"]
    return (
        f"tools at {tool_ms:g} ms, {name}: {side['step_s']:.2f} s a step ({low:.2f} to {high:.2f}), rollouts "
        f"{side['rollout_s']:.2f}, update {side['update_s']:.2f}; {side['sampled_tokens']:,.0f} sampled ids, "
        f"{rate:,.0f} a second; {side['peak_rss_bytes'] / 1e6:,.0f} MB"
    )


def alike(found: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    """What shows that the sides did the same work."""
    for name, side in found.items():
        one = ", ".join(f"{value:.2f} {key.replace('_', ' ')}" for key, value in side["an_episode"].items())
        yield f"an episode of {name}: {one}; gradient norm of the first step {side['grad_norm']:.4f}"


def peer_python(options: argparse.Namespace) -> Path | None:
    """The peer computes with this project's versions of torch and transformers."""
    if options.no_peer:
        return None
    pins = [f"{name}=={version.partition('+')[0]}" for name, version in versions_of("torch", "transformers").items()]
    return environment("trl", PEER, *pins)


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--repeats", type=int, default=6, help="measured steps of each side")
    arguments.add_argument("--rounds", type=int, default=2, help="processes that the repeats of a side are spread over")
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--tool-ms", default="0,20", help="costs of the tool, comma-separated")
    arguments.add_argument("--groups", type=int, default=8)
    arguments.add_argument("--group-size", type=int, default=8)
    arguments.add_argument("--settings", default="64x1,16x4,8x8,4x16", help="the peer's: rows of a batch x parts")
    arguments.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of our run file")
    options = arguments.parse_args()
    if options.quick:
        options.groups, options.group_size, options.tool_ms = 1, 2, "0"
        options.repeats, options.rounds, options.settings = 1, 1, "2x1"
    peer = peer_python(options)
    names = [OURS, OVERLAPPED, *(f"{PEER} {setting}" for setting in options.settings.split(",") if peer)]
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])  # the sides inherit it
    result = Results("rl_step", "A full step of reinforcement learning", versions=versions_of("torch", "transformers"))
    with tempfile.TemporaryDirectory() as folder:
        sides = Sides(options, peer, Path(folder))
        sides.prepare()
        for tool_ms in map(float, options.tool_ms.split(",")):
            found = measure(sides, names, tool_ms, options.repeats, options.rounds)
            result.rows += rows_of(found, tool_ms)
            result.remarks += [told(name, side, tool_ms) for name, side in found.items()]
    result.remarks += alike(found)
    return result.finish(options)


if __name__ == "__main__":
    sys.exit(main())
