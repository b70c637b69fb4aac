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
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from study import long_horizon, results
from study.findings import FINDINGS
from study.page import arms_of, figure, page
from study.recipes import HERE
from study.running import OtherRunError, Runs

ROOT = HERE.parent.parent


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if not metadata.entry_points(group="composer.plugins", name="chores"):
        print("the task set is not installed; fix: pip install ./examples/findings", file=sys.stderr)
        return 2
    timed = [key for key in options.findings or FINDINGS if any(len(runs) > 1 for runs in FINDINGS[key].arms.values())]
    if options.jobs > 1 and timed and not options.page:
        print(f"{timed[0]} measures times of episodes that run alone; fix: --jobs 1, or leave it out", file=sys.stderr)
        return 2
    try:
        if options.quick:
            return quick(options)
        if not options.page:
            everything(options)
    except OtherRunError as error:
        print(error, file=sys.stderr)
        return 2
    write(results.load(options.results), options.out)
    return 0


def everything(options: argparse.Namespace) -> None:
    """Every finding that has no result, seed by seed, or several seeds at a time with a core each."""
    runs = Runs(options.runs, settings=options.set, everywhere=["threads=1"] if options.jobs > 1 else [])
    with ThreadPoolExecutor(options.jobs) as pool:  # each run is a process of its own
        made = pool.map(
            lambda seed: [one(key, seed, runs, options) for key in options.findings or FINDINGS], options.seeds
        )
        list(made)


def one(key: str, seed: int, runs: Runs, options: argparse.Namespace) -> None:
    """Every arm of a finding that has no result with this seed."""
    given = f"python examples/findings/findings.py {key} --seeds {seed}"
    given += f" --jobs {options.jobs}" * (options.jobs > 1) + "".join(f" --set '{text}'" for text in options.set)
    arms = [arm for arm in FINDINGS[key].arms if not results.path(key, arm, seed, options.results).exists()]
    if key == "summary" and arms and (missing := long_horizon.missing(options.long_horizon, seed)):
        print(f"summary, seed {seed}: no finished run in {missing[0]}; first: {long_horizon.COMMAND}", file=sys.stderr)
        return
    for arm in arms:
        print(f"{key}, arm {arm}, seed {seed}", flush=True)
        found = (
            long_horizon.read(arm, options.long_horizon, seed)
            if key == "summary"
            else results.measure(key, arm, seed, runs, given)
        )
        print(f"wrote {results.save(found, options.results)}", flush=True)


def quick(options: argparse.Namespace) -> int:
    """Every run in miniature, one seed, in a folder that is thrown away; prints what the page would be of it."""
    with tempfile.TemporaryDirectory() as folder:
        options.results = Path(folder) / "results"
        runs = Runs(Path(folder) / "runs", quick=True, settings=options.set)
        for key in options.findings or FINDINGS:
            one(key, options.seeds[0], runs, options)
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
    made.add_argument("--jobs", type=int, default=1, help="seeds at a time, each on one core; not for times")
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
