"""A full step of reinforcement learning beside TRL 1.16.0's GRPOTrainer: rollouts with tools, rewards, one update.

    python benchmarks/rl_step.py [--repeats 6] [--threads 2] [--tool-ms 0,20] [--peer-python PATH | --no-peer]

Design. Both sides load one model folder (the `tiny-moe` preset with random weights, and its tokenizer) and play the
script of `peers/rl_step/workload.py`: the same tasks, group sizes, turns, sampled ids of each turn and results. Ids are
really sampled, by forward passes at temperature 1, and trained with the log-probabilities of forward passes; only a
turn's length and the call it made are scripted, because random weights never write a call. Each side parses what was
sampled before the scripted call takes its place. Then one update: dr_grpo (rewards minus the group's mean, loss summed
over sampled ids and divided by one constant), no KL, fp32, AdamW and clipping with the same settings; the page shows
both gradient norms. Sides run in processes of their own, on the same cores, with the same number of threads, in turns
(`--rounds`); the first step of each process is warm-up. The peer runs in its own environment (made below the cache
folder if it is missing) and is given four batch settings, of which the best counts: rows x parts of the update, and
after a slash the episodes generated at once, if not all of them.

Ours is the `train` of composer-run over `peers/rl_step/run.toml`: ledger, loop, in-memory sandboxes, traces and events
on disk, weights exported, published and swapped in every step. It is measured twice: `max_staleness = 0` waits for
every episode before it trains, as the peer does, and this is the ratio; `max_staleness = 1` rolls out while it trains,
with one thread each of the two, which the peer offers on GPU servers only. Needs Linux.

Not equal. A turn of the peer ends with a forced closing tag, which counts as sampled and is trained; a turn of ours
ends by length and the renderer appends the tag: one id of context more. The objective of ours weighs ids by their
sampler's log-probabilities; the peer's `generate` gives none, and it assumes they are its own. The peer keeps no
traces, runs no sandbox and takes no patch; its rollouts and update share one copy of the weights, where ours writes and
loads a file in every step. A tool that waits is a coroutine with us and a plain method with the peer, whose loop calls
the episodes' tools one after the other either way.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SIDES = ROOT / "benchmarks/peers/rl_step"
PEER = "trl==1.16.0"
OURS, OVERLAPPED = "composer", "composer, overlapped"
TARGETS = {0.0: 2.0, 20.0: 3.0}
"""Cost of the tool in milliseconds -> least ratio of seconds per step."""
COMPLETION_TOKENS = 512
"""The peer's longest completion, and the constant that both sides divide the summed loss by."""


# --- the peer's environment ---------------------------------------------------------------------------------------


def peer_python(options: argparse.Namespace) -> tuple[Path | None, str]:
    """Interpreter of the peer's environment, made if it is missing; or None and why."""
    if options.no_peer:
        return None, "--no-peer was given"
    if options.peer_python:
        return options.peer_python, ""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "composer-benchmarks"
    folder = cache / PEER.replace("==", "-")
    if not (folder / "ready").exists():
        print(f"making the peer's environment in {folder}", file=sys.stderr)
        failed = _make(folder)
        if failed:
            return None, failed
        (folder / "ready").touch()
    return folder / "bin/python", ""


def _make(folder: Path) -> str:
    """Install the peer; returns the last words of what failed, or nothing.

    The constraints keep torch and transformers at this project's versions, so that both sides compute alike.
    """
    install = [folder / "bin/python", "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", PEER, "torch"]
    for command in ([sys.executable, "-m", "venv", folder], install):
        found = subprocess.run(command, check=False, capture_output=True, text=True)
        if found.returncode:
            return f"{PEER} could not be installed: {(found.stderr.strip().splitlines() or ['?'])[-1]}"
    return ""


# --- running the sides --------------------------------------------------------------------------------------------


