"""The main job on three seeds, with its gates: `make bench-quickstart`, or `--seeds 1` for one.

Runs examples/quickstart/run.toml once for each seed, in sequence, and writes benchmarks/results/quickstart.json and
quickstart.md with date, machine and command. Exit code 1 if a gate does not hold. Nothing is tuned here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RUN = "examples/quickstart/run.toml"
SHOWN = (
    "solve_rate_before",
    "solve_rate_after",
    "greedy_before",
    "greedy_after",
    "best_of_8_before",
    "best_of_8_after",
    "new_function_after",
    "control_blank",
    "control_guess",
    "turns_mean",
    "calls_mean",
    "episodes",
    "episodes_per_s",
    "sampler_tokens_per_s",
    "trainer_tokens_per_s",
    "fork_p50_ms",
    "exec_p50_ms",
    "parity_p999",
    "void_share",
    "truncated_share",
    "bad_call_share",
    "wall_s",
    "peak_rss_bytes",
)


def mean(rows: list[dict[str, Any]], key: str) -> float:
    return sum(float(row[key]) for row in rows) / len(rows)


def gates(rows: list[dict[str, Any]]) -> list[tuple[str, bool, str]]:
    """(what, holds, found) of every gate of the main job, over the seeds."""
    gain = mean(rows, "solve_rate_after") - mean(rows, "solve_rate_before")
    greedy = mean(rows, "greedy_after") - mean(rows, "greedy_before")
    lows = [row["gain"]["ci95_low"] for row in rows]
    blank = mean(rows, "control_blank")
    after = mean(rows, "solve_rate_after")
    guess = mean(rows, "control_guess")
    turns, calls = mean(rows, "turns_mean"), mean(rows, "calls_mean")
    return [
        ("solve rate after >= 0.65", after >= 0.65, f"{after:.3f}"),
        ("gain >= 0.25", gain >= 0.25, f"{gain:.3f}"),
        ("each seed's paired lower bound > 0", min(lows) > 0, ", ".join(f"{low:.3f}" for low in lows)),
        ("greedy gain >= 0.15", greedy >= 0.15, f"{greedy:.3f}"),
        ("mean episode >= 3 turns and 3 calls", turns >= 3 and calls >= 3, f"{turns:.2f}, {calls:.2f}"),
        ("blank observations <= 0.10", blank <= 0.10, f"{blank:.3f}"),
        ("blank observations lose >= 0.30", after - blank >= 0.30, f"{after - blank:.3f}"),
        ("beats the guessing policy by 0.20", after - guess >= 0.20, f"{after - guess:.3f}"),
        ("at most 600 s each", max(row["wall_s"] for row in rows) <= 600, f"{max(row['wall_s'] for row in rows):.0f}"),
        ("at most 4 GiB", max(row["peak_rss_bytes"] for row in rows) <= 4 << 30, f"{mean(rows, 'peak_rss_bytes'):.3g}"),
    ]


def run_seed(seed: int, folder: Path) -> dict[str, Any]:
    """One whole run; an interrupted one is resumed."""
    command = ["train", RUN, "--run-dir", str(folder), "--or-resume", "--set", f"seed={seed}"]
    subprocess.run([sys.executable, "-m", "composer_core.cli", *command], cwd=ROOT, check=True)
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return found


def report(rows: list[dict[str, Any]], held: list[tuple[str, bool, str]]) -> str:
    """The results as a Markdown page."""
    date = time.strftime("%Y-%m-%d")
    lines = [
        f"# The main job, {len(rows)} seed{'s' * (len(rows) > 1)}",
        "",
        f"{date}, {rows[0]['cpu']}, {os.cpu_count()} cores, `python benchmarks/quickstart.py --seeds "
        f"{' '.join(str(row['seed']) for row in rows)}`, revision {rows[0]['commit']}.",
        *([] if len(rows) >= 3 else ["", "The gates are defined over three seeds; here they are read on fewer."]),
        "",
        "| gate | holds | found |",
        "|---|---|---|",
        *(f"| {what} | {'yes' if ok else 'NO'} | {found} |" for what, ok, found in held),
        "",
        "| figure | " + " | ".join(f"seed {row['seed']}" for row in rows) + " |",
        "|---|" + "---|" * len(rows),
    ]
    for key in SHOWN:
        values = ["-" if row[key] is None else f"{row[key]:.4g}" for row in rows]
        lines.append(f"| {key} | " + " | ".join(values) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="folder of the run folders")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results")
    options = parser.parse_args()
    rows = [run_seed(seed, options.runs / f"quickstart-seed{seed}") for seed in options.seeds]
    held = gates(rows)
    page = report(rows, held)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "quickstart.md").write_text(page, encoding="utf-8")
    (options.out / "quickstart.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print(page)
    return 0 if all(ok for _, ok, _ in held) else 1


if __name__ == "__main__":
    sys.exit(main())
