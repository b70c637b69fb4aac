"""The trainer's synchronous heart: one step of score -> credit -> objective -> optimizer, on one or several ranks.

Every rank is given the whole batch, cuts it alike and takes every world-size-th micro-batch. Losses are summed over
trained tokens and divided by one constant of the step; gradients are summed over micro-batches and ranks. So the
result does not depend, beyond rounding, on how the batch was cut, ordered or placed.

The loss at a batch's tokens uses the weights from before the step, once: there is one update for each batch. It does
not schedule steps, decide what is admitted, or know a reward by name.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import evolve

from composer_core.columns import Column
from composer_core.credit import EpisodeKL
from composer_core.errors import ConfigError, TrainerError, boundary
from composer_core.protocols import Algorithm, BuildContext
from composer_core.tensors import ObjectiveInputs, to_column
from composer_core.types import StepStats, TrainBatch
from composer_plugin_policy import checkpoint
from composer_plugin_policy.batching import MicroBatch, Row, collate, cut, make_rows
from composer_plugin_policy.config import PolicyTrainerConfig, StageSettings
from composer_plugin_policy.feedback import distance, in_batches, lessons
from composer_plugin_policy.machine import Machine
from composer_plugin_policy.masters import Masters
from composer_plugin_policy.metrics import ParityPool, Tally, finite
from composer_plugin_policy.mismatch import masked_rows, refuse_another_policy, without
from composer_plugin_policy.optimizer import (
    apply_settings,
    clip,
    gradients,
    learning_rate,
    load_state_tensors,
    make_optimizer,
    state_tensors,
    zero_gradients,
)
from composer_plugin_policy.plan import Plan, plan_policy, plan_prediction
from composer_plugin_policy.scoring import TokenScores, episode_sums, score

NLL = "nll"


class Engine:
    """Owns policy, optimizer and counters. Not safe for threads: `PolicyTrainer` calls it from one."""

    def __init__(self, config: PolicyTrainerConfig, build: BuildContext) -> None:
        self._build = build
        self._machine = Machine(config, build)
        self._accelerator = self._machine.accelerator
        self.ranks = self._machine.ranks
        with self.ranks.named():
            self._model = self._machine.place(build.get("policy"))
        self._parameters = [p for p in self._model.parameters() if p.requires_grad]
        self._masters = Masters(self._parameters, config.published)
        self._masters.take()
        self._optimizer = make_optimizer(self._model)
        self._reference: Any = None
        self._settings: StageSettings | None = None
        self._counters = checkpoint.Counters()
        self._loaded = False
        self._pool = ParityPool()

    def close(self) -> None:
        self._machine.close()

    # --- stages and steps ---------------------------------------------------------------------------------------

    def begin(self, stage: str, settings: StageSettings) -> None:
        """A new stage starts with a fresh optimizer; the stage that was just loaded goes on with its own."""
        self._settings = settings
        self._pool = ParityPool()
        if not (self._loaded and stage == self._counters.stage):
            self._optimizer = make_optimizer(self._model)
            self._counters = checkpoint.Counters(stage=stage)
        self._loaded = False

    def step(self, batch: TrainBatch) -> StepStats:
        """One pass over the batch and at most one update."""
        started_s = time.perf_counter()
        settings = self._settings_of(batch)
        with self._machine.noise(self._build.seed, self._counters):
            plan = self._plan(batch, settings)
            tally = self._accumulate(plan, settings)
        parity = tally.parity(self._pool) if plan.algorithm else {}
        refuse_another_policy(parity, settings, self._counters.stage)
        rate = learning_rate(settings, self._counters.updates, batch.progress)
        norm, applied = self._update(plan, tally, settings, rate)
        metrics = {
            **tally.common(time.perf_counter() - started_s),
            **(tally.policy() | parity if plan.algorithm else tally.prediction()),
            **(tally.masks() if settings.masks else {}),
            **plan.facts,
            "grad_norm": norm,
            "learning_rate": rate,
            "skipped": float(not applied),
        }
        return StepStats(finite(metrics), skipped=not applied)

    def _settings_of(self, batch: TrainBatch) -> StageSettings:
        if self._settings is None:
            raise TrainerError("a step before any stage began", fix="call begin(stage, settings) first")
        try:
            return evolve(self._settings, **batch.settings)
        except (TypeError, ValueError) as error:
            raise ConfigError("a batch's settings do not fit the trainer", found=str(error)) from error

    def _plan(self, batch: TrainBatch, settings: StageSettings) -> Plan:
        if batch.objective == NLL:
            self._model.train()
            return plan_prediction(batch)
        self._model.eval()  # dropout would make the ratio to the sampler noise
        algorithm: Algorithm = self._build.get("algorithms")
        if self._reference is None and (settings.beta or "ref" in algorithm.needs):
            self._reference = self._frozen_copy()
        plan = plan_policy(batch, settings, algorithm, lambda rows, episodes: self._score_kl(rows, episodes, settings))
        found = lessons(batch.sequences, self._build.get("renderers")) if settings.feedback else ()
        return evolve(plan, lessons=found)

    def _score_kl(self, rows: list[Row], episodes: int, settings: StageSettings) -> Mapping[int, EpisodeKL]:
        """Sums of old - ref by episode, over all ranks; one pass of each network, without gradient."""
        deltas: list[tuple[MicroBatch, torch.Tensor]] = []
        with torch.no_grad():
            for micro in self._micro_batches(rows, settings):
                own, reference = (self._scores(m, micro, settings).logp_N for m in (self._model, self._reference))
                deltas.append((micro, own - reference))
        sums = [tensor.to(self._accelerator.device) for tensor in episode_sums(deltas, episodes)]
        self.ranks.sum(sums)
        totals, counts = (tensor.tolist() for tensor in sums)
        return {e: EpisodeKL(total, int(count)) for e, (total, count) in enumerate(zip(totals, counts, strict=True))}

    def _accumulate(self, plan: Plan, settings: StageSettings) -> Tally:
        """Forward and backward over this rank's micro-batches; gradients are this rank's sums."""
        tally = Tally(self._accelerator.device, self.ranks)
        zero_gradients(self._parameters)
        for micro in self._micro_batches(plan.rows, settings):
            scores = self._scores(self._model, micro, settings)
            masked_B = masked_rows(micro, scores.logp_N.detach(), settings)
            masked_N = masked_B[micro.row_N]
            loss = torch.zeros((), device=scores.logp_N.device)
            if not bool(masked_N.all()):
                inputs = self._inputs(plan, micro, scores.logp_N, settings)
                loss = self._loss(plan, without(masked_N, inputs)) / plan.divisor
                scores.logp_N.retain_grad()
                loss.backward()  # type: ignore[no-untyped-call]
            tally.add_micro_batch(micro, scores, loss)
            tally.add(masked_rows=masked_B, masked=masked_N)
            if plan.algorithm is None:
                tally.add_prediction(micro, scores)
            else:
                tally.add_policy(micro, scores, plan.algorithm.config, masked_N)
        self._teach(plan, settings, tally)
        with torch.no_grad():
            for micro in self._micro_batches(plan.probe, settings):
                tally.add_parity(micro, self._scores(self._model, micro, settings))
        return tally

    def _teach(self, plan: Plan, settings: StageSettings, tally: Tally) -> None:
        """Text feedback: forward and backward over this rank's lessons."""
        pairs = list(in_batches(plan.lessons, settings.micro_batch_tokens, in_order=self._build.deterministic))
        for students, teachers in pairs[self.ranks.rank :: self.ranks.count]:
            with self._accelerator.autocast():
                kl_N = distance(self._model, self._collate(students), self._collate(teachers), settings.replay_tau)
            loss = settings.feedback * kl_N.sum() / plan.divisor
            loss.backward()  # type: ignore[no-untyped-call]
            tally.add(loss=loss, feedback=kl_N, taught=float(len(kl_N)), lessons=float(len(students)))

    def _micro_batches(self, rows: list[Row] | tuple[Row, ...], settings: StageSettings) -> Iterator[MicroBatch]:
        groups = cut(rows, settings.micro_batch_tokens, in_order=self._build.deterministic)
        for group in groups[self.ranks.rank :: self.ranks.count]:
            yield self._collate(group)

    def _collate(self, rows: tuple[Row, ...]) -> MicroBatch:
        return collate(
            rows, self._accelerator.device, self._model.routes, lambda blob: blob.get(self._build.get("stores"))
        )

    def _scores(self, model: Any, micro: MicroBatch, settings: StageSettings) -> TokenScores:
        with self._accelerator.autocast():
            return score(model, micro, settings.replay_tau)

    def _inputs(self, plan: Plan, micro: MicroBatch, logp_N: torch.Tensor, settings: StageSettings) -> ObjectiveInputs:
        ref_N = None
        if "ref" in plan.needs:
            with torch.no_grad():
                ref_N = self._scores(self._reference, micro, settings).logp_N
        return ObjectiveInputs(
            logp_T=logp_N,
            advantage_T=micro.advantage_N,
            behavior_T=micro.behavior_N if "behavior" in plan.needs else None,
            old_T=logp_N.detach() if "old" in plan.needs else None,
            ref_T=ref_N,
            episode_T=micro.episode_N,
            sequence_T=micro.row_N,
        )

    def _loss(self, plan: Plan, inputs: ObjectiveInputs) -> torch.Tensor:
        who = plan.algorithm.id if plan.algorithm else "policy/nll"
        with boundary("algorithms", who):
            loss_T: torch.Tensor = plan.objective(inputs, plan.algorithm.config if plan.algorithm else None)
        if loss_T.shape != inputs.logp_T.shape:
            raise TrainerError(
                f"the objective of {who} must return one loss a token",
                expected=str(tuple(inputs.logp_T.shape)),
                found=str(tuple(loss_T.shape)),
            )
        return loss_T.sum()

    def _update(self, plan: Plan, tally: Tally, settings: StageSettings, rate: float) -> tuple[float, bool]:
        """(gradient norm, whether the step counts). A batch without any signal leaves weights and optimizer alone."""
        tally.reduce()
        grads = gradients(self._parameters)
        self.ranks.sum(grads)
        norm = clip(grads, settings.gradient_clip)
        usable = math.isfinite(tally["loss"]) and math.isfinite(norm)
        self._count(usable, settings, updated=usable and plan.trains)
        if usable and plan.trains:
            apply_settings(self._optimizer, settings, rate)
            with self._masters.in_place():
                self._optimizer.step()
        return norm, usable

    def _count(self, usable: bool, settings: StageSettings, *, updated: bool) -> None:
        counters = self._counters
        bad = 0 if usable else counters.nonfinite_in_a_row + 1
        self._counters = evolve(
            counters, steps=counters.steps + 1, updates=counters.updates + updated, nonfinite_in_a_row=bad
        )
        if bad >= settings.max_nonfinite_in_a_row:
            raise TrainerError(
                f"{bad} steps in a row had a loss or gradient that is not finite",
                where=f"stage {counters.stage}, step {counters.steps}",
                fix="lower the learning rate, or resume from an earlier checkpoint",
            )

    def logprobs(self, batch: TrainBatch) -> list[Column]:
        """Own log-probabilities at the trained tokens of each sequence, 0 elsewhere; every rank scores all of them."""
        found = [torch.zeros(len(sequence.ids)) for sequence in batch.sequences]
        self._model.eval()
        settings = self._settings or StageSettings()
        with torch.no_grad():
            for rows in cut(
                make_rows(batch.sequences), settings.micro_batch_tokens, in_order=self._build.deterministic
            ):
                micro = self._collate(rows)
                logp_N = self._scores(self._model, micro, settings).logp_N.cpu()
                parts = torch.split(logp_N, [len(row.positions_N) for row in rows])
                for row, part in zip(rows, parts, strict=True):
                    found[row.index][row.positions_N] = part
        return [to_column(logp_T) for logp_T in found]

    # --- state ----------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        if self._accelerator.is_main_process:
            folder.mkdir(parents=True, exist_ok=True)
            with self._masters.in_place():
                checkpoint.write_tensors(folder / checkpoint.WEIGHTS, self._model.state_dict())
            checkpoint.write_tensors(folder / checkpoint.OPTIMIZER, state_tensors(self._model, self._optimizer))
            if self._reference is not None:
                checkpoint.write_tensors(folder / checkpoint.REFERENCE, self._reference.state_dict())
            checkpoint.write_counters(folder, self._machine.stamp(self._counters))
        self.ranks.meet()

    def load(self, folder: Path) -> None:
        """Raises StoreError for a folder that `save` did not write, ConfigError where bytes could not repeat."""
        counters = checkpoint.read_counters(folder)
        self._machine.check(counters, folder)
        checkpoint.load_weights(self._model, folder / checkpoint.WEIGHTS)
        self._masters.take()
        self._optimizer = make_optimizer(self._model)
        load_state_tensors(self._model, self._optimizer, checkpoint.read_tensors(folder / checkpoint.OPTIMIZER))
        self._reference = None
        if (folder / checkpoint.REFERENCE).exists():
            self._reference = self._frozen_copy()
            checkpoint.load_weights(self._reference, folder / checkpoint.REFERENCE)
        self._counters, self._loaded = counters, True

    def export(self, path: Path) -> None:
        if self._accelerator.is_main_process:
            checkpoint.write_tensors(path, self._masters.published(self._model.state_dict()))

    def _frozen_copy(self) -> Any:
        """A second policy with the present weights; built afresh, since hooks of a model do not survive a copy."""
        second = self._machine.place(self._build.get("policy"))
        if second is self._model:
            raise TrainerError(
                "the run's context must build a fresh policy each time", where='BuildContext.get("policy")'
            )
        second.load_state_dict(self._model.state_dict())
        second.eval()
        for parameter in second.parameters():
            parameter.requires_grad_(False)
        return second
