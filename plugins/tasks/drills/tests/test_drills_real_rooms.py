"""Gold, nothing and every attempt to cheat, graded by core's room in real sandboxes."""

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from composer_core.grading import Room, open_room
from composer_core.protocols import BuildContext
from composer_core.records import resolve
from composer_core.sandbox import Sandboxes
from composer_core.trees import Patch
from composer_plugin_drills.drills import Drill, drills
from composer_plugin_drills.tasks import DrillSet
from composer_plugin_hidden_tests.reward import hidden_tests
from composer_plugin_local.plugin import composer_sandboxes

TIERS = {spec.name: spec for spec in composer_sandboxes()}


async def grade(tier: str, folder: Path, wanted: list[tuple[Drill, Patch]]) -> list[float]:
    spec, tasks = TIERS[tier], DrillSet()
    provider: Any = resolve(spec.factory)(spec.config(), BuildContext(folder))
    sandboxes = Sandboxes(provider, f"local/{tier}", tasks.tree)

    async def one(drill: Drill, patch: Patch) -> float:
        task = tasks.task(drill.id)

        def opened() -> AbstractAsyncContextManager[Room]:
            return open_room(sandboxes, task.view, tasks.grading(task.grading))

        return (await hidden_tests(patch, opened)).value

    try:
        return [await one(drill, patch) for drill, patch in wanted]
    finally:
        await provider.close()


@pytest.mark.parametrize("tier", TIERS)
def test_only_the_repair_is_paid(tier: str, tmp_path: Path) -> None:
    drill = next(drill for drill in drills().values() if drill.split == "new_bug")
    attempts = list(DrillSet().exploits(drill.id).values())
    patches = [DrillSet().gold(drill.id), Patch(), *attempts]
    found = asyncio.run(grade(tier, tmp_path, [(drill, patch) for patch in patches]))
    assert found == [1.0] + [0.0] * (len(attempts) + 1)
