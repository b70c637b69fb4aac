"""From a run file to a trained policy: assemble, run the stages, commit, publish, evaluate, summarize.

The pipeline owns the order of things and computes nothing itself: `commits` keeps what is true after a kill, `moments`
evaluates, `rollouts` is the loop of an rl stage. Resuming starts from the last commit: stages and steps in it are not
repeated, finished episodes of the journal are kept, and demonstrations that were written down are not rolled out again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import attrs
from attrs import define, field

from composer_core.assembly import Assembly
from composer_core.batches import epoch_order, pretrain_windows, sequences_of
from composer_core.commits import Commits
from composer_core.config import PretrainStage, RlStage, RunConfig, SftStage, Stage
from composer_core.errors import ConfigError
from composer_core.evaluate import gather_all, request_for
from composer_core.events import EpisodeEnded, Event, FaultRecorded, RunEnded, StageEnded, StageStarted, StepEnded
from composer_core.ledger import Ledger
from composer_core.moments import Moments
from composer_core.protocols import Executor, Trainer
from composer_core.rollouts import RlLoop, RlParts, ledger_for
from composer_core.rundir import Commit, RunDir
from composer_core.summary import Meter, summarize_run
from composer_core.traces import decode
from composer_core.types import EpisodeRequest, EpisodeResult, SlotKey, StepStats, Trace, TrainBatch

LOSSES = 8
"""Times that an episode outside the RL loop is asked for again because its process vanished."""


@define
class Pipeline:
    """One run in one process; single-use."""

    assembly: Assembly
    run_dir: RunDir
    emit: Callable[[Event], None]
    flush: Callable[[], object] = lambda: None
    """Wait until trackers have written what was emitted; called with every commit."""
    resumed: Commit | None = None
    rollouts_only: bool = False
    """Roll out and grade the rl stages' first step without training anything."""
    meter: Meter = field(factory=Meter)
    """Holds what earlier processes of this run counted."""
    _seen: dict[str, float] = field(factory=dict)
    _trainer: Trainer = field(init=False)
    _executor: Executor = field(init=False)
    _commits: Commits = field(init=False)
    _moments: Moments = field(init=False)

    @property
    def config(self) -> RunConfig:
        return self.assembly.config

    async def run(self) -> dict[str, Any]:
        """All stages and evaluations; returns the summary that is also written to summary.json."""
        await self._open()
        settings = self.assembly.choices.stage_settings()
        first_rl = next((i for i, c in enumerate(self.config.stages) if isinstance(c.stage, RlStage)), None)
        for index, choice in enumerate(self.config.stages):
            if index == first_rl:
                await self._moments.measure("before")
            if self._commits.last is None or self._commits.last.stage <= index:
                await self._stage(index, choice.stage, settings[index])
        if first_rl is None:
            await self._moments.measure("before")
        await self._moments.measure("after")
        if self._commits.last:
            weights = self.run_dir.path / self._commits.last.weights.uri
            self.assembly.export_model(weights, self.run_dir.path / "model")
        summary = self._summarize()
        self.run_dir.write_json("summary.json", summary)
        self.emit(RunEnded(status="finished", summary=summary))
        return summary

    async def _open(self) -> None:
        """Build what the stages share, and go back to the last commit."""
        self._executor = self.assembly.get("executors")
        await self._executor.start()
        self._keep_harness()
        self._trainer = self._executor.trainer()
        self._commits = Commits(self.assembly, self._trainer, self.run_dir, self._tell, self.flush, self.resumed)
        self._moments = Moments(self.assembly, self._commits, self._attempt, self._tell)
        await self._commits.restore()

    def _keep_harness(self) -> None:
        """Harness and tokenizer go into the run folder; those of a resumed run are compared first."""
        harness, recorded = self.assembly.harness(), self.run_dir.read_json("harness.json")
        if recorded is not None:
            harness.refuse_other(recorded, str(self.run_dir.path / "harness.json"))
        self.run_dir.write_json("harness.json", harness.to_json())
        self.assembly.get("tokenizer").save(self.run_dir.path / "tokenizer")

    # --- stages ---

    async def _stage(self, index: int, stage: Stage, settings: Any) -> None:
        commit = self._commits.of_stage(index)
        done = commit.step if commit else 0
        if done >= stage.steps:
            return
        self._tell(StageStarted(stage=stage.name, kind=stage.kind, steps=stage.steps))
        started = time.perf_counter()
        await self._trainer.begin(stage.name, settings)
        if isinstance(stage, RlStage):
            await self._reinforce(index, stage, commit)
        elif isinstance(stage, SftStage):
            await self._imitate(index, stage, done)
        else:
            await self._pretrain(index, stage, done)
        self._tell(StageEnded(stage=stage.name, summary={"wall_s": time.perf_counter() - started}))

    async def _pretrain(self, index: int, stage: PretrainStage, done: int) -> None:
        get = self.assembly.get
        special = self.assembly.build_context().settings["special_tokens"]
        windows = pretrain_windows(stage, get("tasks"), get("tokenizer"), special, self.config.seed)
        for step in range(done, stage.steps):
            sequences = tuple(windows.batch(step))
            batch = TrainBatch(stage.name, "nll", sequences, len(sequences), progress=step / stage.steps)
            await self._supervised_step(index, stage, step, batch)

    async def _imitate(self, index: int, stage: SftStage, done: int) -> None:
        traces = await self._demonstrations(stage)
        if not traces:
            raise ConfigError("a stage has no demonstrations to train on", where=f"stages.{stage.name}")
        for step in range(done, stage.steps):
            chosen = epoch_order(len(traces), stage.batch_episodes, step, self.config.seed, stage.name)
            rows = [sequences_of(traces[number], place, 1.0) for place, number in enumerate(chosen)]
            sequences = tuple(sequence for row in rows for sequence in row)
            batch = TrainBatch(stage.name, "nll", sequences, len(chosen), progress=step / stage.steps)
            await self._supervised_step(index, stage, step, batch)

    async def _supervised_step(self, index: int, stage: Stage, step: int, batch: TrainBatch) -> None:
        stats = await self._trainer.step(batch)
        self._report_step(stage, step + 1, stats, self._commits.version)
        last = step + 1 == stage.steps
        if last or (step + 1) % self.config.checkpoints.supervised_every_steps == 0:
            await self._commits.commit(index, stage.name, step + 1, version=self._commits.version + 1, publish=last)

    async def _demonstrations(self, stage: SftStage) -> list[Trace]:
        """Roll out what is not on disk yet; each finished demonstration is written down."""
        tasks = self.assembly.get("tasks").tasks(stage.split)
        path = self.run_dir.path / "demonstrations" / f"{stage.name}.jsonl"
        have = {row["number"]: row for row in self.run_dir.lines(path)}
        store = self.assembly.get("stores")

        async def one(number: int) -> dict[str, Any]:
            task = tasks[number % len(tasks)]
            key = SlotKey(task.id, number // len(tasks), stage.name)
            request = attrs.evolve(
                request_for(task, key, self.config.seed, self.config.limits),
                sampler=stage.sampler,
                graded=stage.keep == "solved",
            )
            result = await self._attempt(request, stage.name)
            row = {
                "number": number,
                "trace": result.trace.uri if result.trace else None,
                "outcome": result.verdict.outcome.value,
            }
            self.run_dir.append(path, [row])
            return row

        rows = await gather_all([one(n) for n in range(stage.episodes) if n not in have])
        rows = sorted([*have.values(), *rows], key=lambda row: int(row["number"]))
        wanted = ("solved",) if stage.keep == "solved" else ("solved", "failed", "ungraded")
        return [decode(store.get(row["trace"])) for row in rows if row["outcome"] in wanted and row["trace"]]

    async def _reinforce(self, index: int, stage: RlStage, commit: Commit | None) -> None:
        commits, tasks = self._commits, self.assembly.get("tasks").tasks(stage.split)
        ledger = ledger_for(stage, tasks, self.config.seed, self.config.deterministic)
        ledger.version = commits.version
        if commit and commit.ledger:
            ledger.restore(commit.ledger)
            journal = self.run_dir.lines(self.run_dir.journal(commit.number))
            self.meter.add("episodes_kept_on_resume", ledger.replay(journal))
        parts = self._parts(stage, tasks)

        async def after_step(stats: StepStats) -> None:
            self._report_step(stage, ledger.step, stats, ledger.version - 1)
            last, look = ledger.step == stage.steps, _looks(stage, ledger.step)
            if last or look or ledger.step % self.config.checkpoints.every_steps == 0:  # `best` names a checkpoint
                state = await asyncio.to_thread(ledger.to_json)  # it rests until the version is out
                await commits.commit(index, stage.name, ledger.step, version=ledger.version, ledger=state)
            else:
                await commits.publish(ledger.version)
            if look:
                await self._moments.measure("during", at=f"step-{ledger.step}")

        if self.rollouts_only:
            await self._roll_out_only(ledger, parts)
            return
        if commit is None:  # a resumed run must find this stage's ledger
            state = ledger.to_json()
            await commits.commit(index, stage.name, 0, version=ledger.version, ledger=state, publish=False)
        if _looks(stage, ledger.step):  # a resumed run may have been interrupted while it looked
            await self._moments.measure("during", at=f"step-{ledger.step}")
        await RlLoop(parts, ledger, after_step).run()

    def _parts(self, stage: RlStage, tasks: Any) -> RlParts:
        algorithm = self.assembly.choices.one("algorithms")
        compares = self.assembly.choices.one("trainers").entry.spec.capabilities
        return RlParts(
            stage=stage,
            algorithm_id=algorithm.entry.id,
            tasks=tasks,
            executor=self._executor,
            trainer=self._trainer,
            store=self.assembly.get("stores"),
            group_rewards=tuple(r for r in self.assembly.get("rewards") if r.spec.scope == "group"),
            run_seed=self.config.seed,
            limits=self.config.limits,
            emit=self._tell,
            journal=self._commits.journal,
            write=partial(self.run_dir.write, durable=False),
            attempt=self._attempt if "trainer.parity" in compares else None,
        )

    async def _roll_out_only(self, ledger: Ledger, parts: RlParts) -> None:
        by_id = {task.id: task for task in parts.tasks}
        requests = [parts.request(issue, by_id[issue.task_id]) for issue in ledger.issue()]
        await gather_all([self._attempt(request, parts.stage.name) for request in requests])

    async def _attempt(self, request: EpisodeRequest, purpose: str) -> EpisodeResult:
        """Run an episode outside the RL loop, again if it is lost, and tell of its end and of what broke in it."""
        for _ in range(1 + LOSSES):
            result: EpisodeResult = await self._executor.submit(request)
            self._tell(EpisodeEnded(result=result, purpose=purpose))
            for fault in result.faults:
                self._tell(FaultRecorded(fault=fault, episode_id=result.key.episode_id))
            if not result.verdict.lost:
                break
        return result

    # --- reports ---

    def _tell(self, event: Event) -> None:
        self.meter.see(event)
        self.emit(event)

    def _report_step(self, stage: Stage, step: int, stats: StepStats, version: int) -> None:
        metrics = self._rates(stats.metrics)
        self._tell(StepEnded(stage=stage.name, step=step, steps=stage.steps, version=version, metrics=metrics))

    def _rates(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """The trainer's rate under its full name, and the sampler's since the last step."""
        found = {("trainer_tokens_per_s" if name == "tokens_per_s" else name): v for name, v in metrics.items()}
        now = self._executor.stats()
        sampled, busy_s = (now.get(f"sampler/{key}", 0.0) - self._seen.get(key, 0.0) for key in ("tokens", "busy_s"))
        self._seen = {key: now.get(f"sampler/{key}", 0.0) for key in ("tokens", "busy_s")}
        return {**found, "sampler_tokens_per_s": sampled / busy_s} if sampled and busy_s > 0 else found

    def _summarize(self) -> dict[str, Any]:
        resumed_from = self.resumed.number if self.resumed else None
        found = self._moments.found
        summary = summarize_run(self.config, found, self.meter, self._executor.stats(), resumed_from)
        return {**summary, "rollouts_only": self.rollouts_only}


def _looks(stage: RlStage, step: int) -> bool:
    """Whether the policy is evaluated after this step; after the last one the run's own evaluation follows."""
    return bool(stage.evaluate_every) and 0 < step < stage.steps and step % stage.evaluate_every == 0
