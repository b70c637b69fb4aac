"""The built-in executor: episodes as tasks of this process's event loop.

A worker runs an episode, writes its trace, and reports the reference; the same rule holds for executors that place
episodes elsewhere, whose workers may be this one in another process (`assembly.reopen`). Here the samplers live in the
process too, each on its own thread, so the loop only orchestrates; `loop_lag_p99_ms` says how well that holds.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path

from composer_core.config import InProcessConfig
from composer_core.episode import fault_of, run_episode
from composer_core.errors import ComposerError, boundary
from composer_core.parts import EpisodeParts
from composer_core.protocols import BuildContext, Store, Trainer
from composer_core.traces import encode, set_apart
from composer_core.types import EpisodeRequest, EpisodeResult, Outcome, Trace, TraceRef, Verdict, WeightsRef

__all__ = [
    "InProcessExecutor",
    "LoopLag",
    "result_of",
]

LAG_PROBE_S = 0.05


class LoopLag:
    """How late a timer fires on this event loop: what anything else on it waits for."""

    def __init__(self) -> None:
        self._lags_s: deque[float] = deque(maxlen=4096)
        self._probe: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._probe = asyncio.create_task(self._measure())

    def p99_ms(self) -> float:
        lags = sorted(self._lags_s)
        return lags[min(len(lags) - 1, int(len(lags) * 0.99))] * 1e3 if lags else 0.0

    def stop(self) -> None:
        """Safe twice."""
        if self._probe:
            self._probe.cancel()
            self._probe = None

    async def _measure(self) -> None:
        while True:
            due = time.perf_counter() + LAG_PROBE_S
            await asyncio.sleep(LAG_PROBE_S)
            self._lags_s.append(max(0.0, time.perf_counter() - due))


class InProcessExecutor:
    """`protocols.Executor` on one event loop."""

    def __init__(self, config: InProcessConfig, build: BuildContext) -> None:
        self._parts: EpisodeParts = build.get("parts")
        self._store: Store = build.get("stores")
        self._run_dir: Path = build.run_dir
        self._get = build.get
        self._max_concurrent = config.max_concurrent
        self._gate = asyncio.Semaphore(config.max_concurrent)
        self._lag = LoopLag()
        self._episodes = 0

    async def start(self) -> None:
        self._lag.start()

    def trainer(self) -> Trainer:
        made: Trainer = self._get("trainers")
        return made

    def places(self) -> int:
        return self._max_concurrent

    async def submit(self, request: EpisodeRequest) -> EpisodeResult:
        async with self._gate:
            self._episodes += 1
            try:
                with boundary("executors", "core/inprocess"):
                    trace = await run_episode(request, self._parts)
                    return result_of(trace, await asyncio.to_thread(self._write, trace))
            except ComposerError as error:  # a bad episode never kills a run
                fault = fault_of("host", error)
                verdict = Verdict(Outcome.VOID, "host")
                return EpisodeResult(request.key, request.group, None, verdict, faults=(fault,))

    def _write(self, trace: Trace) -> TraceRef:
        """On a thread: expert ids make traces of megabytes."""
        data = encode(set_apart(trace, self._store))
        uri = self._store.put(f"traces/{trace.key.episode_id}.trace", data)
        return TraceRef(uri, hashlib.sha256(data).hexdigest())

    async def publish(self, weights: WeightsRef) -> None:
        await self._parts.samplers["policy"].load(weights, self._run_dir / weights.uri)

    def stats(self) -> Mapping[str, float]:
        sampler = {f"sampler/{name}": value for name, value in self._parts.samplers["policy"].stats().items()}
        return {
            "episodes": self._episodes,
            "loop_lag_p99_ms": self._lag.p99_ms(),
            **sampler,
            **self._parts.sandboxes.stats(),
        }

    async def close(self) -> None:
        self._lag.stop()


def result_of(trace: Trace, ref: TraceRef | None = None) -> EpisodeResult:
    """What the controller needs to know of a trace."""
    calls = trace.calls()
    acting = [turn for turn in trace.turns if turn.calls]
    tools = Counter(f"tool/{call.problem or call.name}" for call in calls)
    stats = {
        **trace.stats,
        "turns": float(len(trace.turns)),
        "calls": float(len(calls)),
        "bad_calls": float(sum(call.problem is not None for call in calls)),
        "refused_calls": float(sum(result.problem == "tool" for result in trace.results())),
        "repaired_calls": float(sum(bool(call.repair) for call in calls)),
        "tokens": float(trace.sampled_tokens()),
        "context_tokens": float(max((len(branch) for branch in trace.branches), default=0)),
        "parallel_width": len(calls) / len(acting) if acting else 0.0,
        **{name: float(count) for name, count in tools.items()},
    }
    return EpisodeResult(
        key=trace.key,
        group=trace.group,
        trace=ref,
        verdict=trace.verdict,
        scores=trace.scores,
        reward=float(trace.stats.get("reward", 0.0)),
        oldest_version=trace.oldest_version(),
        stats=stats,
        stop=trace.stop,
        faults=trace.faults,
    )
