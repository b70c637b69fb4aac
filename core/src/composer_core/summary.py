"""summary.json: the figures of a run under fixed names, each from what this run measured.

A key whose evaluation or stage the run did not have is null, never a default that looks like a measurement. Counts,
wall time and the trainer's figures are of the whole run, however often it was resumed, as far as events.jsonl was
written; memory, and the rates and latencies in `stats`, are of the process that ended it. `resumed_from` names the
commit at which that one started.
"""

from __future__ import annotations

import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

from attrs import Factory, define, field

from composer_core import statistics
from composer_core.config import RunConfig
from composer_core.errors import StoreError
from composer_core.evaluate import Evaluation
from composer_core.events import PARITY_PROBE, EpisodeEnded, Event, StageStarted, StepEnded
from composer_core.tracking import to_event
from composer_core.types import EpisodeResult

VERSIONED = ("composer-core", "torch", "transformers", "accelerate", "tokenizers", "safetensors", "attrs", "pluggy")
SEEN = ("StageStarted", "StepEnded", "EpisodeEnded")
SAMPLED = {"trainer_tokens_per_s", "parity_p999", "parity_max", "masked_sequences", "route_disagreement_share"}
"""Metrics of steps that the summary has a figure of."""
BYTES_PER_MAXRSS = 1024 if sys.platform.startswith("linux") else 1