class Sides:
    """Runs one side's script on one job, in a process of its own."""

    def __init__(self, options: argparse.Namespace, peer: Path | None, folder: Path) -> None:
        self._options, self._peer, self._folder = options, peer, folder
        self._environment = {
            **os.environ,
            **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(options.threads)),
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "TRL_EXPERIMENTAL_SILENCE": "1",
            "PYTHONWARNINGS": "ignore",
        }

    def prepare(self) -> None:
        """The model folder; with the peer's own template, as the peer reads calls only under templates it knows."""
        template = self._call(self._peer, "trl_side.py", "template", {}) if self._peer else {"template": None}
        self._call(Path(sys.executable), "composer_side.py", "prepare", self._job(0.0, 1) | template)

    def ours(self, tool_ms: float, steps: int) -> dict[str, Any]:
        job = self._job(tool_ms, steps) | {"max_staleness": 0}
        return self._call(Path(sys.executable), "composer_side.py", "run", job)

    def overlapped(self, tool_ms: float, steps: int) -> dict[str, Any]:
        """The trainer has one thread fewer: the sampler's. The last step has no rollouts beside it and is left out."""
        threads = max(1, self._options.threads - 1)
        job = self._job(tool_ms, steps + 1) | {"max_staleness": 1, "threads": threads}
        found = self._call(Path(sys.executable), "composer_side.py", "run", job)
        return {key: value[:-1] if isinstance(value, list) else value for key, value in found.items()}

    def peer(self, tool_ms: float, steps: int, setting: str) -> dict[str, Any]:
        assert self._peer is not None
        update, _, generation = setting.partition("/")
        rows, parts = (int(number) for number in update.split("x"))
        job = self._job(tool_ms, steps) | {"rows": rows, "parts": parts, "generation": int(generation or rows * parts)}
        return self._call(self._peer, "trl_side.py", "run", job)

    def _job(self, tool_ms: float, steps: int) -> dict[str, Any]:
        return {
            "model": str(self._folder / "model"),
            "workload": {"groups": self._options.groups, "group_size": self._options.group_size},
            "tool_ms": tool_ms,
            "steps": steps,
            "threads": self._options.threads,
            "learning_rate": 1e-5,
            "completion_tokens": COMPLETION_TOKENS,
            "cache": str(self._folder / "peer"),
            "overrides": self._options.set,
        }

    def _call(self, python: Path, script: str, verb: str, job: dict[str, Any]) -> dict[str, Any]:
        path = self._folder / "job.json"
        path.write_text(json.dumps(job), encoding="utf-8")
        command = [python, SIDES / script, verb, path]
        done = subprocess.run(command, env=self._environment, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{script} {verb} failed:\n{done.stderr[-4000:]}")
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1]) if verb != "prepare" else {}
        return found


