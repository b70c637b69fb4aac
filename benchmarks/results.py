"""What every benchmark prints and writes: rows with a target, a peer, and the ratio of both measured in one run.

A ratio says how many times better we are than the peer, whichever way better points: a unit that ends in "/s" is a
rate, any other is a cost. A target is three words about a row, "ratio >= 2" or "ours <= 15". A script that misses one
exits with 1 after it has written its results; a smoke test (`--quick`) writes nothing and misses nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import operator
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from attrs import Factory, asdict, define, frozen

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results"
SIGNS: Mapping[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le}


@frozen
class Row:
    """One published figure."""

    what: str
    ours: float
    unit: str
    """A rate if it ends in "/s", else a cost."""
    peer: float | None = None
    """The peer's figure, in the same unit, of the same run; None where there is no peer, or it was left out."""
    peer_name: str = ""
    """Name, version and setting of the peer."""
    target: str = ""
    """"ratio >= 2" or "ours <= 15"; empty for a figure that is told, not promised."""

    @property
    def ratio(self) -> float | None:
        """How many times better than the peer."""
        if not self.peer or not self.ours:
            return None
        return self.ours / self.peer if self.unit.endswith("/s") else self.peer / self.ours

    @property
    def met(self) -> bool | None:
        """None if nothing was promised, or the peer it is about was left out."""
        if not self.target:
            return None
        subject, sign, bound = self.target.split()
        found = {"ratio": self.ratio, "ours": self.ours}[subject]
        return None if found is None else SIGNS[sign](found, float(bound))


@define
class Results:
    """The rows of one script's run, and where and how they came about."""

    name: str
    """Of the script, and of the file it writes."""
    title: str
    rows: list[Row] = Factory(list)
    remarks: list[str] = Factory(list)
    """What the run itself found: settings chosen by trial, the costs behind a miss."""
    versions: dict[str, str] = Factory(dict)

    def finish(self, options: argparse.Namespace) -> int:
        """Print, write unless this is a smoke test, and return the exit code."""
        print("\n".join([machine(), *map(sentence, self.rows), *self.remarks]), flush=True)
        if options.quick:
            return 0
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / f"{self.name}.json"
        path.write_text(json.dumps(self.document(), indent=1) + "\n", encoding="utf-8")
        missed = [row.what for row in self.rows if row.met is False]
        print("\n".join(f"MISSED: {self.name}: {what}" for what in missed), file=sys.stderr, flush=True)
        return 1 if missed else 0

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
            "machine": machine(),
            "revision": revision(),
            "versions": self.versions,
            "rows": [{**asdict(row), "ratio": row.ratio, "met": row.met} for row in self.rows],
            "remarks": self.remarks,
        }


def sentence(row: Row) -> str:
    """A row as a line for the terminal."""
    parts = [f"{row.what:<56} {number(row.ours):>9} {row.unit}"]
    if row.ratio is not None and row.peer is not None:
        parts.append(f"{number(row.peer)} {row.peer_name}: {row.ratio:.2f} times as good")
    if row.target:
        parts.append(f"target {row.target}: {'left out' if row.met is None else 'met' if row.met else 'MISSED'}")
    return "; ".join(parts)


def number(value: float) -> str:
    """Three figures, and no exponent: 0.123, 12.3, 12,345."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="a smoke test: smallest counts, nothing is written")
    made.add_argument("--no-peer", action="store_true", help="leave the peers out, and what is promised about them")
    made.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    return made


def alternate(acts: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Each act's figures, measured in turns, so that a slow minute of the machine falls on all of them."""
    found: dict[str, list[float]] = {name: [] for name in acts}
    for _ in range(repeats):
        for name, act in acts.items():
            found[name].append(act())
    return found


def medians(acts: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    return {name: median(values) for name, values in alternate(acts, repeats).items()}


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of them do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def seconds(act: Callable[[], object]) -> float:
    """Wall clock of one call."""
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def machine() -> str:
    """The machine in words."""
    cpu = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        cpu = names[0] if names else cpu
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = f"{platform.system()} {platform.release()}"
    return f"{cpu}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, {system}, Python {platform.python_version()}"


def revision() -> str:
    """The commit measured, marked where the tree had changes; empty outside a repository."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def versions_of(*names: str) -> dict[str, str]:
    """Versions of installed distributions."""
    return {name: metadata.version(name) for name in names}
