"""docs/benchmarks.md out of benchmarks/results/*.json: every published figure, how it was taken, and what missed.

The page holds nothing else, so a figure cannot be edited without its result; a test compares the two.

    python benchmarks/table.py [--check]
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from results import RESULTS, ROOT, number

PAGE = ROOT / "docs/benchmarks.md"
HEAD = """# Benchmarks

Every figure below was written by the script named with it, beside its peer in the same run, and this page is made of
the files in `benchmarks/results` by `python benchmarks/table.py`. `make bench` measures everything anew on an idle
machine, the main job apart, which takes twenty minutes a seed: `make bench-quickstart`, results in
`benchmarks/results/quickstart.md`. A ratio says how many times better we are than the peer, whichever way better
points. Peers live in environments of their own, made on demand outside the repository. What was tried for the rows that
miss stands in [decision 13](decisions/0013-what-was-tried-for-speed.md).
"""


def results(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Every result that has rows, by name."""
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict) and "rows" in found:
            yield found


def page(folder: Path = RESULTS) -> str:
    """The whole page."""
    return "\n".join([HEAD, *(section(found) for found in results(folder))])


def section(found: Mapping[str, Any]) -> str:
    """One script's table, what it was measured on, and how, in the script's own words."""
    versions = "".join(f", {name} {version}" for name, version in sorted(found["versions"].items()))
    lines = [
        f"## {found['title']}",
        "",
        "| what | target | ours | peer | ratio | |",
        "|---|---|---|---|---|---|",
        *map(line, found["rows"]),
        "",
        f"{found['date']}, `{found['command']}`, revision {found['revision']}; {found['machine']}{versions}.",
        "",
        *(doc(found["name"]) if f"/{found['name']}.py" in found["command"] else ()),  # told once of a script's several
        *(f"- {remark}" for remark in found["remarks"]),
        *([""] if found["remarks"] else []),
    ]
    return "\n".join(lines)


def line(row: Mapping[str, Any]) -> str:
    """A row of the table."""
    peer = f"{number(row['peer'])} {row['peer_name']}" if row["peer"] is not None else row["peer_name"] or "-"
    ratio = f"{row['ratio']:.2f}" if row["ratio"] is not None else "-"
    met = {None: "", True: "met", False: "**missed**"}[row["met"]]
    return (
        f"| {row['what']} | {row['target'] or '-'} | {number(row['ours'])} {row['unit']} | {peer} | {ratio} | {met} |"
    )


def doc(name: str) -> list[str]:
    """The docstring of a benchmark as paragraphs, its usage left out."""
    text = ast.get_docstring(ast.parse((ROOT / f"benchmarks/{name}.py").read_text(encoding="utf-8"))) or ""
    paragraphs = [part for part in text.split("\n\n") if not part.startswith("    ")]
    return [line for part in paragraphs for line in (part, "")]


def main() -> int:
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
