"""Hook module: the outcome reward."""

from __future__ import annotations

from collections.abc import Iterable

from composer_core import RewardSpec, hookimpl

COMPOSER_API = 1


@hookimpl
def composer_rewards() -> Iterable[RewardSpec]:
    yield RewardSpec(
        name="hidden-tests",
        summary="1 if every hidden test passes in a fresh fork that has only the agent's patch, else 0",
        function="composer_plugin_hidden_tests.reward:hidden_tests",
        range=(0.0, 1.0),
        outcome=True,
        pure=True,
    )
