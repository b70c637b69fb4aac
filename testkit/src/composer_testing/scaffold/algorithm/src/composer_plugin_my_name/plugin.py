"""Hook module: imported by every listing of plugins, so it imports nothing heavy; torch waits in `objective`."""

from collections.abc import Iterable, Sequence
from statistics import mean

from attrs import field, frozen
from attrs.validators import gt

from composer_core import AlgorithmSpec, hookimpl

COMPOSER_API = 1


@frozen
class MyNameConfig:
    """Settings beside `algorithm.use` in the run file."""

    cap: float = field(default=2.0, validator=gt(0))
    """Largest importance weight of a token; bounds what tokens of an older version may do."""


def advantage(rewards: Sequence[float], config: MyNameConfig) -> list[float]:
    """Each reward minus the mean of the other members' (REINFORCE leave-one-out, Kool et al. 2019).

    `rewards` are those of a group's valid members, two or more. Equal rewards give exact zeros.
    """
    baseline, scale = mean(rewards), len(rewards) / (len(rewards) - 1)
    return [scale * (reward - baseline) for reward in rewards]


@hookimpl
def composer_algorithms() -> Iterable[AlgorithmSpec]:
    """`needs` names the log-probabilities that the objective reads; the trainer computes no others."""
    yield AlgorithmSpec(
        name="my-name",
        advantage=advantage,
        objective="composer_plugin_my_name.objective:objective",
        config=MyNameConfig,
        needs={"behavior"},
        summary="REINFORCE with a leave-one-out baseline",
    )
