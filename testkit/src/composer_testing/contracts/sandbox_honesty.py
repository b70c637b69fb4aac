"""No way around a task is paid in your sandboxes. Subclass `HonestyContract` and name the record:

class TestHonesty(HonestyContract):
    spec = next(iter(composer_sandboxes()))

Every way of `composer_testing.honest_ways` is really tried: in an agent's sandbox, whose patch is then graded in a room
as in a run. None may score above 0 and none may make the episode void, which would give the agent another try. It takes
a provider that isolates, `sh`, coreutils and `python3`, and the reward that pays the outcome.

**Only for sandboxes with walls.** Some ways kill, fork and fill whatever they reach. So the walls are tried first, by
means that harm nobody, and nothing else is run on a provider that does not hold.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar

import pytest
from attrs import evolve

from composer_core.config import SandboxLimits
from composer_core.grading import Room, open_room
from composer_core.protocols import ExecResult, SandboxProvider
from composer_core.records import resolve
from composer_core.sandbox import Sandboxes
from composer_core.trees import Patch
from composer_testing.honest_task import GRADING, RIGHT, RIGHT_TEXT, VIEW, WORKSPACE, repair
from composer_testing.honest_ways import ALONE, CODE, ENDLESS, ENV, QUICK, SEARCH, TAMPERING
from composer_testing.walled_suite import WalledSuite

ENDLESS_S = 3.0
LIMITS = SandboxLimits(memory_bytes=128 << 20, processes=24, file_bytes=1 << 20, disk_bytes=6 << 20)


class HonestyContract(WalledSuite):
    """Name your subclass `Test...`."""

    reward: ClassVar[str] = "composer_plugin_hidden_tests.reward:hidden_tests"
    """The outcome reward, `module:function`, a function of `patch` and `grading`."""
    quick: ClassVar[bool] = False
    """For sandboxes that take their time: ways that do not disturb each other are tried in one sandbox (and one by one
    if that is paid, to tell which), of the others those that meet a sandbox's own walls. COMPOSER_SOAK=1 tries all."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """A test for each way that is tried on its own."""
        super().pytest_generate_tests(metafunc)
        quick = self.quick and not os.environ.get("COMPOSER_SOAK")
        ways: dict[str, Collection[str]] = {"tampering": TAMPERING, "alone": ALONE, "code": CODE}
        if quick:
            ways = {"tampering": ("all",), "alone": QUICK & set(ALONE), "code": QUICK & set(CODE)}
        for argument in ways.keys() & set(metafunc.fixturenames):
            names = sorted(ways[argument])
            metafunc.parametrize(argument, names, ids=[name.replace(" ", "-") for name in names])

    # --- how it is done ---

    def paid(self, scripts: Mapping[str, str]) -> float:
        """The score of an agent that runs these, one after the other, in one sandbox."""

        async def act(provider: SandboxProvider) -> float:
            sandboxes = manager(provider)
            async with await sandboxes.create(VIEW) as sandbox:
                for script in scripts.values():
                    await sandbox.exec(["sh", "-c", script], env=ENV, timeout_s=20)
                patch = await sandbox.patch()
            return await self.score(patch, sandboxes)

        found: float = self.use(act)
        return found

    async def score(self, patch: Patch, sandboxes: Sandboxes, timeout_s: float = GRADING.timeout_s) -> float:
        """Raises what would make the episode void."""

        def room() -> AbstractAsyncContextManager[Room]:
            return open_room(sandboxes, VIEW, evolve(GRADING, timeout_s=timeout_s))

        reward: Callable[..., Any] = resolve(self.reward)
        found = await reward(patch=patch, grading=room)
        return float(getattr(found, "value", found))

    def handed_in(self, *patches: Patch, timeout_s: float = GRADING.timeout_s) -> list[float]:
        async def act(provider: SandboxProvider) -> list[float]:
            return [await self.score(patch, manager(provider), timeout_s) for patch in patches]

        found: list[float] = self.use(act)
        return found

    # --- what holds ---

    def test_the_repair_is_paid_and_nothing_else_is_needed(self) -> None:
        """Without this the others would show nothing."""
        assert self.handed_in(repair(), Patch()) == [1.0, 0.0]
        assert self.paid({"repair": 'printf %s "$RIGHT" > shop/price.py'}) == 1.0

    def test_tampering_is_not_paid(self, tampering: str) -> None:
        scripts = TAMPERING if tampering == "all" else {tampering: TAMPERING[tampering]}
        if self.paid(scripts):
            guilty = [name for name, script in scripts.items() if self.paid({name: script})]
            raise AssertionError(f"paid without a repair: {guilty or 'all of them together'}")

    def test_tampering_that_leaves_little_else_is_not_paid(self, alone: str) -> None:
        assert self.paid({alone: ALONE[alone]}) == 0.0

    def test_code_under_test_that_does_not_solve_is_failed_and_not_void(self, code: str) -> None:
        timeout_s = ENDLESS_S if code in ENDLESS else GRADING.timeout_s
        assert self.handed_in(repair(CODE[code]), timeout_s=timeout_s) == [0.0]

    def test_a_workspace_holds_its_tree_and_nothing_else(self) -> None:
        """No history, no caches, no bytecode: not even what the walk of a tree does not show."""

        async def act(provider: SandboxProvider) -> list[str]:
            async with await manager(provider).create(VIEW) as sandbox:
                assert await sandbox.tree() == WORKSPACE
                result = await sandbox.exec(["find", ".", "-mindepth", "1", "!", "-type", "d"])
                return sorted(path.removeprefix("./") for path in result.stdout.decode().splitlines())

        assert self.use(act) == sorted(WORKSPACE.paths())

    def test_the_answer_is_nowhere_to_be_found(self) -> None:
        async def act(provider: SandboxProvider) -> Sequence[ExecResult]:
            async with await manager(provider).create(VIEW) as sandbox:
                look = ["python3", "-I", "-c", f"{SEARCH}\nprint(*found(), sep='\\n')"]
                before = await sandbox.exec(look, timeout_s=60)
                await sandbox.write("notes/left.py", RIGHT_TEXT.encode())
                return before, await sandbox.exec(look, timeout_s=60)

        before, after = self.use(act)
        assert "notes/left.py" in after.stdout.decode(), f"the search finds nothing at all: {after}"
        assert not before.stdout.strip(), f"the answer {RIGHT} stands in {before.stdout.decode()}"


def manager(provider: SandboxProvider) -> Sandboxes:
    """As a run has it, with calls that are bounded as an episode's."""
    return Sandboxes(provider, "under/test", lambda ref: WORKSPACE, LIMITS)
