"""Settings of the trainer, of each of its stages and of its algorithms. Thin: no torch.

A value out of range is refused when the settings are made, so neither `check` nor a step ever sees one.
"""

from __future__ import annotations

import math
from typing import Any

from attrs import Attribute, field, frozen
from attrs.validators import ge, gt, in_, le, lt

from composer_core.credit import CREDIT_MODES, KL_MODES, CreditRule

_POSITIVE: Any = [gt(0), lt(math.inf)]
_NOT_NEGATIVE: Any = [ge(0), lt(math.inf)]
_DECAY: Any = [ge(0), lt(1)]
_SHARE: Any = [ge(0), le(1)]
_CLIP: Any = [gt(0), lt(1)]


def _ratio(_instance: object, attribute: Attribute[float], value: float) -> None:
    if value and not 1 < value < math.inf:
        raise ValueError(f"{attribute.name} must be 0 (off) or a finite number above 1, found {value}")


@frozen
class PolicyTrainerConfig:
    """Settings that hold for a whole run."""

    precision: str = field(default="fp32", validator=in_(("fp32", "bf16")))
    """fp32, or bf16 for autocast in the forward pass (weights and optimizer keep the policy's own dtype)."""
    published: str = field(default="own", validator=in_(("own", "bf16")))
    """own: samplers are given the policy's own numbers. bf16: they are given 16 bits of each trained weight, every
    forward pass of the trainer uses the same, and the optimizer moves fp32 masters: half the bytes, the same parity."""
    rank_timeout_s: float = field(default=600.0, validator=_POSITIVE)
    """With several ranks: how long one waits for the others to come to the same point before it counts them as gone."""


@frozen
class StageSettings:
    """Settings of one stage; a stage table of the run file may hold any of them beside the stage's own keys."""

    learning_rate: float = field(default=3e-4, validator=_POSITIVE)
    """Peak step size of AdamW."""
    warmup_steps: int = field(default=0, validator=ge(0))
    """Steps over which the learning rate rises linearly from 1 / warmup_steps of its peak to the peak."""
    schedule: str = field(default="constant", validator=in_(("constant", "linear", "cosine")))
    """How the learning rate falls with the stage's progress."""
    final_learning_rate_share: float = field(default=0.1, validator=_SHARE)
    """Share of the peak that linear and cosine end at."""
    weight_decay: float = field(default=0.0, validator=_NOT_NEGATIVE)
    """Decoupled decay of weights with two or more axes (per step, times the learning rate)."""
    adam_beta1: float = field(default=0.9, validator=_DECAY)
    """Decay of the gradient's running mean."""
    adam_beta2: float = field(default=0.95, validator=_DECAY)
    """Decay of the squared gradient's running mean."""
    adam_epsilon: float = field(default=1e-8, validator=_POSITIVE)
    """Added to the denominator of the update."""
    gradient_clip: float = field(default=1.0, validator=_NOT_NEGATIVE)
    """Largest norm of the whole gradient; 0 does not clip."""
    micro_batch_tokens: int = field(default=2000, validator=gt(0))
    """Padded tokens forwarded at once; on a CPU small micro-batches are about twice as fast as large ones."""
    loss_scale_tokens: float = field(default=256.0, validator=_POSITIVE)
    """rl: L0, the constant in tokens an episode by which the summed loss is divided (times the admitted episodes)."""
    max_nonfinite_in_a_row: int = field(default=3, validator=gt(0))
    """Steps in a row that may be skipped for a loss or gradient that is not finite; the last of them stops the run."""
    parity_stop: float = field(default=0.5, validator=_NOT_NEGATIVE)
    """rl: nats; the run stops when half of a step's comparable tokens were sampled with log-probabilities further from
    the trainer's than this, since one of the two then computes another policy; 0 never stops."""
    beta: float = field(default=0.0, validator=_NOT_NEGATIVE)
    """rl: weight of the KL term in the reward; at 0 no reference weights are kept."""
    kl: str = field(default="k1", validator=in_(KL_MODES))
    """rl: k1 sums old - ref over an episode's trained tokens (also a length penalty), k1_mean is its mean per token."""
    credit: str = field(default="share", validator=in_(CREDIT_MODES))
    """rl: share, split or last: how a chain's advantage is spread over its segments."""
    replay_tau: float = field(default=0.5, validator=_NOT_NEGATIVE)
    """rl with router_replay: a replayed expert is kept if its gate is at least this times the smallest of the router's
    own choice, and gives its place to the router's own best otherwise; 0 keeps all."""
    mask_ratio: float = field(default=0.0, validator=_ratio)
    """rl: mask sequences whose geometric mean of exp(old - behavior) is above this or below its inverse; 0 is off."""
    mask_delta: float = field(default=0.0, validator=_NOT_NEGATIVE)
    """rl: mask sequences with a token whose |old - behavior| is above this, in nats; 0 is off."""
    feedback: float = field(default=0.0, validator=_NOT_NEGATIVE)
    """rl: weight of the KL from the policy that is told the rewards' hints to the one that is not; 0 is off."""

    def rule(self) -> CreditRule:
        """The part of these settings that credit needs."""
        return CreditRule(mode=self.credit, beta=self.beta, kl=self.kl)

    @property
    def masks(self) -> bool:
        """Whether any sequence may be masked."""
        return bool(self.mask_ratio or self.mask_delta)


