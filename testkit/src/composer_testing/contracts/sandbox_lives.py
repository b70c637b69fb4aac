"""The part of the sandbox contract about how sandboxes and templates begin and end."""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import suppress
from typing import Any

import pytest
from attrs import evolve

from composer_core.errors import PrepareError, SandboxError, SandboxGone, TemplateMissing
from composer_core.protocols import Created, Forks, SandboxBackend, SandboxProvider, TemplateRef, TemplateSpec
from composer_core.sandbox import Sandbox
from composer_core.trees import Tree
from composer_testing.sandbox_claims import SLEEPS, SPEC, TREE, held, restored, until
from composer_testing.sandbox_suite import SandboxSuite, new_sandbox


class LifeContract(SandboxSuite):
    """`SandboxContract` holds these cases too."""

    def test_destroying_leaves_no_file_descriptor_or_process(self) -> None:
        async def life(provider: SandboxProvider, leave: str) -> None:
            sandbox = await new_sandbox(provider)
            command = ["sh", "-c", f"{leave}{SLEEPS} & {SLEEPS}"]
            running = asyncio.ensure_future(sandbox.exec(command, timeout_s=60))
            await asyncio.sleep(0.3)
            await sandbox.destroy()
            await asyncio.wait([running], timeout=1)

        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            leave = ""  # where nothing isolates, nothing holds a process that leaves its session
            if "sandbox.isolates" in await provider.probe():
                leave, result = "setsid ", await sandbox.exec(["setsid", "true"])
                assert result.exit_code == 0, f"no command to leave a session with: {result}; fix: offer setsid"
            await life(provider, leave)  # may make what is shared by all
            before = held()
            await life(provider, leave)

            async def cleared() -> bool:
                return held() <= before

            assert await until(cleared), f"destroy() left {sorted(held() - before)}"

        self.act(act)

    def test_one_sandbox_that_cannot_be_destroyed_keeps_no_other_when_the_provider_closes(self) -> None:
        """Bites only where `close` goes through the backends' `destroy`; one that ends them in another way needs a test
        of its own, with that way failing.
        """

        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            others = [await new_sandbox(provider) for _ in range(2)]
            kind, destroy = type(sandbox.backend), type(sandbox.backend).destroy

            async def fail(backend: SandboxBackend) -> None:
                if backend.id == sandbox.id:
                    raise RuntimeError("cannot be destroyed")
                await destroy(backend)

            with pytest.MonkeyPatch.context() as patched, suppress(Exception):
                patched.setattr(kind, "destroy", fail)
                await provider.close()
            left = os.listdir(tempfile.gettempdir())
            assert not left, f"close() left {left} when one sandbox could not be destroyed"
            for other in others:
                with pytest.raises(SandboxError):
                    await other.read("a.txt")

        self.act(act, fresh=True)

    def test_destroy_is_safe_twice_and_a_destroyed_sandbox_is_gone(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            await sandbox.backend.destroy()
            await sandbox.backend.destroy()
            with pytest.raises(SandboxGone):
                await sandbox.read("a.txt")
            with pytest.raises(SandboxGone):
                await sandbox.exec(["true"])
            with pytest.raises(SandboxGone):
                await provider.attach(sandbox.id)

        self.act(act)

    def test_leaving_the_context_destroys_also_after_an_exception_and_a_cancellation(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            for failure in (ValueError, asyncio.CancelledError):
                child = await new_sandbox(provider)
                with pytest.raises(failure):
                    async with child:
                        raise failure
                with pytest.raises(SandboxGone):
                    await provider.attach(child.id)

        self.act(act)

    def test_ids_are_never_reused_and_attach_finds_a_live_one(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            seen = {sandbox.id}
            for _ in range(5):
                child = await new_sandbox(provider)
                await child.destroy()
                assert child.id not in seen
                seen.add(child.id)
            assert await (await provider.attach(sandbox.id)).read("a.txt", 100) == b"one\n"

        self.act(act)

    def test_equal_specs_give_one_template_and_unknown_ones_are_missing(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            first, second = await asyncio.gather(provider.prepare(SPEC, TREE), provider.prepare(SPEC, TREE))
            assert first == second
            with pytest.raises(TemplateMissing):
                await provider.create(TemplateRef("nobody-made-this"))

        self.act(act)

    def test_a_command_that_cannot_be_offered_is_refused_by_prepare(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            with pytest.raises(PrepareError, match="no-such-command"):
                await provider.prepare(TemplateSpec(TREE.ref, ("no-such-command",)), TREE)

        self.act(act)

    def test_a_workspace_that_is_not_the_templates_is_refused(self) -> None:
        """Else whoever prepares that template next has sandboxes with somebody else's files."""

        async def act(provider: SandboxProvider) -> None:
            with pytest.raises(PrepareError, match="workspace"):
                await provider.prepare(evolve(SPEC, workspace=Tree.of({"other.txt": ""}).ref), TREE)

        self.use(act)

    def test_a_closed_provider_makes_nothing_and_says_why(self) -> None:
        async def act(provider: SandboxProvider) -> None:
            await provider.close()
            with pytest.raises(SandboxGone, match="closed"):
                await provider.create(TemplateRef("any"))
            with pytest.raises(SandboxGone, match="closed"):
                await provider.prepare(SPEC, TREE)

        self.use(act, fresh=True)

    def test_a_released_snapshot_is_missing_and_what_was_made_of_it_lives_on(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            release: Any = getattr(provider, "release", None)  # optional: `protocols.Releases`
            if release is None or not isinstance(sandbox.backend, Forks):
                return
            await sandbox.write("kept", b"1")
            ref = await sandbox.snapshot()
            child = await restored(provider, ref)
            for _ in range(2):
                await release(ref)
            with pytest.raises(TemplateMissing):
                await provider.create(ref)
            assert await child.read("kept", 10) == await sandbox.read("kept") == b"1"

        self.act(act)

    def test_siblings_share_no_files(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            children = await provider.create(await provider.prepare(SPEC, TREE), 3)
            backends = [child.backend for child in children if isinstance(child, Created)]
            assert len({backend.id for backend in backends}) == 3
            await backends[0].write("a.txt", b"mine")
            await backends[0].write("new.txt", b"mine")
            assert await backends[1].read("a.txt", 100) == b"one\n"
            assert "new.txt" not in [entry.name for entry in await backends[2].list("")]

        self.act(act)
