"""Every benchmark in sequence (`make bench`), then the page of figures; what missed or broke is named at the end.

The main job is not among them; it has a command of its own, `make bench-quickstart`.

    python benchmarks/all.py [OPTIONS of the scripts, such as --no-peer]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from results import RESULTS
from table import PAGE, page, results

FOLDER = Path(__file__).resolve().parent
SCRIPTS = (
    "help_time",
    "control_plane",
    "ray_executor",
    "simulation",
    "asynchrony",
    "sandboxes",
    "microvm",
    "envd",
    "sampler_throughput",
    "rl_step",
    "weight_sync",
    "mxfp8",
    "mxfp8_mm",
    "mxfp8_layer",
    "mxfp8_quickstart",
)


def main() -> int:
    bad = []
    for name in SCRIPTS:
        print(f"--- {name} ---", flush=True)
        code = subprocess.run([sys.executable, FOLDER / f"{name}.py", *sys.argv[1:]], check=False).returncode
        if code not in (0, 1):
            bad.append(f"BROKEN: {name} ended with {code}; its figures are those of an earlier run")
    PAGE.write_text(page(), encoding="utf-8")
    for found in results(RESULTS):
        bad += [f"MISSED: {found['name']}: {row['what']}" for row in found["rows"] if row["met"] is False]
    print("\n".join(bad) if bad else "every target was met", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
