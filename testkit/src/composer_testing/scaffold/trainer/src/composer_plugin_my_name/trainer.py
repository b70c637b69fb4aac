"""Plain gradient descent: score a batch row by row, sum the losses, divide once, step once.

Legend: T ids of a row, N trained tokens of it, D width, V vocabulary.

pretrain and sft minimize -log p, divided by the trained tokens of the batch. In rl the loss of a token is the objective
of the run's algorithm, divided by the episodes of the batch. Rows are forwarded one by one, so nothing depends on
padding or on how a batch was cut. Dropout stays off: there is no random state that a resumed run would need.
"""

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from composer_core import BuildContext, Column, NoConfig
from composer_core.columns import Blob, pack, unpack
from composer_core.credit import CreditRule, episode_advantages, segment_advantages, segments_of
from composer_core.errors import CapabilityError, StoreError, TrainerError, boundary
from composer_core.protocols import Algorithm
from composer_core.tensors import ObjectiveInputs, PolicyModel, to_column, to_tensor, token_logprobs
from composer_core.types import StepStats, TrainBatch, TrainSequence
from composer_plugin_my_name.plugin import MyNameStage

NLL = Algorithm("nll", lambda rewards, config: rewards, lambda inputs, config: -inputs.logp_T, None, frozenset())
"""Imitation as an algorithm: there are no groups whose rewards would become advantages."""
WEIGHTS = "weights.safetensors"


class MyNameTrainer:
    """`protocols.Trainer`; computes on one thread of its own, so calls keep their order and the event loop is free.

    Gradient descent without momentum has no state between steps: a checkpoint is the weights.
    """

    def __init__(self, config: NoConfig, build: BuildContext) -> None:
        self._build = build
        self._policy: PolicyModel = build.get("policy")
        self._policy.eval()
        self._settings: MyNameStage | None = None
        self._thread = ThreadPoolExecutor(1, "my-name")

    async def begin(self, stage: str, settings: MyNameStage) -> None:
        """A stage starts, or goes on after `load`."""
        self._settings = settings

    async def step(self, batch: TrainBatch) -> StepStats:
        """One update; none when loss or gradient is not finite."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._step, batch)

    async def save(self, folder: Path) -> None:
        """All that `load` needs; the run commits the folder as a whole."""
        folder.mkdir(parents=True, exist_ok=True)
        await self.export(folder / WEIGHTS)

    async def load(self, folder: Path) -> None:
        """StoreError when `save` did not write the folder, or another policy did."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._read, folder / WEIGHTS)

    async def export(self, path: Path) -> None:
        """What samplers load: the policy's state dict."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._write, path)

    async def logprobs(self, batch: TrainBatch) -> list[Column]:
        """At trained tokens, 0 elsewhere; compared with what the sampler said of the same tokens."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._logprobs, batch)

    async def close(self) -> None:
        """Waits for the call under way; safe twice."""
        await asyncio.to_thread(self._thread.shutdown)

    # --- on the thread ---

    def _step(self, batch: TrainBatch) -> StepStats:
        if self._settings is None:
            raise TrainerError("a step before any stage began", fix="call begin(stage, settings) first")
        optimizer = torch.optim.SGD(self._policy.parameters(), self._settings.learning_rate)
        optimizer.zero_grad()
        loss, tokens = self._accumulate(batch)
        norm = float(torch.nn.utils.clip_grad_norm_(self._policy.parameters(), self._settings.gradient_clip))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            return StepStats({"trained_tokens": float(tokens)}, skipped=True)
        optimizer.step()
        return StepStats({"loss": loss, "grad_norm": norm, "trained_tokens": float(tokens)})

    def _accumulate(self, batch: TrainBatch) -> tuple[float, int]:
        """Add up the gradients of a batch; returns its loss and how many tokens it trains."""
        algorithm: Algorithm = NLL if batch.objective == NLL.id else self._build.get("algorithms")
        if "ref" in algorithm.needs:
            raise CapabilityError(f"{algorithm.id} needs reference weights, which my-name does not keep")
        of_episode = episode_advantages(batch.groups, algorithm, CreditRule())
        advantages = segment_advantages(of_episode, segments_of(batch.sequences) if batch.groups else {}, "share")
        tokens = sum(sum(row.trained.values()[1:]) for row in batch.sequences)
        divisor, loss = max(1, tokens) if algorithm is NLL else batch.episodes, 0.0
        for row in batch.sequences:
            part = self._loss(row, algorithm, advantages.get((row.episode, row.segment), 0.0)) / divisor
            part.backward()  # type: ignore[no-untyped-call]
            loss += part.item()
        return loss, tokens

    def _loss(self, row: TrainSequence, algorithm: Algorithm, advantage: float) -> torch.Tensor:
        """The objective's sum over a row. With one step for each batch, the old weights are the present ones."""
        place_N, logp_N = self._score(row)
        inputs = ObjectiveInputs(
            logp_T=logp_N,
            advantage_T=torch.full_like(logp_N, advantage),
            behavior_T=to_tensor(row.behavior)[place_N] if row.behavior and "behavior" in algorithm.needs else None,
            old_T=logp_N.detach() if "old" in algorithm.needs else None,
            episode_T=torch.full_like(place_N, row.episode),
        )
        with boundary("algorithms", algorithm.id):
            loss_N: torch.Tensor = algorithm.objective(inputs, algorithm.config)
        return loss_N.sum()

    def _score(self, row: TrainSequence) -> tuple[torch.Tensor, torch.Tensor]:
        """Places of the trained ids [N] and their log-probabilities [N], at the temperature they were sampled at."""
        place_N = to_tensor(row.trained)[1:].nonzero().flatten() + 1  # nothing stands before the first id
        end = max([1, *place_N.tolist()])  # and what stands behind the last one changes nothing
        ids_T = to_tensor(row.ids).long()
        routes = row.routes.get(self._build.get("stores")) if isinstance(row.routes, Blob) else row.routes
        replay_1TLK = None if routes is None else to_tensor(routes)[None, :end]
        output = self._policy.trunk(ids_T[None, :end], torch.tensor([end]), replay_BTLK=replay_1TLK)
        logits_NV = self._policy.logits(output.hidden_BTD[0, place_N - 1])
        return place_N, token_logprobs(logits_NV, ids_T[place_N], row.temperature or 1.0)

    def _logprobs(self, batch: TrainBatch) -> list[Column]:
        found = [torch.zeros(len(row.ids)) for row in batch.sequences]
        with torch.no_grad():
            for logp_T, row in zip(found, batch.sequences, strict=True):
                place_N, logp_N = self._score(row)
                logp_T[place_N] = logp_N
        return [to_column(logp_T) for logp_T in found]

    def _write(self, path: Path) -> None:
        path.write_bytes(pack({name: to_column(tensor) for name, tensor in self._policy.state_dict().items()}, {}))

    def _read(self, path: Path) -> None:
        try:
            columns, _ = unpack(path.read_bytes())
            self._policy.load_state_dict({name: to_tensor(column) for name, column in columns.items()})
        except (OSError, RuntimeError) as error:
            raise StoreError("no weights of this policy", where=str(path), found=str(error)) from error
