"""Whole sequences on which sampler and trainer disagree too much to be learned from.

Legend: N trained tokens of a micro-batch, B its rows, T trained tokens of one row.

Importance weights bound what one token counts, but not what a sequence whose tokens all lean to one side, or one with a
token that the trainer holds all but impossible, does to a policy. With d_t = old_t - behavior_t over a row's T trained
tokens, the row is masked (none of its tokens reach the objective) if

    |1/T sum d_t| > log(mask_ratio)     the geometric mean of the ratios is outside [1 / mask_ratio, mask_ratio]
    max |d_t| > mask_delta

Source: the length-normalized sequence ratio of GSPO (Zheng et al. 2025, arXiv 2507.18071), used as a bound that masks,
as masked importance sampling of sequences does (Liu, Li et al. 2025, "When Speed Kills Stability").

A whole step is refused, before any update, where half of the tokens that the trainer's own version sampled are further
from its log-probabilities than `parity_stop`: then it is not drift, but two policies.

A masked row still counts in E, by which the loss is divided, and in every figure that tells of mismatch: masks hide
nothing. A d_t that is not a number masks nothing, so that the step is skipped and counted as ever.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from attrs import asdict

from composer_core.errors import TrainerError
from composer_core.tensors import ObjectiveInputs
from composer_plugin_policy.batching import MicroBatch
from composer_plugin_policy.config import StageSettings


def masked_rows(micro: MicroBatch, logp_N: torch.Tensor, settings: StageSettings) -> torch.Tensor:
    """bool [B]; `logp_N` is detached.

    Raises:
        TrainerError: a mask is set and the rows have no log-probabilities of their sampler.
    """
    masked_B = torch.zeros(len(micro.rows), dtype=torch.bool, device=logp_N.device)
    if not settings.masks:
        return masked_B
    if micro.behavior_N is None:
        raise TrainerError(
            "sequence masks need the sampler's log-probabilities",
            where="TrainSequence.behavior",
            fix='leave mask_ratio and mask_delta out, or train from a sampler that offers "sampler.logprobs"',
        )
    delta_N = (logp_N - micro.behavior_N).double()
    if settings.mask_ratio:
        sums_B = delta_N.new_zeros(len(micro.rows)).index_add_(0, micro.row_N, delta_N)
        counts_B = torch.bincount(micro.row_N, minlength=len(micro.rows))
        masked_B |= (sums_B / counts_B).abs() > math.log(settings.mask_ratio)
    if settings.mask_delta:
        beyond_N = delta_N.abs() > settings.mask_delta
        masked_B[micro.row_N[beyond_N]] = True
    return masked_B


def without(masked_N: torch.Tensor, inputs: ObjectiveInputs) -> ObjectiveInputs:
    """Only the tokens that are not masked."""
    if not bool(masked_N.any()):
        return inputs
    columns = {name: row[~masked_N] for name, row in asdict(inputs, recurse=False).items() if row is not None}
    return ObjectiveInputs(**columns)


def refuse_another_policy(parity: Mapping[str, float], settings: StageSettings, stage: str) -> None:
    """Raises TrainerError where the sampler's numbers are of another policy than the trainer's."""
    found = parity.get("parity_median", 0.0)
    if settings.parity_stop and not found <= settings.parity_stop:
        raise TrainerError(
            "the sampler does not compute the policy that is trained",
            where=f"stages.{stage}.parity_stop",
            expected=f"half of a step's tokens within {settings.parity_stop:g} nats of the trainer's log-probabilities",
            found=f"{found:.3g} nats over {parity['parity_tokens']:.0f} tokens of the same version",
            fix="look at what keeps copies of weights: kernels, samplers, weight sync",
        )
