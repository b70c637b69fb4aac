"""One small JSON for each (finding, arm, seed): what was measured, of which revision, where, how, and in what time.

They are committed, so the page can be made of seeds that were run at different times and on different machines.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from attrs import asdict, field, frozen

from study import reading
from study.findings import FINDINGS
from study.recipes import HERE
from study.running import Runs

FOLDER = HERE / "results"


class ResultError(Exception):
    """A file among the results is none."""


@frozen
class Result:
    """What one arm of a finding found with one seed."""

    finding: str
    arm: str
    seed: int
    revision: str
    """Of the repository when its runs began, marked with "+" where it had changes; empty outside of one."""
    machine: str
    """Processor, its cores, Python."""
    command: str
    date: str
    """On which the arm's own run ended."""
    seconds: dict[str, float]
    """Run -> wall clock; runs that findings share stand in each."""
    before: reading.Table = field(factory=dict)
    """The evaluation before reinforcement learning, if the arm has one."""
    after: reading.Table = field(factory=dict)
    groups: list[list[int]] = field(factory=list)
    """[step, tokens before it, broken files, attempts that solved it, attempts] of each group trained on."""
    figures: dict[str, float] = field(factory=dict)
    """Whatever is one number for a run."""


def path(finding: str, arm: str, seed: int, folder: Path = FOLDER) -> Path:
    return folder / f"{finding}-{arm}-{seed}.json"


def load(folder: Path = FOLDER) -> list[Result]:
    """Every result of a folder, in order of arms and seeds.

    Raises:
        ResultError: a file is no result, or of no finding's arm.
    """
    found = []
    for file in sorted(folder.glob("*.json")):
        try:
            one = Result(**json.loads(file.read_text(encoding="utf-8")))
        except (TypeError, ValueError) as error:
            raise ResultError(f"{file} is no result: {error}; fix: move it away, and it is measured again") from error
        if one.finding not in FINDINGS or one.arm not in FINDINGS[one.finding].arms:
            raise ResultError(f"{file} is of no finding that there is; fix: move it away")
        found.append(one)
    return sorted(found, key=lambda one: (one.finding, [*FINDINGS[one.finding].arms].index(one.arm), one.seed))


def save(result: Result, folder: Path = FOLDER) -> Path:
    """Write it, one task a line."""
    folder.mkdir(parents=True, exist_ok=True)
    target = path(result.finding, result.arm, result.seed, folder)
    rows = []
    for name, value in asdict(result).items():
        if isinstance(value, dict) and value and all(isinstance(one, dict) for one in value.values()):
            lines = [f"  {json.dumps(key)}: {json.dumps(one)}" for key, one in value.items()]
            rows.append(f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}")
        else:
            rows.append(f"{json.dumps(name)}: {json.dumps(value)}")
    part = target.with_suffix(".part")
    part.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    return part.replace(target)  # whole or not there: what is there is not measured again


def measure(finding: str, arm: str, seed: int, runs: Runs, command: str) -> Result:
    """Read the runs of an arm, which are finished."""
    main, *times = FINDINGS[finding].arms[arm]
    folders = runs.folders(main, seed)
    after = reading.evaluation(folders[-1], "after")
    chains = [*folders]
    for name in times:
        chains.append(runs.folders(name, seed)[-1])
        for task, wall_s in reading.alone(chains[-1]).items():
            after.setdefault(task, {})["alone_s"] = wall_s
    return Result(
        finding=finding,
        arm=arm,
        seed=seed,
        revision=runs.revision(main, seed),
        machine=machine(),
        command=command,
        date=reading.date(folders[-1]),
        seconds={folder.name.rpartition("-")[0]: reading.seconds(folder) for folder in chains},
        before=reading.evaluation(folders[-1], "before"),
        after=after,
        groups=[list(group) for group in reading.groups(folders[-1])] if finding == "scaling" else [],
        figures=reading.figures(folders[-1]) | _loss(finding, folders),
    )


def _loss(finding: str, folders: Sequence[Path]) -> dict[str, float]:
    """What the imitation before has learned, where the finding asks for it."""
    return {"imitation_nll": reading.loss(folders[-2] / "model", folders[-1])} if finding == "pretraining" else {}


def machine() -> str:
    """What the runs ran on."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cpu = names[0] if names else platform.machine()
    return f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}"
