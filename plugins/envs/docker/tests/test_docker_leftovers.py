"""What is left: nothing after destroy and close, and after a kill -9 what the next start removes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import docker
import pytest
from containers import SPEC, TREE, act, commands_on_this_machine, create, things

from composer_core.errors import ConfigError
from composer_core.protocols import Created
from composer_plugin_docker import owners
from composer_plugin_docker.config import DockerConfig
from composer_plugin_docker.engine import OWNER, Engine
from composer_plugin_docker.images import Images, Ready
from composer_plugin_docker.provider import DockerProvider
from composer_plugin_docker.sandbox import DockerSandbox
from composer_plugin_docker.walls import Template


def test_closing_removes_containers_and_images_and_keeps_the_base() -> None:
    act(create_and_fork, fresh=True)
    before = things()
    act(create_and_fork, fresh=True)
    assert things() == before


async def create_and_fork(sandbox, provider) -> None:
    await sandbox.write("more", b"x")
    ref = await sandbox.snapshot()
    await sandbox.fork(2)
    await provider.create(ref)


SUICIDE = """
import asyncio, os, signal
from composer_core.protocols import ExecRequest, TemplateSpec
from composer_core.trees import Tree
from composer_plugin_docker.provider import DockerProvider

async def main():
    provider, tree = DockerProvider(), Tree.of({"a": "b"})
    (child,) = await provider.create(await provider.prepare(TemplateSpec(tree.ref), tree))
    task = asyncio.ensure_future(child.backend.exec(ExecRequest(("sleep", MARKER))))
    await child.backend.exec(ExecRequest(("true",)))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_a_killed_controller_leaves_no_command_and_the_next_start_removes_the_rest_but_no_strangers() -> None:
    act(create_and_fork, fresh=True)
    before, marker = things(), f"{os.getpid()}.9876"
    child = subprocess.run([sys.executable, "-c", f"MARKER = {marker!r}\n{SUICIDE}"], check=False, timeout=60)
    assert child.returncode == -signal.SIGKILL
    for _ in range(100):
        if marker not in commands_on_this_machine():
            break
        subprocess.run(["sleep", "0.05"], check=True)
    else:
        raise AssertionError("a command outlived its controller")
    left = things()
    assert len(left[0]) == len(before[0]) + 1 and len(left[1]) == len(before[1]) + 1
    api = docker.from_env().api
    base = api.images(filters={"label": "composer.kind=base"})[0]["Id"]
    strangers = [
        api.create_container(base, ["-"], labels=labels)["Id"]
        for labels in ({}, {OWNER: "another-machine/boot/1/2/3"}, {OWNER: owners.this_process()})
    ]
    try:
        act(create_and_fork, fresh=True)
        assert things() == (before[0] | set(strangers), *before[1:])
    finally:
        for one in strangers:
            api.remove_container(one, force=True)
        api.close()


def test_an_owner_is_told_from_another_process_that_was_given_its_number() -> None:
    own = owners.this_process()
    machine, boot, namespace, pid, started = own.split("/")
    assert not owners.has_ended(own)
    assert owners.has_ended("/".join([machine, boot, namespace, pid, started + "1"]))
    assert owners.has_ended("/".join([machine, "an earlier boot", namespace, pid, started]))
    assert not owners.has_ended("/".join([machine, boot, "another namespace", pid, started + "1"]))
    assert not owners.has_ended("/".join(["another machine", boot, namespace, pid, started + "1"]))
    assert not owners.has_ended("") and not owners.has_ended("what nobody wrote")


def test_a_start_that_fails_leaves_no_container() -> None:
    async def main():
        provider = DockerProvider()
        try:
            await create(provider)
            before = things()
            task = next(iter(provider._preparing.values()))
            broken = task.result().__class__(task.result().image, ("/no-such-program",), {}, SPEC, 0)
            (child,) = await provider.children(broken, 1, None)
            assert not isinstance(child, Created) and "no-such-program" in child.error
            assert things() == before
        finally:
            await provider.close()

    asyncio.run(main())


