"""Asks seven published findings of a small policy, and writes docs/findings.md.

What has a result is not measured again, finished runs are read and interrupted ones resumed, so the command can be
given again after any interruption. A result is one JSON in examples/findings/results.

    python examples/findings/findings.py                    # every finding, three seeds
    python examples/findings/findings.py effort --seeds 1   # one finding, one seed
    python examples/findings/findings.py effort --quick     # in miniature: shows that it works, measures nothing
    python examples/findings/findings.py --page             # the page of the results that there are
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from study import long_horizon, results
from study.findings import FINDINGS
from study.page import arms_of, figure, page
from study.recipes import HERE
from study.running import FailedRunError, OtherRunError, Runs

ROOT = HERE.parent.parent


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if not metadata.entry_points(group="composer.plugins", name="chores"):
        print("the task set is not installed; fix: pip install ./examples/findings", file=sys.stderr)
        return 2
    try:
        if options.quick:
            return quick(options)
        if not options.page:
            everything(options)
    except OtherRunError as error:
        print(error, file=sys.stderr)
        return 2
    except FailedRunError as error:
        print(error, file=sys.stderr)
        return 1
    write(results.load(options.results), options.out)
    return 0


def everything(options: argparse.Namespace) -> None:
    """Every finding that has no result, seed by seed: its runs side by side, then those whose times count, alone."""
    runs = Runs(options.runs, settings=options.set, everywhere=["threads=1"] if options.jobs > 1 else [])
    for seed in options.seeds:
        arms = [(key, arm) for key in options.findings or FINDINGS for arm in missing(key, seed, options)]
        runs.make_all([run for key, arm in arms for run in FINDINGS[key].arms[arm][:1]], seed, options.jobs)
        for key, arm in arms:
            one(key, arm, seed, runs, options)


def missing(key: str, seed: int, options: argparse.Namespace) -> list[str]:
    """The arms of a finding that have no result with this seed and can have one."""
    arms = [arm for arm in FINDINGS[key].arms if not results.path(key, arm, seed, options.results).exists()]
    if key == "summary" and arms and (absent := long_horizon.missing(options.long_horizon, seed)):
        print(f"summary, seed {seed}: no finished run in {absent[0]}; first: {long_horizon.COMMAND}", file=sys.stderr)
        return []
    return arms


def one(key: str, arm: str, seed: int, runs: Runs, options: argparse.Namespace) -> None:
    """Measure an arm, and make what is still missing for it."""
    if key == "summary":
        found = long_horizon.read(arm, options.long_horizon, seed)
    else:
        given = f"python examples/findings/findings.py {key} --seeds {seed}"
        given += "".join(f" --set '{text}'" for text in options.set)
        found = results.measure(key, arm, seed, runs, given)
    print(f"wrote {results.save(found, options.results)}", flush=True)


def quick(options: argparse.Namespace) -> int:
    """Every run in miniature, one seed, in a folder that is thrown away; prints what the page would be of it."""
    with tempfile.TemporaryDirectory() as folder:
        options.results = Path(folder) / "results"
        runs = Runs(Path(folder) / "runs", quick=True, settings=options.set)
        for key in options.findings or FINDINGS:
            for arm in missing(key, options.seeds[0], options):
                one(key, arm, options.seeds[0], runs, options)
        found = results.load(options.results)
        print(page(found))
        for key in options.findings:
            print(f"{key}: {len(figure(key, FINDINGS[key], arms_of(key, found)) or '')} characters of figure")
    print("in miniature: nothing of this is a finding")
    return 0


def write(found: Sequence[results.Result], out: Path) -> None:
    """The page, and a figure for each finding that has a result."""
    (out / "findings").mkdir(parents=True, exist_ok=True)
    (out / "findings.md").write_text(page(found), encoding="utf-8")
    for key, finding in FINDINGS.items():
        if drawn := figure(key, finding, arms_of(key, found)):
            (out / f"findings/{key}.svg").write_text(drawn, encoding="utf-8")
    print(f"wrote {out / 'findings.md'}")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("findings", nargs="*", metavar="FINDING", help=f"default all: {', '.join(FINDINGS)}")
    made.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    made.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time, each on one core; default all cores"
    )
    made.add_argument("--quick", action="store_true", help="every run in miniature, the first seed; writes nothing")
    made.add_argument("--page", action="store_true", help="run nothing, write the page of the results that there are")
    made.add_argument("--runs", type=Path, default=ROOT / "runs/findings", help="folder of the run folders")
    made.add_argument("--long-horizon", type=Path, default=ROOT / "runs/long_horizon", help="that example's runs")
    made.add_argument("--results", type=Path, default=results.FOLDER, help="folder of the results")
    made.add_argument("--out", type=Path, default=ROOT / "docs", help="folder of the page and its figures")
    made.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="set in every arm, to try out")
    return made


if __name__ == "__main__":
    sys.exit(main())
