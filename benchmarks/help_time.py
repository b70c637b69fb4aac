"""What `composer-run --help` costs, in starts of the bare interpreter: a command line that is slow to say what it can
do loads what it should not. 31 of each in turns, medians.

Bare is `python -c pass` of the same environment, with its site packages, as a user's own script would start. Both run
as new processes with warm file caches and print into a pipe. Not equal: nothing; the unit removes the machine's speed,
not the size of the environment (every editable installation adds a line that each start of the interpreter reads).

    python benchmarks/help_time.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from results import Results, Row, medians, parser, seconds, versions_of

REPEATS = 31
COMMANDS = {
    "bare": [sys.executable, "-c", "pass"],
    "help": [str(Path(sys.executable).parent / "composer-run"), "--help"],
    "version": [str(Path(sys.executable).parent / "composer-run"), "--version"],
}


def start_s(name: str) -> float:
    return seconds(lambda: subprocess.run(COMMANDS[name], stdout=subprocess.DEVNULL, check=True))


def imports() -> str:
    """The three dearest imports of `--help`, children included, as the interpreter itself counts them."""
    code = "from composer_core.cli import main; main(['--help'])"
    found = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True
    ).stderr.splitlines()
    rows = [line.removeprefix("import time:").split("|") for line in found if line.startswith("import time:")][1:]
    dearest = sorted(((int(row[1]), row[2].strip()) for row in rows), reverse=True)[:6]
    return ", ".join(f"{name} {microseconds / 1e3:.1f} ms" for microseconds, name in dearest)


def main() -> int:
    options = parser(__doc__).parse_args()
    repeats = 1 if options.quick else REPEATS
    found = medians({name: lambda name=name: start_s(name) for name in COMMANDS}, repeats)
    rows = [
        Row("composer-run --help", found["help"] / found["bare"], "bare starts", target="ours <= 15"),
        Row("composer-run --help", found["help"] * 1e3, "ms", found["bare"] * 1e3, "python -c pass"),
        Row("composer-run --version", found["version"] * 1e3, "ms", found["bare"] * 1e3, "python -c pass"),
    ]
    remarks = [f"imports of --help with all they import: {imports()}"]
    title = "Starting the command line"
    return Results("help_time", title, rows, remarks, versions_of("click", "attrs", "pluggy")).finish(options)


if __name__ == "__main__":
    sys.exit(main())
