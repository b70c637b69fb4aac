"""What an objective receives: one flat row of trained tokens.

Legend: T trained tokens of a micro-batch, in sequence order. Source: RL.md section 1 of the design.
"""

from __future__ import annotations

import torch
from attrs import frozen


@frozen
class ObjectiveInputs:
    """All rows are fp32 [T] except the last two; only `logp_T` carries a gradient."""

    logp_T: torch.Tensor
    """Log-probability under the weights being trained."""
    advantage_T: torch.Tensor
    behavior_T: torch.Tensor | None = None
    """The sampler's log-probability; None unless the record needs "behavior"."""
    old_T: torch.Tensor | None = None
    """The trainer's own, recomputed before the step; None unless the record needs "old"."""
    ref_T: torch.Tensor | None = None
    """Under the weights RL started from; None unless the record needs "ref"."""
    episode_T: torch.Tensor | None = None
    """int64 [T]: index of the episode that each token belongs to; other tokens of it may be in other micro-batches."""
    sequence_T: torch.Tensor | None = None
    """int64 [T]: index of the sequence, a branch of an episode, which is here as a whole; for sequence-level ratios."""