def measure(sides: Sides, options: argparse.Namespace, tool_ms: float, has_peer: bool) -> dict[str, Any]:
    """All sides at one cost of the tool, in turns; the first step of each process is left out."""
    steps = 1 + -(-options.repeats // options.rounds)
    runs: dict[str, list[dict[str, Any]]] = {}
    for number in range(options.rounds):
        print(f"tools at {tool_ms:g} ms, round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        runs.setdefault(OURS, []).append(sides.ours(tool_ms, steps))
        runs.setdefault(OVERLAPPED, []).append(sides.overlapped(tool_ms, steps))
        for setting in options.settings.split(",") if has_peer else ():
            runs.setdefault(f"{PEER} {setting}", []).append(sides.peer(tool_ms, steps, setting))
    waiting = {name: found for name, found in runs.items() if name != OVERLAPPED}  # groups of that run may trade steps
    sampled = {name: {count for run in found for count in run["sampled_tokens"]} for name, found in waiting.items()}
    if len(set.union(*sampled.values())) != 1:
        raise SystemExit(f"the sides did not sample equally many ids a step: {sampled}")
    return {name: pooled(found) for name, found in runs.items()}


def pooled(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Steps of all rounds, without each process's first."""
    times = {key: [value for run in runs for value in run[key][1:]] for key in ("step_s", "rollout_s", "update_s")}
    medians = {key: statistics.median(values) for key, values in times.items()}
    sampled = statistics.mean(value for run in runs for value in run["sampled_tokens"][1:])
    return {
        **medians,
        "sampled_tokens": sampled,
        "sampled_tokens_per_s": sampled / medians["step_s"],
        "peak_rss_bytes": max(run["peak_rss_bytes"] for run in runs),
        "spread": [min(times["step_s"]), max(times["step_s"])],
        "all_step_s": times["step_s"],
        "grad_norm": runs[0]["grad_norm"],
        "an_episode": runs[0]["an_episode"],
        "versions": runs[0]["versions"],
    }


# --- report -------------------------------------------------------------------------------------------------------


def judged(found: dict[str, Any], tool_ms: float) -> dict[str, Any]:
    """The figures of one cost with the peer's best setting, the ratio and its target; None without a peer."""
    peers = {name: side for name, side in found.items() if name.startswith(PEER)}
    best = min(peers, key=lambda name: peers[name]["step_s"]) if peers else None
    ratios = {name: found[best]["step_s"] / found[name]["step_s"] for name in (OURS, OVERLAPPED)} if best else {}
    return {"tool_ms": tool_ms, "best": best, "ratios": ratios, "target": TARGETS.get(tool_ms), "sides": found}


def verdict(result: dict[str, Any]) -> str:
    """One line on one cost of the tool."""
    if not result["best"]:
        return "no peer, no ratio"
    ratio, target = result["ratios"][OURS], result["target"]
    held = "" if target is None else f" (target {target:g}: {'met' if ratio >= target else 'MISSED'})"
    overlapped = f"{result['ratios'][OVERLAPPED]:.2f} times when rollouts go on while it trains"
    return f"{ratio:.2f} times as fast as {result['best']}{held}; {overlapped}"


def page(report: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        "# A full RL step beside TRL's GRPOTrainer",
        "",
        f"{report['date']}, {report['cpu']}, {report['cores']} cores, {report['threads']} threads, revision "
        f"{report['revision']}, `{report['command']}`.",
        *(["", f"The peer was not measured: {report['peer_skipped']}."] if report["peer_skipped"] else []),
    ]
    for result in report["results"]:
        lines += [
            "",
            f"Tools at {result['tool_ms']:g} ms: {verdict(result)}.",
            "",
            HEADER,
            "|---|---|---|---|---|---|---|",
        ]
        for name, side in result["sides"].items():
            lines.append(_row(name, side))
    lines += ["", "An episode, on average, and the update's gradient norm in the first step:", "", EPISODES]
    lines.append("|---|---|---|---|---|---|")
    for name, side in report["results"][0]["sides"].items():
        one = side["an_episode"]
        shown = [f"{one[key]:.2f}" for key in ("turns", "prompt_ids", "sampled_ids", "appended_ids")]
        lines.append(f"| {name} | {' | '.join(shown)} | {side['grad_norm'][0]:.4f} |")
    return "\n".join(lines) + "\n"


HEADER = "| side | s a step (least, most) | rollout s | update s | sampled tokens | sampled tokens/s | peak RSS, MB |"
EPISODES = "| side | turns | prompt ids | sampled ids | appended ids | gradient norm |"


def _row(name: str, side: dict[str, Any]) -> str:
    low, high = side["spread"]
    return (
        f"| {name} | {side['step_s']:.3f} ({low:.3f}, {high:.3f}) | {side['rollout_s']:.3f} | {side['update_s']:.3f} "
        f"| {side['sampled_tokens']:.0f} | {side['sampled_tokens_per_s']:.0f} | {side['peak_rss_bytes'] / 1e6:.0f} |"
    )


def machine() -> dict[str, Any]:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    revision = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": names[0].partition(":")[2].strip() if names else platform.machine(),
        "cores": os.cpu_count(),
        "revision": revision.stdout.strip() or None,
        "command": " ".join(["python benchmarks/rl_step.py", *sys.argv[1:]]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=6, help="measured steps of each side")
    parser.add_argument("--rounds", type=int, default=2, help="processes that the repeats of a side are spread over")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tool-ms", default="0,20", help="costs of the tool, comma-separated")
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--settings", default="64x1,16x4,8x8,4x16", help="the peer's: rows of a batch x batches a step")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of our run file")
    parser.add_argument("--peer-python", type=Path, help=f"interpreter of an environment with {PEER}")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results")
    options = parser.parse_args()
    peer, skipped = peer_python(options)
    if skipped:
        print(f"the peer is skipped: {skipped}", file=sys.stderr)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])  # the sides inherit it
    with tempfile.TemporaryDirectory() as name:
        sides = Sides(options, peer, Path(name))
        sides.prepare()
        costs = [float(text) for text in options.tool_ms.split(",")]
        results = [judged(measure(sides, options, cost, peer is not None), cost) for cost in costs]
    report = {**machine(), "threads": options.threads, "peer_skipped": skipped, "results": results}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "rl_step.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    (options.out / "rl_step.md").write_text(page(report), encoding="utf-8")
    print(page(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
