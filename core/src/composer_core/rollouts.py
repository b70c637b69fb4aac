"""The RL stage: the ledger decides, the executor runs, the trainer steps, the pipeline commits.

One loop for every staleness: whatever the ledger issues is submitted; whenever it gives out a batch, that batch is
scored, credited and trained while other episodes go on; with `max_staleness = 0` the ledger itself makes this
synchronous. Finished episodes are journaled before anything depends on them.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import attrs
from attrs import define, field, frozen

from composer_core import statistics
from composer_core.batches import epoch_order, sequences_of
from composer_core.config import RlStage
from composer_core.episode import fault_of
from composer_core.errors import ComposerError, TrainerError
from composer_core.evaluate import Run, cancel_all, limited, means, request_for
from composer_core.events import EpisodeCancelled, EpisodeEnded, Event, FaultRecorded, GroupScored
from composer_core.executor import result_of
from composer_core.ledger import Group, Issue, Ledger, LedgerConfig, SlotResult
from composer_core.probing import Probe
from composer_core.protocols import Executor, Store, Trainer
from composer_core.scoring import Reward, spread, total
from composer_core.traces import decode
from composer_core.types import (
    EpisodeRequest,
    EpisodeResult,
    Fault,
    GroupRewards,
    Sampling,
    SlotKey,
    StepStats,
    Task,
    Trace,
    TrainBatch,
    TrainSequence,
)
from composer_core.watching import STATUS_S, Watch

RATE_TICKS = round(60 / STATUS_S)
"""Looks of one minute, over which rates are told."""
OLDEST = 8
"""Running episodes that a look names."""

T = TypeVar("T")


@frozen
class RlParts:
    """What the stage works with."""

    stage: RlStage
    algorithm_id: str
    tasks: Sequence[Task]
    executor: Executor
    trainer: Trainer
    store: Store
    group_rewards: tuple[Reward, ...]
    run_seed: int
    limits: Mapping[str, Any]
    emit: Callable[[Event], None]
    journal: Callable[[list[dict[str, Any]]], None]
    """Write journal entries down."""
    write: Callable[[str, bytes], None] = lambda name, data: None
    """Replace a file of the run folder that a resumed run does without."""
    attempt: Run | None = None
    """Runs an episode beside the ledger's; None where the trainer does not compare itself with a probe."""

    def request(self, issue: Issue, task: Task) -> EpisodeRequest:
        """The order to run one slot of a group."""
        request = request_for(task, SlotKey(task.id, issue.attempt, self.stage.name), self.run_seed, self.limits)
        return attrs.evolve(
            request,
            group=f"{self.stage.name}:{issue.group}",
            sampling=Sampling(self.stage.temperature, self.stage.router_replay),
        )


def ledger_for(stage: RlStage, tasks: Sequence[Task], seed: int, deterministic: bool) -> Ledger:
    """A fresh ledger; the n-th group's task is the n-th of an endless epoch-wise shuffle."""
    names = [field.name for field in attrs.fields(LedgerConfig) if field.name != "in_order"]
    config = LedgerConfig(**{name: getattr(stage, name) for name in names}, in_order=deterministic)

    def task_of(number: int) -> str:
        return tasks[epoch_order(len(tasks), 1, number, seed, stage.name)[0]].id

    return Ledger(config, task_of)


