"""From a run file to a trained policy: assemble, run the stages, commit, publish, evaluate, summarize.

The pipeline owns the run folder and the order of things; it computes nothing itself. A commit holds weights, optimizer,
random state and ledger; the version is published to the samplers only after it. Resuming starts from the last commit:
stages and steps in it are not repeated, finished episodes of the journal are kept, evaluations that were written down
are not run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import define, field

from composer_core.assembly import Assembly
from composer_core.batches import epoch_order, pretrain_windows, sequences_of
from composer_core.config import EvaluationSet, PretrainStage, RlStage, RunConfig, SftStage, Stage
from composer_core.errors import ConfigError
from composer_core.evaluate import Evaluation, Run, evaluate, gather_all, request_for
from composer_core.events import (
    CheckpointSaved,
    EpisodeEnded,
    Evaluated,
    Event,
    FaultRecorded,
    RunEnded,
    StageEnded,
    StageStarted,
    StepEnded,
    WeightsPublished,
)
from composer_core.executor import result_of
from composer_core.protocols import Executor, Trainer
from composer_core.rollouts import RlLoop, RlParts, ledger_for
from composer_core.rundir import Commit, RunDir, checksums, sha256_of
from composer_core.summary import Meter, summarize_run
from composer_core.traces import decode
from composer_core.types import EpisodeRequest, EpisodeResult, SlotKey, StepStats, Trace, TrainBatch, WeightsRef


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
    commit: Commit | None = None
    meter: Meter = field(factory=Meter)
    evaluations: dict[tuple[str, str], Evaluation] = field(factory=dict)
    _seen: dict[str, float] = field(factory=dict)
    _trainer: Trainer = field(init=False)
    _executor: Executor = field(init=False)

    @property
    def config(self) -> RunConfig:
        return self.assembly.config

    async def run(self) -> dict[str, Any]:
        """All stages and evaluations; returns the summary that is also written to summary.json."""
        self._executor = self.assembly.get("executors")
        await self._executor.start()
        self._keep_harness()
        self._trainer = self.assembly.get("trainers")
        await self._restore()
        settings = self.assembly.choices.stage_settings()
        first_rl = next((i for i, c in enumerate(self.config.stages) if isinstance(c.stage, RlStage)), None)
        for index, choice in enumerate(self.config.stages):
            if index == first_rl:
                await self._evaluate("before")
            if self.commit is None or self.commit.stage <= index:
                await self._stage(index, choice.stage, settings[index])
        if first_rl is None:
            await self._evaluate("before")
        await self._evaluate("after")
        if self.commit:
            self.assembly.export_model(self.run_dir.path / self.commit.weights.uri, self.run_dir.path / "model")
        summary = self._summarize()
        self.run_dir.write_json("summary.json", summary)
        self.emit(RunEnded(status="finished", summary=summary))
        return summary

    def _keep_harness(self) -> None:
        """Harness and tokenizer go into the run folder; those of a resumed run are compared first."""
        harness, recorded = self.assembly.harness(), self.run_dir.read_json("harness.json")
        if recorded is not None:
            harness.refuse_other(recorded, str(self.run_dir.path / "harness.json"))
        self.run_dir.write_json("harness.json", harness.to_json())
        self.assembly.get("tokenizer").save(self.run_dir.path / "tokenizer")

    # --- stages ---

    async def _stage(self, index: int, stage: Stage, settings: Any) -> None:
        done = self.commit.step if self.commit and self.commit.stage == index else 0
        if done >= stage.steps:
            return
        self.emit(StageStarted(stage=stage.name, kind=stage.kind, steps=stage.steps))
        started = time.perf_counter()
        await self._trainer.begin(stage.name, settings)
        if isinstance(stage, RlStage):
            await self._reinforce(index, stage)
        elif isinstance(stage, SftStage):
            await self._imitate(index, stage, done)
        else:
            await self._pretrain(index, stage, done)
        self.emit(StageEnded(stage=stage.name, summary={"wall_s": time.perf_counter() - started}))

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
        self._report_step(stage, step + 1, stats)
        last = step + 1 == stage.steps
        if last or (step + 1) % self.config.checkpoints.supervised_every_steps == 0:
            await self._commit(index, step + 1, publish=last)

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
            result: EpisodeResult = await self._executor.submit(request)
            self._ended(result, stage.name, self.emit)
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

    async def _reinforce(self, index: int, stage: RlStage) -> None:
        tasks = self.assembly.get("tasks").tasks(stage.split)
        ledger = ledger_for(stage, tasks, self.config.seed, self.config.deterministic)
        ledger.version = self._version
        if self.commit and self.commit.stage == index and self.commit.ledger:
            ledger.restore(self.commit.ledger)
            journal = self.run_dir.lines(self.run_dir.journal(self.commit.number))
            self.meter.add("episodes_kept_on_resume", ledger.replay(journal))
        algorithm = self.assembly.choices.entry("algorithms")
        if algorithm is None:
            raise ConfigError(
                "an rl stage needs an algorithm", where="algorithm.use", fix="policy/dr_grpo, for example"
            )
        parts = RlParts(
            stage=stage,
            algorithm_id=algorithm.id,
            tasks=tasks,
            executor=self._executor,
            trainer=self._trainer,
            store=self.assembly.get("stores"),
            group_rewards=tuple(r for r in self.assembly.get("rewards") if r.spec.scope == "group"),
            run_seed=self.config.seed,
            limits=self.config.limits,
            emit=self._emit_metered,
            journal=self._journal,
        )

        async def after_step(stats: StepStats) -> None:
            self._report_step(stage, ledger.step, stats)
            self.meter.rl_step(stats.metrics)
            last = ledger.step == stage.steps
            look = _looks(stage, ledger.step)
            if last or look or ledger.step % self.config.checkpoints.every_steps == 0:  # `best` names a checkpoint
                await self._commit(index, ledger.step, ledger=ledger.to_json(), version=ledger.version)
            else:
                await self._publish(await self._export(ledger.version))
            if look:
                await self._evaluate("during", at=f"step-{ledger.step}")

        if self.rollouts_only:
            await self._roll_out_only(ledger, parts)
            return
        if self.commit is None or self.commit.stage < index:  # a resumed run must find this stage's ledger
            await self._commit(index, 0, ledger=ledger.to_json(), version=ledger.version, publish=False)
        if _looks(stage, ledger.step):  # a resumed run may have been interrupted while it looked
            await self._evaluate("during", at=f"step-{ledger.step}")
        await RlLoop(parts, ledger, after_step).run()

    async def _roll_out_only(self, ledger: Any, parts: RlParts) -> None:
        by_id = {task.id: task for task in parts.tasks}
        requests = [parts.request(issue, by_id[issue.task_id]) for issue in ledger.issue()]
        for result in await gather_all([self._executor.submit(request) for request in requests]):
            self._ended(result, parts.stage.name, self._emit_metered)

    # --- commits and versions ---

    @property
    def _version(self) -> int:
        return self.commit.weights.version if self.commit else 0

    async def _restore(self) -> None:
        """Back to the last commit, or publish the first weights."""
        self.commit = self.resumed
        if self.commit:
            same_tokenizer(self.assembly, self.commit, self.run_dir.path)
            await self._trainer.load(self.run_dir.checkpoint(self.commit.number))
            await self._publish(self.commit.weights)
        else:
            await self._publish(await self._export(0))

    async def _export(self, version: int) -> WeightsRef:
        uri = f"weights/{version}.safetensors"
        path = self.run_dir.path / uri
        part = path.with_suffix(".part")
        await self._trainer.export(part)
        part.replace(path)
        return WeightsRef(version, uri, sha256_of(path))

    async def _publish(self, weights: WeightsRef) -> None:
        await self._executor.publish(weights)
        self.emit(WeightsPublished(weights=weights))

    async def _commit(
        self,
        stage: int,
        step: int,
        *,
        ledger: dict[str, Any] | None = None,
        version: int | None = None,
        publish: bool = True,
    ) -> None:
        """Everything that belongs together, in one manifest; then the version may be published."""
        number = self.commit.number + 1 if self.commit else 1
        folder = self.run_dir.fresh_checkpoint(number)
        await self._trainer.save(folder)
        weights = await self._export(self._version + 1 if version is None else version)
        commit = Commit(
            number=number,
            stage=stage,
            step=step,
            weights=weights,
            ledger=ledger,
            checksums=checksums(folder),
            tokenizer=self.assembly.get("tokenizer").fingerprint,
            best=self.commit.best if self.commit else None,
        )
        self.run_dir.commit(commit, self.config.checkpoints.keep)
        self.commit = commit
        name = self.config.stages[stage].stage.name
        self.emit(CheckpointSaved(path=str(folder), stage=name, step=step, version=weights.version))
        self.flush()
        if publish:
            await self._publish(weights)

    def _journal(self, entries: list[dict[str, Any]]) -> None:
        if self.commit:
            self.run_dir.append(self.run_dir.journal(self.commit.number), entries)

    # --- evaluation ---

    async def _evaluate(self, when: str, at: str | None = None) -> None:
        """Every set of a moment: what was written down, the rest measured now."""
        moment = at or when
        names = {
            set_: f"evaluations/{moment}-{set_.name}.json" for set_ in self.config.evaluations if when in set_.when
        }
        known = {set_: self.run_dir.read_json(name) for set_, name in names.items()}
        missing = [set_ for set_, data in known.items() if data is None]
        tasks_of, limits = self.assembly.get("tasks").tasks, self.config.limits
        found = await evaluate(missing, moment, tasks_of, self._attempts(moment), self.config.seed, limits)
        for set_, measured in zip(missing, found, strict=True):
            known[set_] = measured.to_json()
            if measured.rows:  # what measured nothing is tried again after a resume
                self.run_dir.write_json(names[set_], known[set_])
        step = self.commit.step if self.commit else 0
        for set_, data in known.items():
            self.evaluations[moment, set_.name] = evaluation = Evaluation(**data)
            self.emit(Evaluated(name=f"{moment}/{set_.name}", step=step, metrics=evaluation.metrics))
            self._keep_best(set_, evaluation)

    def _attempts(self, moment: str) -> Run:
        """Runs attempts that are not on disk yet; each that ends is written down."""
        path = self.run_dir.path / "evaluations" / f"{moment}.jsonl"
        have = {row["id"]: row["trace"] for row in self.run_dir.lines(path)}
        store = self.assembly.get("stores")

        async def run(request: EpisodeRequest, purpose: str) -> EpisodeResult:
            done = have.get(request.key.episode_id)
            if done:
                return result_of(decode(store.get(done)))
            result: EpisodeResult = await self._executor.submit(request)
            self._ended(result, purpose, self._emit_metered)
            if result.trace and result.verdict.valid:  # a void attempt is made again, now or after a resume
                self.run_dir.append(path, [{"id": request.key.episode_id, "trace": result.trace.uri}])
            return result

        return run

    def _keep_best(self, set_: EvaluationSet, found: Evaluation) -> None:
        """Remember the commit with the best rate of the sets that are run during training."""
        if "during" not in set_.when or not found.moment.startswith("step-") or self.commit is None:
            return
        rate = found.metrics.get("solve_rate")
        if rate is None:
            return
        if self.commit.best is None or rate > self.commit.best["value"]:
            best = {"metric": set_.name, "value": rate, "checkpoint": self.commit.number, "step": self.commit.step}
            self.commit = attrs.evolve(self.commit, best=best)
            self.run_dir.write_json("commit.json", attrs.asdict(self.commit))

    # --- reports ---

    def _report_step(self, stage: Stage, step: int, stats: StepStats) -> None:
        stats = attrs.evolve(stats, metrics=self._rates(stats.metrics))
        self.meter.step(stage.name, stats.metrics)
        self.emit(
            StepEnded(
                stage=stage.name,
                step=step,
                steps=stage.steps,
                version=self._version,
                metrics=dict(stats.metrics),
            )
        )

    def _rates(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """The trainer's rate under its full name, and the sampler's since the last step."""
        found = {("trainer_tokens_per_s" if name == "tokens_per_s" else name): v for name, v in metrics.items()}
        now = self._executor.stats()
        sampled, busy_s = (now.get(f"sampler/{key}", 0.0) - self._seen.get(key, 0.0) for key in ("tokens", "busy_s"))
        self._seen = {key: now.get(f"sampler/{key}", 0.0) for key in ("tokens", "busy_s")}
        return {**found, "sampler_tokens_per_s": sampled / busy_s} if sampled and busy_s > 0 else found

    @staticmethod
    def _ended(result: EpisodeResult, purpose: str, emit: Callable[[Event], None]) -> None:
        """Tell of an episode that ran outside the RL loop, and of what broke in it."""
        emit(EpisodeEnded(result=result, purpose=purpose))
        for fault in result.faults:
            emit(FaultRecorded(fault=fault, episode_id=result.key.episode_id))

    def _emit_metered(self, event: Event) -> None:
        if isinstance(event, EpisodeEnded):
            self.meter.episode(event.result)
        self.emit(event)

    def _summarize(self) -> dict[str, Any]:
        return summarize_run(
            self.config,
            self.evaluations,
            self.meter,
            {**self._executor.stats(), **self.assembly.get("sandboxes").stats()},
            self.resumed.number if self.resumed else None,
        )


def _looks(stage: RlStage, step: int) -> bool:
    """Whether the policy is evaluated after this step; after the last one the run's own evaluation follows."""
    return bool(stage.evaluate_every) and 0 < step < stage.steps and step % stage.evaluate_every == 0


def open_run(path: Path) -> tuple[RunDir, dict[str, Any], Commit | None]:
    """An existing run folder, for resuming.

    Raises:
        ConfigError: there is no run.
        StoreError: its last commit is damaged.
    """
    run_dir = RunDir(path)
    return run_dir, run_dir.config(), run_dir.last_commit()


def same_tokenizer(assembly: Assembly, commit: Commit, where: Path) -> None:
    """Ids mean nothing under another vocabulary.

    Raises:
        ConfigError: the commit was made with another tokenizer.
    """
    found = assembly.get("tokenizer").fingerprint
    if found != commit.tokenizer:
        raise ConfigError(
            "the commit was trained with another tokenizer",
            where=str(where / "tokenizer"),
            expected=commit.tokenizer,
            found=found,
            fix="restore the tokenizer folder of the run",
        )
