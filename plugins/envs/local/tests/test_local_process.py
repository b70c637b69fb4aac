"""The tier without walls: how it makes sandboxes, and what it says when it cannot take them away."""

import asyncio
import os

import pytest

from composer_core.errors import BackendError, SandboxGone
from composer_core.protocols import ExecRequest, TemplateSpec
from composer_core.trees import Tree
from composer_plugin_local.process import ProcessProvider

TREE = Tree.of({"a.txt": "one\n"})


async def prepared():
    provider = ProcessProvider()
    return provider, await provider.prepare(TemplateSpec(TREE.ref), TREE)


def test_the_event_loop_goes_on_while_a_workspace_is_copied():
    async def main():
        provider, template = await prepared()
        creating, turns = asyncio.ensure_future(provider.create(template)), 0
        while not creating.done():
            await asyncio.sleep(0)
            turns += 1
        assert await creating.result()[0].backend.read("a.txt", 100) == b"one\n"
        await provider.close()
        return turns

    assert asyncio.run(main()) > 1


def test_a_sandbox_that_cannot_be_removed_is_said_and_the_others_are_ended(tmp_path, monkeypatch):
    rm = tmp_path / "rm"
    rm.write_text("#!/bin/sh\necho device is busy >&2; exit 1\n")
    rm.chmod(0o755)

    async def main():
        provider, template = await prepared()
        first, second = (made.backend for made in await provider.create(template, 2))
        with monkeypatch.context() as changed:
            changed.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
            for ended in (first.destroy, provider.close):
                with pytest.raises(BackendError, match="device is busy"):
                    await ended()
        assert first.gone and second.gone
        await first.destroy()
        await second.destroy()

    asyncio.run(main())


def test_a_sandbox_that_cannot_be_ended_is_said_and_keeps_neither_the_others_nor_the_folder(monkeypatch):
    async def fail():
        raise RuntimeError("cannot be killed")

    async def main():
        provider, template = await prepared()
        first, second = (made.backend for made in await provider.create(template, 2))
        running = asyncio.ensure_future(second.exec(ExecRequest(("sleep", "60"), timeout_s=60)))
        await asyncio.sleep(0.2)
        monkeypatch.setattr(first._processes, "kill", fail)
        with pytest.raises(RuntimeError, match="cannot be killed"):
            await provider.close()
        with pytest.raises(SandboxGone):
            await asyncio.wait_for(running, 5)
        assert first.gone and second.gone and not first._home.parent.exists()
        await provider.close()

    asyncio.run(main())