@define
class RlLoop:
    """Runs one stage from wherever `ledger` stands."""

    parts: RlParts
    ledger: Ledger
    after_step: Callable[[StepStats], Awaitable[None]]
    """Commit, publish and evaluate; called when a step is applied."""
    _running: dict[asyncio.Task[EpisodeResult], tuple[Issue, float]] = field(factory=dict)
    """Episodes in flight, oldest first, and when each began."""
    _places: dict[tuple[int, int], asyncio.Task[EpisodeResult]] = field(factory=dict)
    """The same by group and slot."""
    _ends: asyncio.Queue[asyncio.Task[Any]] = field(factory=asyncio.Queue)
    """Tasks in the order in which they ended: waiting for thousands at once would cost more than their episodes."""
    _by_id: dict[str, Task] = field(init=False)
    _probe: Probe = field(init=False)
    _last_step: float = field(factory=time.perf_counter)
    _began: float = field(factory=time.perf_counter)
    _ended: int = 0
    """Episodes that ended in this process since the last step."""
    _lengths: list[float] = field(factory=list)
    """Tokens of the valid ones among them."""
    _done: Counter[str] = field(factory=Counter)
    """Episodes that ended in this process, and their tokens."""
    _rates: deque[tuple[float, int, int]] = field(factory=lambda: deque(maxlen=RATE_TICKS))
    """The same at the last looks: when, episodes, tokens."""
    _doing: str = ""
    """What the trainer's side is busy with."""
    _unscored: int = 0
    """Episodes of groups in a row whose group-scope reward broke."""

    def __attrs_post_init__(self) -> None:
        self._by_id = {task.id: task for task in self.parts.tasks}
        self._probe = Probe(self.parts)

    async def run(self) -> None:
        """Until the stage's last step is applied.

        Raises:
            TrainerError: voids or non-finite steps in a row, or a standstill; everything finished is journaled.
        """
        stage, loop = self.parts.stage, asyncio.get_running_loop()
        told: list[str] = []

        def alarm(text: str) -> None:
            told.append(text)
            self.parts.emit(FaultRecorded(fault=Fault("watchdog", "core", text)))
            if stage.on_stall == "stop":
                loop.call_soon_threadsafe(limit.reschedule, loop.time())

        watch = Watch(self.status, self.parts.write, stage.stall_s, alarm)
        try:
            async with asyncio.timeout(None) as limit, watch.over():
                await self._run()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise TrainerError(
                f"stage {stage.name} stands still: {told[-1]}",
                expected=f"an episode, a token or a step within stall_s = {stage.stall_s:g}",
                fix="mend what it waits for, or set a longer stall_s; then resume",
            ) from error

    async def _run(self) -> None:
        step: asyncio.Task[StepStats] | None = None
        try:
            while self.ledger.step < self.ledger.config.steps:
                self._submit()
                if step is None:
                    batch = self.ledger.take()
                    if batch is not None:
                        self._doing = f"training step {self.ledger.step + 1}"
                        step = self._start(self._train(batch))
                ended = await self._ends.get()
                if step is None or ended is not step:
                    self._collect(ended)
                else:
                    stats, step = await step, None
                    # Alone: whatever is admitted or journaled until the version is out would carry a wrong one.
                    self.ledger.applied()
                    self._doing = f"committing and publishing version {self.ledger.version}"
                    await self.after_step(stats)
                    if self.ledger.step < self.ledger.config.steps:
                        self._probe.published(self.ledger.version)
                    self._doing = ""
        finally:
            await cancel_all([*self._running, *([step] if step else [])])
            await self._probe.close()

    def _submit(self) -> None:
        """Cancel what nobody waits for, and fill the places that are free: nothing queues inside the executor."""
        while self.ledger.abandoned:
            if task := self._places.get(self.ledger.abandoned.pop()):
                task.cancel()
        free = self.parts.executor.places() - len(self._running)
        for issue in self.ledger.issue(free):
            request = self.parts.request(issue, self._by_id[issue.task_id])
            task = self._start(self.parts.executor.submit(request))
            self._running[task] = issue, time.perf_counter()
            self._places[issue.group, issue.slot] = task
        self.parts.journal(self.ledger.drain())

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._ends.put_nowait)
        return task

    def _collect(self, ended: asyncio.Task[Any]) -> None:
        issue, _ = self._running.pop(ended)
        del self._places[issue.group, issue.slot]
        if ended.cancelled():
            key = SlotKey(issue.task_id, issue.attempt, self.parts.stage.name)
            self.parts.emit(EpisodeCancelled(episode_id=key.episode_id))
            self.ledger.lose(issue.group, issue.slot)
            return
        result: EpisodeResult = ended.result()
        self._ended += 1
        if result.verdict.valid:
            self._lengths.append(result.stats.get("tokens", 0.0))
        self._done.update(episodes=1, tokens=int(result.stats.get("tokens", 0)))
        self.parts.emit(EpisodeEnded(result=result, purpose=self.parts.stage.name))
        for fault in result.faults:
            self.parts.emit(FaultRecorded(fault=fault, episode_id=result.key.episode_id))
        try:
            if result.verdict.lost:
                self.ledger.lose(issue.group, issue.slot)
            else:
                self.ledger.finish(issue.group, issue.slot, slot_result(result))
        finally:
            self.parts.journal(self.ledger.drain())

    # --- a look at it ---

    def status(self) -> dict[str, Any]:
        """Where the stage stands, as plain data; `status.json` (rundir) holds it. At most once a second."""
        now, done = time.perf_counter(), self._done
        self._rates.append((now, done["episodes"], done["tokens"]))
        since, episodes, tokens = self._rates[0]
        minute_s = max(now - since, 1e-9)
        oldest = [
            {"group": issue.group, "slot": issue.slot, "task": issue.task_id, "for_s": now - began}
            for issue, began in itertools.islice(self._running.values(), OLDEST)
        ]
        return {
            "time_s": time.time(),
            "stage": self.parts.stage.name,
            "step": self.ledger.step,
            "steps": self.parts.stage.steps,
            "version": self.ledger.version,
            "doing": self._doing,
            "waits_for": self._waits_for(oldest),
            "elapsed_s": now - self._began,
            "episodes": done["episodes"],
            "tokens": done["tokens"],
            "episodes_per_s": (done["episodes"] - episodes) / minute_s,
            "tokens_per_s": (done["tokens"] - tokens) / minute_s,
            "running": oldest,
            "ledger": self.ledger.table(),
            "executor": dict(self.parts.executor.stats()),
        }

    def _waits_for(self, oldest: Sequence[Mapping[str, Any]]) -> str:
        if self.ledger.step >= self.parts.stage.steps:
            return "nothing: the stage has ended"
        waits = [self._doing] if self._doing else []
        if oldest:
            one = oldest[0]
            where = f"group {one['group']} slot {one['slot']} (task {one['task']}) for {one['for_s']:,.0f} s"
            waits.append(f"{len(self._running)} running episodes, the oldest {where}")
        return " and ".join(waits) or "nothing: no slot may be issued and no batch is ready"

    # --- one step ---

    async def _train(self, groups: list[Group]) -> StepStats:
        staleness = max((self.ledger.version - group.oldest() for group in groups), default=0)
        groups, traces, rewards = await self._scored(groups)
        batch = await self._probe.beside(self._batch(groups, traces, rewards), self.ledger.version)
        started = time.perf_counter()
        stats = await self.parts.trainer.step(batch)
        metrics = {
            **stats.metrics,
            **self._metrics(groups, traces, rewards),
            "staleness_max": float(staleness),
            "train_s": time.perf_counter() - started,
            "step_s": time.perf_counter() - self._last_step,
            "skipped": float(stats.skipped),
        }
        self._last_step, self._ended, self._lengths = time.perf_counter(), 0, []
        return attrs.evolve(stats, metrics=metrics)

    async def _scored(self, groups: list[Group]) -> tuple[list[Group], list[list[Trace]], list[list[float]]]:
        """The groups with their traces and rewards; one whose group-scope reward breaks is void and left out.

        It is not issued again: the same traces would break the reward the same way.

        Raises:
            ComposerError: it broke for every group of the step, or for as many in a row as `max_voids_in_a_row` has.
        """
        kept, traces, rewards = [], [], []
        failed: ComposerError | None = None
        for group in groups:
            rows = await asyncio.to_thread(self._traces, group)
            try:
                rewards.append(await self._rewards(group, rows))
                self._unscored = 0
            except ComposerError as error:
                failed = error
                self._unscored += len(group.slots)
                self.parts.emit(FaultRecorded(fault=fault_of("reward", error)))
                self.parts.emit(GroupScored(group=group.id, task_id=group.task_id, rewards=(), voids=len(group.slots)))
                continue
            kept.append(group)
            traces.append(rows)
        if failed and (not kept or self._unscored >= self.parts.stage.max_voids_in_a_row):
            raise failed
        return kept, traces, rewards

    def _traces(self, group: Group) -> list[Trace]:
        return [decode(self.parts.store.get(result.trace)) for result in group.valid() if result.trace]

    async def _rewards(self, group: Group, traces: list[Trace]) -> list[float]:
        """Episode rewards plus group-scope ones, which need all members; the traces are given the scores."""
        available = {"task": limited(self._by_id[group.task_id].view, self.parts.limits)}
        columns = [await reward.score_group(traces, available) for reward in self.parts.group_rewards]
        scores = tuple(zip(*columns, strict=True))
        rewards = [result.reward for result in group.valid()]
        if scores:
            rewards = [value + total(row) for value, row in zip(rewards, scores, strict=True)]
            traces[:] = [attrs.evolve(one, scores=one.scores + row) for one, row in zip(traces, scores, strict=True)]
        self.parts.emit(
            GroupScored(
                group=group.id,
                task_id=group.task_id,
                rewards=tuple(rewards),
                episodes=tuple(trace.key.episode_id for trace in traces),
                group_scores=scores,
                voids=len(group.slots) - len(rewards),
            )
        )
        return rewards

    def _batch(self, groups: list[Group], traces: list[list[Trace]], rewards: list[list[float]]) -> TrainBatch:
        sequences: list[TrainSequence] = []
        scored: list[GroupRewards] = []
        episodes = 0
        for group, rows, values in zip(groups, traces, rewards, strict=True):
            numbers = tuple(range(episodes, episodes + len(rows)))
            episodes += len(rows)
            scored.append(GroupRewards(group.id, numbers, tuple(values)))
            for number, trace in zip(numbers, rows, strict=True):
                sequences += sequences_of(trace, number, self.parts.stage.temperature, self.ledger.version)
        return TrainBatch(
            stage=self.parts.stage.name,
            objective=self.parts.algorithm_id,
            sequences=tuple(sequences),
            episodes=episodes,
            groups=tuple(scored),
            progress=self.ledger.step / self.parts.stage.steps,
        )

    def _metrics(self, groups: list[Group], traces: list[list[Trace]], rewards: list[list[float]]) -> dict[str, float]:
        """From the traces, which hold what ended before a resume as well."""
        by_group = [[result_of(trace) for trace in row] for row in traces]
        valid = [result for row in by_group for result in row]
        solved = [statistics.mean([float(r.verdict.outcome.value == "solved") for r in row]) for row in by_group if row]
        flat = [value for row in rewards for value in row]
        counters = self.ledger.counters
        ended = counters["valid"] + counters["void"]
        return {
            "reward_mean": statistics.mean(flat),
            "reward_mean_ci95": statistics.half_width([statistics.mean(row) for row in rewards if row]),
            "solve_rate": statistics.mean([float(r.verdict.outcome.value == "solved") for r in valid]),
            "solve_rate_ci95": statistics.half_width(solved),
            "best_of_group": statistics.mean([max(row) for row in rewards if row]),
            "flat_share": statistics.mean([float(len(set(row)) <= 1) for row in rewards]),
            "void_share": counters["void"] / max(1, ended),
            "dropped_tokens": float(counters["dropped_tokens"]),
            "lost": float(counters["lost"]),
            **_spread("generated", self._lengths),
            **_spread("trained", [result.stats.get("tokens", 0.0) for result in valid]),
            "episodes_per_s": self._ended / max(1e-9, time.perf_counter() - self._last_step),
            **means(valid),
            **spread(traces),
        }


def _spread(name: str, lengths: Sequence[float]) -> dict[str, float]:
    """Tokens an episode by percentile: where those trained are shorter than those generated, long ones were dropped."""
    ordered = sorted(lengths)
    return {f"tokens_p{share}_{name}": ordered[len(ordered) * share // 100] for share in (10, 50, 90, 99) if ordered}


def slot_result(result: EpisodeResult) -> SlotResult:
    """What the ledger keeps of an episode."""
    return SlotResult(
        valid=result.verdict.valid,
        reward=result.reward,
        cause=result.verdict.cause or (None if result.verdict.valid else result.verdict.outcome.value),
        blamed=result.faults[-1].plugin if result.faults and not result.verdict.valid else "",
        oldest_version=result.oldest_version,
        trace=result.trace.uri if result.trace else None,
        sha256=result.trace.sha256 if result.trace else None,
        tokens=int(result.stats.get("tokens", 0)),
    )