def test_a_start_that_is_cancelled_at_any_moment_leaves_no_container() -> None:
    async def action(sandbox, provider):
        before = things()
        for delay_s in (0.0, 0.02, 0.05, 0.1, 0.2, 0.3):
            starting = asyncio.ensure_future(create(provider))
            await asyncio.sleep(delay_s)
            starting.cancel()
            found = (await asyncio.gather(starting, return_exceptions=True))[0]
            if not isinstance(found, BaseException):
                await found.destroy()
            assert things() == before, delay_s

    act(action, fresh=True)


@pytest.mark.parametrize("ends", ["cancelled", "broken"])
def test_siblings_that_were_made_already_go_with_a_creation_that_ends_early(monkeypatch, ends: str) -> None:
    """Without an engine: what counts is which of them are ended."""
    made: list[str] = []
    ended: list[str] = []

    async def start(sandbox: DockerSandbox, capture: object) -> None:
        if len(made) == 2:
            await asyncio.sleep(0.05)
            if ends == "broken":
                raise ConfigError("this engine cannot carry streams")
            await asyncio.sleep(60)
        made.append(sandbox.id)

    async def end(sandbox: DockerSandbox) -> None:
        ended.append(sandbox.id)

    async def main() -> None:
        provider = DockerProvider()
        provider._open = SimpleNamespace(engine=None, images=None)
        making = asyncio.ensure_future(provider.children(Template("", (), {}, SPEC, 0), 3, None))
        await asyncio.sleep(0.02)
        if ends == "cancelled":
            making.cancel()
        with pytest.raises(asyncio.CancelledError if ends == "cancelled" else ConfigError):
            await making
        assert sorted(ended) == sorted(made) and len(made) == 2 and not provider._live

    monkeypatch.setattr(DockerSandbox, "start", start)
    monkeypatch.setattr(DockerSandbox, "end", end)
    asyncio.run(main())


@pytest.mark.parametrize("slow", ["agent", "engine"])
def test_a_pause_that_is_given_up_leaves_no_frozen_container(monkeypatch, slow: str) -> None:
    """Without an engine, since not every one can freeze."""
    frozen: set[str] = set()
    asked: list[tuple[str, bool]] = []

    def pause(container: str) -> None:
        time.sleep(0.1)
        frozen.add(container)

    async def ask(sandbox: DockerSandbox, op: str) -> None:
        asked.append((op, bool(frozen)))
        if (op, slow) == ("pause", "agent"):
            await asyncio.sleep(60)

    async def main() -> None:
        api = SimpleNamespace(pause=pause, unpause=frozen.discard, close=lambda: None)
        engine = Engine(api, "me")
        sandbox = DockerSandbox(SimpleNamespace(engine=engine), Template("", (), {}, SPEC, 0))
        pausing = asyncio.ensure_future(sandbox.pause())
        await asyncio.sleep(0.05)
        pausing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pausing
        assert asked == [("pause", False), ("resume", False)] and not sandbox._patience.paused
        engine.close()

    monkeypatch.setattr(DockerSandbox, "_ask", ask)
    asyncio.run(main())


def test_an_image_whose_making_is_given_up_at_its_last_step_is_removed() -> None:
    """Without an engine: what is committed cannot be stopped."""

    async def main() -> None:
        committing, removed, loop = asyncio.Event(), [], asyncio.get_running_loop()

        def commit(*words: object, **options: object) -> dict[str, str]:
            loop.call_soon_threadsafe(committing.set)
            time.sleep(0.1)
            return {"Id": "made"}

        done = dict.fromkeys(("create_container", "put_archive", "remove_container"), lambda *words, **options: None)
        api = SimpleNamespace(**done, commit=commit, remove_image=lambda name, force: removed.append(name))
        engine = Engine(api, "me")
        making = asyncio.ensure_future(Images(engine, DockerConfig()).template(Ready("base", (), {}), TREE))
        await committing.wait()
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        assert [name.partition(":")[0] for name in removed] == ["composer/template"]
        engine._threads.shutdown()

    asyncio.run(main())
