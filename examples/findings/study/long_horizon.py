"""Finding 6 has no run of its own: it is read from the runs of examples/long_horizon, wherever those lie.

RUNS/unlimited-SEED, RUNS/prompted-SEED and RUNS/self-SEED, as examples/long_horizon/long_horizon.py makes them
"""

from __future__ import annotations

import sys
from pathlib import Path

from composer_core.statistics import mean
from study.findings import FINDINGS
from study.reading import Table, commit, date, machine, seconds
from study.recipes import HERE
from study.results import Result

EXAMPLE = HERE.parent / "long_horizon"
COMMAND = "python examples/long_horizon/long_horizon.py"


def missing(runs: Path, seed: int) -> list[Path]:
    """Run folders that are not there, or not finished."""
    folders = [runs / f"{arm}-{seed}" for arm in FINDINGS["summary"].arms]
    return [folder for folder in folders if not (folder / "summary.json").exists()]


def read(arm: str, runs: Path, seed: int) -> Result:
    """What an arm of that example found after its reinforcement learning."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        from comparison.figures import read as read_run
    finally:
        sys.path.remove(str(EXAMPLE))
    folder = runs / f"{arm}-{seed}"
    found = read_run(folder, "after")
    table: Table = {
        task: {"attempts": float(len(row)), "bugs": 0.0, "solved": round(mean(row), 4), "best": float(max(row))}
        for task, row in sorted(found.rows.items())
        if row
    }
    return Result(
        finding="summary",
        arm=arm,
        seed=seed,
        revision=commit(folder),
        machine=machine(folder),
        command=COMMAND,
        date=date(folder),
        seconds={arm: seconds(folder)},
        after=table,
        figures={"summary_tokens": found.summary_tokens, "summaries": found.summaries, "kept": found.kept},
    )