@define
class Meter:
    """Counts and samples of a whole run: of this process as its events happen, of earlier ones from events.jsonl.

    All that was done counts: what was repeated after a kill, because it came after the last commit, was done twice.
    """

    started: float = field(factory=time.perf_counter)
    earlier_s: float = 0.0
    """Wall clock of the processes before this one."""
    counts: dict[str, float] = Factory(dict)
    samples: dict[str, list[float]] = Factory(dict)
    lengths: list[tuple[float, bool]] = Factory(list)
    """Of each episode: its sampled tokens, and whether it was void."""
    _others: set[str] = Factory(lambda: {PARITY_PROBE})
    """Purposes of episodes that are not the policy's, or not whole."""

    @classmethod
    def resumed(cls, records: Iterable[Mapping[str, Any]]) -> Meter:
        """With what the processes before this one have written down; from a damaged line on nothing is known."""
        meter = cls()
        start_s = end_s = 0.0
        with suppress(StoreError):
            for record in records:
                if record["event"] == "RunStarted":
                    meter.earlier_s += end_s - start_s
                    start_s = end_s = record["time_s"]
                end_s = max(end_s, record["time_s"])
                if record["event"] in SEEN:
                    meter.see(to_event(record))
        meter.earlier_s += end_s - start_s
        return meter

    def see(self, event: Event) -> None:
        """Count what this event tells."""
        if isinstance(event, StageStarted) and event.kind == "sft":
            self._others.add(event.stage)
        elif isinstance(event, StepEnded):
            for name in SAMPLED & event.metrics.keys():
                self.samples.setdefault(name, []).append(event.metrics[name])
        elif isinstance(event, EpisodeEnded) and event.purpose not in self._others:
            self._episode(event.result)

    def _episode(self, result: EpisodeResult) -> None:
        void = not result.verdict.valid
        self.lengths.append((result.stats.get("tokens", 0.0), void))
        self.add("episodes")
        self.add("episodes_void", float(void))
        self.add("sampled_tokens", result.stats.get("tokens", 0.0))
        self.add("calls", result.stats.get("calls", 0.0))
        self.add("bad_calls", result.stats.get("bad_calls", 0.0))
        if result.stop and result.stop.value in ("turns", "tokens", "time", "context"):
            self.add("episodes_truncated")

    def add(self, name: str, amount: float = 1.0) -> None:
        self.counts[name] = self.counts.get(name, 0.0) + amount

    @property
    def wall_s(self) -> float:
        return self.earlier_s + time.perf_counter() - self.started

    def share(self, part: str, whole: str) -> float | None:
        """None where there was nothing to have a share of."""
        return self.counts.get(part, 0.0) / self.counts[whole] if self.counts.get(whole) else None

    def void_by_length(self) -> list[dict[str, float]]:
        """Void rate by decile of sampled tokens (RL.md section 2): masking voids must not favor short episodes."""
        ordered = sorted(self.lengths)
        cuts = [len(ordered) * tenth // 10 for tenth in range(11)]
        return [
            {
                "tokens_most": part[-1][0],
                "episodes": float(len(part)),
                "void_share": sum(void for _, void in part) / len(part),
            }
            for start, stop in pairwise(cuts)
            if (part := ordered[start:stop])
        ]

    def median(self, name: str) -> float | None:
        values = self.samples.get(name)
        return statistics.percentile(values, 0.5) if values else None

    def latest(self, name: str) -> float | None:
        return self.samples[name][-1] if self.samples.get(name) else None

    def worst(self, name: str) -> float | None:
        return max(self.samples[name]) if self.samples.get(name) else None

    def total(self, name: str) -> float | None:
        return sum(self.samples[name]) if self.samples.get(name) else None


def summarize_run(
    config: RunConfig,
    evaluations: Mapping[tuple[str, str], Evaluation],
    meter: Meter,
    stats: Mapping[str, float],
    resumed_from: int | None = None,
) -> dict[str, Any]:
    """Everything a reader needs to judge a run, as JSON-like data."""

    def metric(moment: str, name: str, key: str = "solve_rate") -> float | None:
        found = evaluations.get((moment, name))
        return found.metrics.get(key) if found else None

    def ci(moment: str) -> list[float] | None:
        low, high = metric(moment, "main", "ci95_low"), metric(moment, "main", "ci95_high")
        return None if low is None or high is None else [low, high]

    wall_s = meter.wall_s
    sampler_busy = stats.get("sampler/busy_s", 0.0)
    return {
        "name": config.name,
        "solve_rate_before": metric("before", "main"),
        "solve_rate_after": metric("after", "main"),
        "ci95_before": ci("before"),
        "ci95_after": ci("after"),
        "gain": _gain(evaluations, "main", config.seed),
        "greedy_before": metric("before", "greedy"),
        "greedy_after": metric("after", "greedy"),
        "best_of_8_before": metric("before", "best_of_8", "best_of_8"),
        "best_of_8_after": metric("after", "best_of_8", "best_of_8"),
        "new_function_after": metric("after", "new_function"),
        "control_blank": metric("after", "blank"),
        "control_guess": metric("before", "guess") if metric("after", "guess") is None else metric("after", "guess"),
        "attempts": metric("after", "main", "episodes"),
        "episodes": meter.counts.get("episodes", 0.0),
        "episodes_per_s": meter.counts.get("episodes", 0.0) / max(1e-9, wall_s),
        "turns_mean": metric("after", "main", "turns_mean"),
        "calls_mean": metric("after", "main", "calls_mean"),
        "sampler_tokens_per_s": stats.get("sampler/tokens", 0.0) / sampler_busy if sampler_busy else None,
        "trainer_tokens_per_s": meter.median("trainer_tokens_per_s"),
        "fork_p50_ms": stats.get("create_p50_ms"),
        "exec_p50_ms": stats.get("exec_p50_ms"),
        "parity_p999": meter.latest("parity_p999"),
        "parity_max": meter.worst("parity_max"),
        "masked_sequences": meter.total("masked_sequences"),
        "route_disagreement_share": meter.worst("route_disagreement_share"),
        "void_share": meter.share("episodes_void", "episodes"),
        "void_by_length": meter.void_by_length(),
        "truncated_share": meter.share("episodes_truncated", "episodes"),
        "bad_call_share": meter.share("bad_calls", "calls"),
        "loop_lag_p99_ms": stats.get("loop_lag_p99_ms"),
        "wall_s": wall_s,
        "resumed_from": resumed_from,
        "peak_rss_bytes": peak_rss_bytes(),
        "seed": config.seed,
        "deterministic": config.deterministic,
        "commit": _commit(),
        "cpu": _cpu(),
        "versions": _versions(),
        "evaluations": {f"{moment}/{name}": found.metrics for (moment, name), found in evaluations.items()},
        "stats": dict(stats),
        "counts": meter.counts,
    }


def _gain(evaluations: Mapping[tuple[str, str], Evaluation], name: str, seed: int) -> dict[str, float] | None:
    """Paired gain of a set from before to after, bootstrapped over tasks."""
    before, after = evaluations.get(("before", name)), evaluations.get(("after", name))
    if not before or not after or not set(before.rows) & set(after.rows):
        return None
    mean, low, high = statistics.paired_interval(before.rows, after.rows, seed)
    return {"mean": mean, "ci95_low": low, "ci95_high": high}


def peak_rss_bytes() -> int:
    """Most memory this process held; getrusage on Linux would count what its parent held when it started this one."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    own = [int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")]
    return own[0] if own else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * BYTES_PER_MAXRSS


def _commit() -> str | None:
    """The source revision this package runs from, when it runs from a checkout."""
    folder = Path(__file__).resolve().parent
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in VERSIONED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
