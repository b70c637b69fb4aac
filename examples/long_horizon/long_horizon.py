"""Runs every arm on every seed, and writes docs/long_horizon.md with its figure.

Finished runs are read, interrupted ones resumed, so the command can be given again after any interruption.

    python examples/long_horizon/long_horizon.py            # three seeds, and the page
    python examples/long_horizon/long_horizon.py --quick    # one seed, the table on the terminal
    python examples/long_horizon/long_horizon.py --page     # nothing is run: the page of the results that are kept
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from itertools import product
from pathlib import Path

from comparison.arms import ARMS, HERE, RUNS, base, run
from comparison.figures import Results, read, seconds
from comparison.page import NOTES, bars, page
from comparison.plot import svg

ROOT = HERE.parent.parent
KEPT = HERE / "results.json"


def main() -> int:
    options = parser().parse_args()
    if options.page:
        write(Results.read(KEPT), options.out)
        return 0
    if not metadata.entry_points(group="composer.plugins", name="logbook"):
        print("the task set is not installed; fix: pip install ./examples/long_horizon", file=sys.stderr)
        return 2
    results = measured(options)
    print(page(results, NOTES.read_text(encoding="utf-8")))
    if not options.quick:
        results.write(KEPT)
        write(results, options.out)
    return 0


def measured(options: argparse.Namespace) -> Results:
    """What every arm found on every seed, after all runs are finished."""
    seeds = [1] if options.quick else options.seeds
    pairs = list(product(RUNS, seeds))
    with ThreadPoolExecutor(options.jobs) as pool:  # each run is a process of its own
        begun = list(pool.map(lambda seed: base(seed, options.runs), seeds))
        finished = pool.map(lambda pair: run(pair[0], pair[1], options.runs, options.set), pairs)
        folders = dict(zip(pairs, finished, strict=True))
    found = {name: [read(folders[arm.run, seed], arm.moment) for seed in seeds] for name, arm in ARMS.items()}
    given = " ".join(["python", "examples/long_horizon/long_horizon.py", *sys.argv[1:]])
    cpu = json.loads((folders["self", seeds[0]] / "summary.json").read_text(encoding="utf-8"))["cpu"]
    base_s = [seconds(folder) for folder in begun]
    return Results(
        found, base_s, given, f"{time.strftime('%Y-%m-%d', time.gmtime())}, {cpu}, Python {platform.python_version()}"
    )


def write(results: Results, folder: Path) -> None:
    """The page and its figure."""
    text = page(results, NOTES.read_text(encoding="utf-8"))
    (folder / "long_horizon.md").write_text(text, encoding="utf-8")
    (folder / "long_horizon.svg").write_text(svg(bars(results.found)), encoding="utf-8")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    made.add_argument("--quick", action="store_true", help="seed 1 alone; the page is printed and not written")
    made.add_argument("--page", action="store_true", help="make the page of results.json, and run nothing")
    made.add_argument("--jobs", type=int, default=1, help="runs at a time; each takes one core")
    made.add_argument("--runs", type=Path, default=ROOT / "runs/long_horizon", help="folder of the run folders")
    made.add_argument("--out", type=Path, default=ROOT / "docs", help="folder of the page and its figure")
    made.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="set in every arm, to try out")
    return made


if __name__ == "__main__":
    sys.exit(main())
