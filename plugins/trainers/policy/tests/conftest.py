"""Fixtures of the policy trainer's tests: batches of random rows, an engine on a tiny policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from composer_core.columns import Column
from composer_core.protocols import Algorithm, BuildContext
from composer_core.records import resolve
from composer_core.types import GroupRewards, TrainBatch, TrainSequence
from composer_plugin_policy import plugin
from composer_plugin_policy.config import PolicyTrainerConfig
from composer_plugin_policy.engine import Engine
from composer_testing.fakes.policy import TinyPolicy


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


def _algorithm(name: str = "dr_grpo", **settings: Any) -> Algorithm:
    spec = next(spec for spec in plugin.composer_algorithms() if spec.name == name)
    return Algorithm(
        f"policy/{name}", resolve(spec.advantage), resolve(spec.objective), spec.config(**settings), spec.needs
    )


def _sequence(length: int, *, episode: int = 0, segment: int = 0, seed: int = 0, **fields: Any) -> TrainSequence:
    generator = torch.Generator().manual_seed(1000 * episode + 10 * segment + seed)
    trained = [int(place >= 2 and place % 3 != 0) for place in range(length)]
    behavior = (-3.0 + 0.2 * torch.randn(length, generator=generator)).tolist()
    return TrainSequence(
        ids=Column.of("I32", torch.randint(0, 32, (length,), generator=generator).tolist()),
        trained=Column.of("U8", trained),
        episode=episode,
        segment=segment,
        **{"behavior": Column.of("F32", behavior), **fields},
    )


def _batch(
    lengths: Sequence[int], rewards: Sequence[float] = (), *, objective: str = "policy/dr_grpo", seed: int = 0
) -> TrainBatch:
    groups = (GroupRewards("g", tuple(range(len(lengths))), tuple(rewards)),) if rewards else ()
    return TrainBatch(
        stage="s",
        objective=objective if rewards else "nll",
        sequences=tuple(_sequence(length, episode=episode, seed=seed) for episode, length in enumerate(lengths)),
        episodes=len(lengths),
        groups=groups,
    )


@pytest.fixture
def algorithm() -> Callable[..., Algorithm]:
    return _algorithm


@pytest.fixture
def sequence() -> Callable[..., TrainSequence]:
    return _sequence


@pytest.fixture
def batch() -> Callable[..., TrainBatch]:
    """`batch(lengths)` is for nll, `batch(lengths, rewards)` one group for rl."""
    return _batch


@pytest.fixture
def context(tmp_path: Path) -> Callable[..., BuildContext]:
    def make(algorithm: Algorithm | None = None, *, deterministic: bool = False, **policy: Any) -> BuildContext:
        made = {
            "policy": lambda: TinyPolicy(**policy),
            "algorithms": lambda: algorithm or _algorithm(),
        }
        return BuildContext(
            tmp_path / "run",
            seed=3,
            deterministic=deterministic,
            get=lambda kind: made[kind](),
            settings={"threads": 1},
        )

    return make


@pytest.fixture
def engine(context: Callable[..., BuildContext]) -> Iterator[Callable[..., Engine]]:
    """`engine(algorithm, deterministic=..., experts=...)`: an engine on a fresh tiny policy."""
    made: list[Engine] = []

    def make(*args: Any, **fields: Any) -> Engine:
        made.append(Engine(PolicyTrainerConfig(), context(*args, **fields)))
        return made[-1]

    yield make
    for each in reversed(made):
        each.close()


@pytest.fixture
def gradient_of() -> Callable[[Engine], torch.Tensor]:
    """The gradient of an engine's last step, flat; with `gradient_clip = 0` it is that of the loss."""

    def flat(engine: Engine) -> torch.Tensor:
        return torch.cat([parameter.grad.flatten().clone() for parameter in engine._parameters])

    return flat
