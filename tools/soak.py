"""Write docs/soak.md from the results of `make soak`: what was tried at full counts, when, where, and how it ended.

COMPOSER_SOAK=1 python -m pytest --junitxml soak.xml
python tools/soak.py soak.xml

It takes hours as a whole, so it may be run in parts, one pytest and one file of results each: name all files.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
PAGE = ROOT / "docs/soak.md"
HEAD = """# Soak

`make test` holds every case at reduced counts; `make soak` runs the same tests at full counts, and this page is made of
its last results (`python tools/soak.py RESULTS.xml...`), all of them or the parts that were run. Sandboxes come and go,
and one in twenty crashes in the midst of a command: a container or virtual machine is killed from outside, another kind
is destroyed under its command. Afterwards there may be no more processes, mounts, namespaces, control groups, files or
descriptors than before, and of an engine no more containers, images or volumes.

Seconds are what it took beside whatever else the machine had to do; [speed](benchmarks.md) is measured apart.
"""


class Churn(NamedTuple):
    """One kind of sandbox that came and went."""

    name: str
    sandboxes: int
    seconds: float
    ended: str


def read(paths: Sequence[Path]) -> tuple[list[Churn], int, list[str]]:
    """The churns, how many tests passed in all, and the names of those that did not."""
    churns, passed, failed = [], 0, []
    for case in (case for path in paths for case in ElementTree.parse(path).getroot().iter("testcase")):
        bad = any(case.find(kind) is not None for kind in ("failure", "error", "skipped"))
        name = f"{case.get('classname', '')}.{case.get('name', '')}"
        passed += not bad
        failed += [name] if bad else []
        for found in case.iter("property"):
            if found.get("name") == "sandboxes":
                who = case.get("classname", "").rpartition(".")[2].removeprefix("Test").lower()
                ended = "FAILED" if bad else "nothing stayed"
                churns.append(Churn(who, int(found.get("value", "0")), float(case.get("time", "0")), ended))
    return churns, passed, failed


def page(churns: list[Churn], passed: int, failed: list[str], where: str) -> str:
    """The whole page."""
    lines = [
        HEAD,
        f"{where}: {passed:,} tests passed, {len(failed)} did not.",
        *(f"- {name}" for name in failed),
        "",
        "| sandboxes of | made | seconds | |",
        "|---|---|---|---|",
        *(f"| {one.name} | {one.sandboxes:,} | {one.seconds:.0f} | {one.ended} |" for one in churns),
    ]
    return "\n".join(lines) + "\n"


def main(*paths: Path) -> int:
    from results import machine, revision

    churns, passed, failed = read(paths)
    where = f"{time.strftime('%Y-%m-%d', time.gmtime())}, revision {revision()}, {machine()}"
    PAGE.write_text(page(churns, passed, failed, where), encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
