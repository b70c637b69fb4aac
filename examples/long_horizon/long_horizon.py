"""Runs every arm on every seed, and writes docs/long_horizon.md with its figure.

Finished runs are read, interrupted ones resumed, so the command can be given again after any interruption.

    python examples/long_horizon/long_horizon.py            # three seeds, and the page
    python examples/long_horizon/long_horizon.py --quick    # one seed, the table on the terminal
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from importlib import metadata
from pathlib import Path

from comparison.arms import ARMS, HERE, RUNS, run
from comparison.figures import read
from comparison.page import bars, page
from comparison.plot import svg

ROOT = HERE.parent.parent


def main() -> int:
    options = parser().parse_args()
    if not metadata.entry_points(group="composer.plugins", name="logbook"):
        print("the task set is not installed; fix: pip install ./examples/long_horizon", file=sys.stderr)
        return 2
    seeds = [1] if options.quick else options.seeds
    folders = {(name, seed): run(name, seed, options.runs, options.set) for seed in seeds for name in RUNS}
    found = {name: [read(folders[arm.run, seed], arm.moment) for seed in seeds] for name, arm in ARMS.items()}
    given = " ".join(["python", "examples/long_horizon/long_horizon.py", *sys.argv[1:]])
    cpu = json.loads((folders["self", seeds[0]] / "summary.json").read_text(encoding="utf-8"))["cpu"]
    where = f"{time.strftime('%Y-%m-%d', time.gmtime())}, {cpu}, Python {platform.python_version()}"
    text = page(found, given, where)
    print(text)
    if not options.quick:
        (options.out / "long_horizon.md").write_text(text, encoding="utf-8")
        (options.out / "long_horizon.svg").write_text(svg(bars(found)), encoding="utf-8")
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    made.add_argument("--quick", action="store_true", help="seed 1 alone; the page is printed and not written")
    made.add_argument("--runs", type=Path, default=ROOT / "runs/long_horizon", help="folder of the run folders")
    made.add_argument("--out", type=Path, default=ROOT / "docs", help="folder of the page and its figure")
    made.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="set in every arm, to try out")
    return made


if __name__ == "__main__":
    sys.exit(main())
