"""One small JSON for each (finding, arm, seed): what was measured, of which revision, where, how, and in what time.

They are committed, so the page can be made of seeds that were run at different times and on different machines.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from attrs import asdict, field, frozen
from cattrs import BaseValidationError, Converter, transform_error

from composer_core.errors import ConfigError
from study import reading
from study.findings import FINDINGS
from study.recipes import HERE, chain
from study.running import Runs

FOLDER = HERE / "results"
CONVERTER = Converter(forbid_extra_keys=True)
AGAIN = "move it away, and findings.py measures it again"
OTHERWISE = "give the same --set as when they were measured; or move them away, and findings.py measures them again"


@frozen
class Result:
    """What one arm of a finding found with one seed."""

    finding: str
    arm: str
    seed: int
    revision: str
    """Of the repository when its runs began, marked with "+" where it had changes; empty outside of one."""
    machine: str
    """Processor and Python that the arm's own run had."""
    command: str
    date: str
    """On which the arm's own run ended."""
    seconds: dict[str, float]
    """Run -> wall clock, of all in `runs_of`; runs that findings share stand in each."""
    recipe: str = ""
    """Digest of what these runs were made of (`recipes.digest`)."""
    before: reading.Table = field(factory=dict)
    """The evaluation before reinforcement learning, if the arm has one."""
    after: reading.Table = field(factory=dict)
    groups: list[list[int]] = field(factory=list)
    """[step, tokens before it, broken files, attempts that solved it, attempts] of each group trained on."""
    figures: dict[str, float] = field(factory=dict)
    """Whatever is one number for a run."""


def path(finding: str, arm: str, seed: int, folder: Path = FOLDER) -> Path:
    return folder / f"{finding}-{arm}-{seed}.json"


def load(folder: Path = FOLDER, runs: Runs | None = None) -> list[Result]:
    """Every result of a folder, in order of arms and seeds; `runs` are those that they would be read from now.

    Raises:
        ConfigError: a file is no result, is of no finding's arm or of another than its name says, or files were read
            from other runs than their arms are read from now, or from runs of other settings.
    """
    now, found, stale = runs or Runs(folder), [], []
    for file in sorted(folder.glob("*.json")):
        try:
            one = CONVERTER.structure(json.loads(file.read_text(encoding="utf-8")), Result)
        except (BaseValidationError, ValueError) as error:
            told = "; ".join(transform_error(error)) if isinstance(error, BaseValidationError) else str(error)
            raise ConfigError(f"is no result: {told}", where=str(file), fix=AGAIN) from error
        if one.finding not in FINDINGS or one.arm not in FINDINGS[one.finding].arms:
            raise ConfigError("is of no finding that there is", where=str(file), fix="move it away")
        if file != (named := path(one.finding, one.arm, one.seed, folder)):
            raise ConfigError("is of another arm or seed than its name says", where=str(file), expected=named.name)
        if [*one.seconds] != (wanted := runs_of(one.finding, one.arm)):
            stale.append(f"{file.name} (of the runs {', '.join(one.seconds)}; now {', '.join(wanted)})")
        elif one.recipe != now.expected(wanted):
            stale.append(f"{file.name} (of other settings)")
        found.append(one)
    if stale:
        told = "; ".join([*stale[:3], *([f"and {len(stale) - 3} more"] if stale[3:] else [])])
        raise ConfigError("results are not of what is run now", where=str(folder), found=told, fix=OTHERWISE)
    return sorted(found, key=lambda one: (one.finding, [*FINDINGS[one.finding].arms].index(one.arm), one.seed))


def runs_of(finding: str, arm: str) -> list[str]:
    """The runs that an arm is read from, with what they go on from; finding 6 names its arm."""
    main, *times = FINDINGS[finding].arms[arm] or (None,)
    return [*(chain(main) if main else [arm]), *times]


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
    timed = [runs.folders(name, seed)[-1] for name in times]
    for task, wall_s in reading.alone(timed).items():
        after.setdefault(task, {})["alone_s"] = wall_s
    return Result(
        finding=finding,
        arm=arm,
        seed=seed,
        revision=runs.revision(runs_of(finding, arm), seed),
        machine=reading.machine(folders[-1]),
        command=command,
        date=reading.date(folders[-1]),
        seconds={folder.name.rpartition("-")[0]: reading.seconds(folder) for folder in (*folders, *timed)},
        recipe=runs.digest(runs_of(finding, arm), seed),
        before=reading.evaluation(folders[-1], "before"),
        after=after,
        groups=[list(group) for group in reading.groups(folders[-1])] if finding == "scaling" else [],
        figures=reading.figures(folders[-1]) | _loss(finding, folders) | reading.voids(folders[-1]),
    )


def _loss(finding: str, folders: Sequence[Path]) -> dict[str, float]:
    """What the imitation before has learned, where the finding asks for it."""
    return {"imitation_nll": reading.loss(folders[-2] / "model", folders[-1])} if finding == "pretraining" else {}