RL_KEYS = ("loss_scale_tokens", "beta", "kl", "credit", "replay_tau", "mask_ratio", "mask_delta", "feedback")
"""Stage settings that have an effect in rl stages only."""


@frozen
class PolicyGradientConfig:
    """Settings of `dr_grpo` and `rloo`."""

    cap: float = field(default=2.0, validator=_POSITIVE)
    """C: largest importance weight exp(old - behavior) of a token."""


@frozen
class PpoClipConfig:
    """Settings of `ppo_clip`."""

    clip_low: float = field(default=0.2, validator=_CLIP)
    """A token whose ratio has fallen below 1 - clip_low is not pushed down any further."""
    clip_high: float = field(default=0.2, validator=_POSITIVE)
    """A token whose ratio has risen above 1 + clip_high is not pushed up any further."""


@frozen
class DapoConfig:
    """Settings of `dapo`."""

    clip_low: float = field(default=0.2, validator=_CLIP)
    """A token whose ratio has fallen below 1 - clip_low is not pushed down any further."""
    clip_high: float = field(default=0.28, validator=_POSITIVE)
    """A token whose ratio has risen above 1 + clip_high is not pushed up any further."""
    epsilon: float = field(default=1e-6, validator=_POSITIVE)
    """Added to the deviation that centered rewards are divided by."""


@frozen
class GspoConfig:
    """Settings of `gspo`; ratios of whole sequences are much nearer to 1 than those of tokens."""

    clip_low: float = field(default=3e-4, validator=_CLIP)
    """A sequence whose ratio has fallen below 1 - clip_low is not pushed down any further."""
    clip_high: float = field(default=4e-4, validator=_POSITIVE)
    """A sequence whose ratio has risen above 1 + clip_high is not pushed up any further."""
    epsilon: float = field(default=1e-6, validator=_POSITIVE)
    """Added to the deviation that centered rewards are divided by."""


@frozen
class CispoConfig:
    """Settings of `cispo`."""

    cap: float = field(default=5.0, validator=_POSITIVE)
    """Largest weight of a token: 1 + epsilon_high of the paper, which gives no number."""
    epsilon: float = field(default=1e-6, validator=_POSITIVE)
    """Added to the deviation that centered rewards are divided by."""


@frozen
class GrpoConfig:
    """Settings of `grpo`."""

    cap: float = field(default=2.0, validator=_POSITIVE)
    """C: largest importance weight exp(old - behavior) of a token."""
    epsilon: float = field(default=1e-6, validator=_POSITIVE)
    """Added to the deviation that centered rewards are divided by."""
