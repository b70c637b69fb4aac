"""Forks and snapshots of namespaces: what is frozen is shared and never changes, however much and however deep."""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from composer_core.errors import NoCapacity, SandboxGone
from composer_core.protocols import Created, ExecRequest, ExecResult, TemplateRef, TemplateSpec
from composer_core.trees import Tree
from composer_plugin_local.config import NamespacesConfig
from composer_plugin_local.keeper.layers import LEVELS
from composer_plugin_local.namespaces import NamespacesProvider, NamespacesSandbox

TREE = Tree.of({"a.txt": "one\n", "pkg/b.txt": "two\n", "pkg/deep/c.txt": "three\n"})
SPEC = TemplateSpec(TREE.ref, disk_bytes=300 << 20, file_bytes=300 << 20, memory_bytes=512 << 20)
LARGE_BYTES = 200 << 20
Act = Callable[[NamespacesSandbox, NamespacesProvider], Awaitable[Any]]


def act(action: Act, **settings: Any) -> Any:
    async def whole() -> Any:
        provider = NamespacesProvider(NamespacesConfig(**settings))
        try:
            (child,) = await provider.create(await provider.prepare(SPEC, TREE))
            assert isinstance(child, Created) and isinstance(child.backend, NamespacesSandbox)
            return await asyncio.wait_for(action(child.backend, provider), 120)
        finally:
            await provider.close()

    return asyncio.run(whole())


async def sh(sandbox: NamespacesSandbox, script: str) -> ExecResult:
    result = await sandbox.exec(ExecRequest(("sh", "-c", script), timeout_s=60))
    assert result.exit_code == 0, result
    return result


async def forked(sandbox: NamespacesSandbox, n: int = 1) -> list[NamespacesSandbox]:
    made = [child.backend for child in await sandbox.fork(n) if isinstance(child, Created)]
    assert len(made) == n
    return made  # type: ignore[return-value]


async def stats(provider: NamespacesProvider) -> dict[str, int]:
    assert provider._keeper is not None
    header, _ = await provider._keeper.ask("stats")
    return header


async def bytes_held(provider: NamespacesProvider) -> int:
    """Memory of all files of all sandboxes, as their file systems say."""
    found = await stats(provider)
    return found["frozen_bytes"] + found["home_bytes"]


def test_neither_time_nor_memory_of_a_fork_depends_on_what_was_written() -> None:
    async def fastest(sandbox: NamespacesSandbox) -> float:
        spent = []
        for turn in range(8):
            await sandbox.write("a.txt", str(turn).encode())  # something to freeze, each time
            started = time.perf_counter()
            (child,) = await forked(sandbox)
            spent.append(time.perf_counter() - started)
            await child.destroy()
        return min(spent)

    async def action(sandbox: NamespacesSandbox, provider: NamespacesProvider) -> None:
        small = await fastest(sandbox)
        before = await bytes_held(provider)
        await sh(sandbox, f"head -c {LARGE_BYTES} /dev/urandom > large")
        assert await bytes_held(provider) - before >= LARGE_BYTES
        large = await fastest(sandbox)
        await forked(sandbox, 64)
        grown = await bytes_held(provider) - before
        assert LARGE_BYTES <= grown < 1.02 * LARGE_BYTES, f"{grown} bytes after 72 forks"
        assert large < 3 * small + 0.01, f"{large} s with 200 MB, {small} s without"

    act(action)


def test_sixty_four_children_of_one_state_share_it_and_part_from_it() -> None:
    async def action(sandbox: NamespacesSandbox, provider: NamespacesProvider) -> None:
        await sh(sandbox, "echo parent > mine; rm pkg/b.txt; echo tmp > /tmp/t")
        children = await forked(sandbox, 64)
        await sh(sandbox, "echo later > mine; rm a.txt /tmp/t")
        for number, child in enumerate(children):
            await child.write("mine", str(number).encode())
        for number, child in enumerate(children[::21]):
            found = await sh(child, "cat mine /tmp/t a.txt; ls pkg")
            assert found.stdout == f"{21 * number}tmp\none\ndeep\n".encode()
        assert await sandbox.read("mine", 10) == b"later\n"
        assert [file.path for file in (await sandbox.changes(1000)).writes] == ["mine"]
        (again,) = await forked(sandbox)
        assert (await again.changes(1000)) == (await sandbox.changes(1000))

    act(action)


def test_what_a_long_chain_of_forks_holds_is_what_a_plain_folder_holds(tmp_path: Path) -> None:
    """Random changes, in sandboxes that go on as a fork or as its parent, beyond where layers are merged."""
    chance = random.Random(7)
    names = ["a.txt", "pkg", "pkg/b.txt", "pkg/deep", "pkg/deep/c.txt", "new", "new/x", "new/y", "pkg/x"]
    for file in TREE.files:
        (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file.path).write_bytes(file.data)

    def change() -> str:
        one, other = chance.sample(names, 2)
        room = f"mkdir -p $(dirname {one})"
        return chance.choice([
            f"rm -rf {one}", f"rm -rf {one}; mkdir -p {one}", f"{room}; echo {chance.random()} > {one}",
            f"mv {one} {other}", f"chmod {chance.choice(['700', '755'])} {one}", f"ln -sf {other} {one}",
            f"rm -rf {one}; {room}; echo {one} > {one}", f"ln {one} {other}",
        ]) + " 2>/dev/null || true"  # fmt: skip

    told = r"find . -mindepth 1 \( -type l -printf '%P %y %l\n' -o -printf '%P %y %m\n' \) | sort; " + (
        "find . -type f | sort | xargs -r cat"
    )

    async def action(sandbox: NamespacesSandbox, provider: NamespacesProvider) -> None:
        depths = 0
        for step in range(2 * LEVELS + 8):
            script = "; ".join(change() for _ in range(3))
            subprocess.run(["sh", "-c", f"umask 022; {script}"], cwd=tmp_path, check=True)
            await sh(sandbox, script)
            (child,) = await forked(sandbox)
            if step % 4 == 3:  # what went wrong before is still there
                here = subprocess.run(["sh", "-c", told], cwd=tmp_path, check=True, capture_output=True).stdout
                for one in (sandbox, child):
                    assert (await sh(one, told)).stdout == here, script
            left, sandbox = (sandbox, child) if chance.random() < 0.7 else (child, sandbox)
            await left.destroy()
            depths += left is not child
        assert depths > LEVELS
        kept = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
        patch = await sandbox.changes(1 << 20)
        assert {file.path for file in patch.writes} <= kept and not kept & set(patch.deletes)

    act(action)


def test_a_command_that_runs_meanwhile_goes_on_in_the_parent_and_reaches_no_child() -> None:
    async def action(sandbox: NamespacesSandbox, provider: NamespacesProvider) -> None:
        await sh(sandbox, "echo one > log")
        script = "exec >> log; echo two; touch started; while [ ! -e go ]; do sleep 0.02; done; echo three"
        running = asyncio.ensure_future(sh(sandbox, script))
        while "started" not in [entry.name for entry in await sandbox.list("")]:
            await asyncio.sleep(0.01)
        (child,) = await forked(sandbox)
        await sandbox.write("go", b"")
        await running
        assert await child.read("log", 100) == b"one\ntwo\n"
        assert await sandbox.read("log", 100) == b"one\ntwo\nthree\n"
        (after,) = await forked(sandbox)
        assert await after.read("log", 100) == b"one\ntwo\nthree\n"

    act(action)


def test_folders_nested_beyond_reach_go_along_whether_they_are_frozen_or_copied() -> None:
    """Else a policy could make an attempt void that would have failed."""
    deep = "d/" * 1500

    async def action(sandbox: NamespacesSandbox, provider: NamespacesProvider) -> None:
        await sh(sandbox, f"mkdir -p {deep}; echo here > {deep}file")
        running = asyncio.ensure_future(sandbox.exec(ExecRequest(("sleep", "50"), timeout_s=55)))
        await sh(sandbox, "sleep 0.2")
        (copied,) = await forked(sandbox)
        await sandbox.destroy()
        await asyncio.gather(running, return_exceptions=True)
        (frozen,) = await forked(copied)
        for one in (copied, frozen):
            assert (await sh(one, f"cat {deep}file")).stdout == b"here\n"

    act(action)


def test_shared_memory_stays_with_the_parent_through_all_its_forks() -> None:
    async def action(sandbox: NamespacesSandbox, provider: NamespacesProvider) -> None:
        for turn in range(LEVELS + 2):
            await sh(sandbox, f"echo {turn} > /dev/shm/{turn}; echo {turn} > last; echo {turn} > /tmp/last")
            (child,) = await forked(sandbox)
            assert (await sh(child, "ls /dev/shm; cat last /tmp/last")).stdout == f"{turn}\n{turn}\n".encode()
            await child.destroy()
        assert (await sh(sandbox, "cat /dev/shm/* | wc -l")).stdout.strip() == str(LEVELS + 2).encode()

    act(action)


def test_a_fork_of_what_did_not_change_freezes_nothing() -> None:
    async def action(sandbox: NamespacesSandbox, provider: NamespacesProvider) -> None:
        await sandbox.write("new", b"x" * 100_000)
        await forked(sandbox)
        before = await stats(provider)
        (child,) = await forked(sandbox)
        await forked(child)
        after = await stats(provider)
        assert after["frozen_bytes"] == before["frozen_bytes"] > 100_000
        assert after["descriptors"] == before["descriptors"] + 6

    act(action)


def test_what_nobody_stands_on_any_more_is_gone() -> None:
    async def action(sandbox: NamespacesSandbox, provider: NamespacesProvider) -> None:
        before = await stats(provider)
        made = [sandbox]
        for turn in range(12):
            await made[-1].write(f"new-{turn}", b"x" * 100_000)
            made += await forked(made[-1], 3)
        grown = await stats(provider)
        assert grown["frozen_bytes"] > 12 * 100_000
        for one in made[1:]:
            await one.destroy()
        (late,) = await forked(sandbox)
        await late.destroy()
        after = await stats(provider)
        assert after["frozen_bytes"] < 120_000 + 20_000, "the first layer, which the parent stands on"
        assert after["descriptors"] == before["descriptors"] + 2

    act(action)


def test_what_the_store_cannot_hold_is_no_capacity_and_the_parent_goes_on() -> None:
    async def action(sandbox: NamespacesSandbox, provider: NamespacesProvider) -> None:
        await sh(sandbox, "head -c 20000000 /dev/zero > large; echo kept > kept")
        for _ in range(2):
            with pytest.raises(NoCapacity):
                await sandbox.fork(2)
        assert (await sh(sandbox, "cat kept; rm large")).stdout == b"kept\n"
        (child,) = await forked(sandbox)
        assert await child.read("kept", 10) == b"kept\n"

    act(action, store_bytes=16 << 20)


@pytest.mark.parametrize("call", ["create", "fork"])
def test_what_is_made_for_a_caller_that_gave_up_is_destroyed(call: str) -> None:
    async def action(sandbox: NamespacesSandbox, provider: NamespacesProvider) -> None:
        source = await provider.prepare(SPEC, TREE)
        for after_s in (0.0, 0.0005, 0.002):
            making = asyncio.ensure_future(provider.create(source, 3) if call == "create" else sandbox.fork(3))
            await asyncio.sleep(after_s)
            making.cancel()
            await asyncio.wait([making])
            for child in () if making.cancelled() else making.result():
                await child.backend.destroy()
        for _ in range(100):
            if (await stats(provider))["sandboxes"] == 1:
                break
            await asyncio.sleep(0.02)
        assert (await stats(provider))["sandboxes"] == 1

    act(action)


def test_a_snapshot_whose_caller_gave_up_is_released() -> None:
    async def action(sandbox: NamespacesSandbox, provider: NamespacesProvider) -> None:
        source = await provider.prepare(SPEC, TREE)
        before = (await stats(provider))["frozen_bytes"]
        for after_s in (0.0, 0.0005, 0.002):
            (child,) = await provider.create(source)
            await child.backend.write("large", bytes(1 << 20))
            asking = asyncio.ensure_future(child.backend.snapshot())
            await asyncio.sleep(after_s)
            asking.cancel()
            await asyncio.wait([asking])
            if not asking.cancelled():
                await provider.release(asking.result())
            await child.backend.destroy()
        for _ in range(100):
            if (await stats(provider))["frozen_bytes"] == before:
                break
            await asyncio.sleep(0.02)
        assert (await stats(provider))["frozen_bytes"] == before

    act(action)


def test_sandboxes_that_end_while_their_provider_is_closed_have_ended() -> None:
    """An interrupted run closes its provider under those of the episodes that it has just cancelled."""

    async def whole() -> None:
        provider = NamespacesProvider()
        made = await provider.create(await provider.prepare(SPEC, TREE), 8)
        ending = [asyncio.ensure_future(child.backend.destroy()) for child in made if isinstance(child, Created)]
        await asyncio.sleep(0)  # each has asked, and none was answered
        await provider.close()
        assert await asyncio.gather(*ending) == [None] * 8

    asyncio.run(whole())


def test_a_provider_that_is_closed_while_its_keeper_starts_leaves_none() -> None:
    def children() -> set[str]:
        return {pid for task in Path("/proc/self/task").glob("*/children") for pid in task.read_text().split()}

    async def whole(after_s: float) -> None:
        before, provider = children(), NamespacesProvider()
        preparing = asyncio.ensure_future(provider.prepare(SPEC, TREE))
        await asyncio.sleep(after_s)
        await provider.close()
        await asyncio.gather(preparing, return_exceptions=True)
        assert children() == before

    async def without_a_template() -> None:
        before, provider = children(), NamespacesProvider()
        creating = asyncio.ensure_future(provider.create(TemplateRef("any")))
        await asyncio.sleep(0.01)
        await provider.close()
        with pytest.raises(SandboxGone, match="closed"):
            await creating
        assert children() == before

    for after_s in (0.0, 0.01, 0.03, 0.06, 0.1):
        asyncio.run(whole(after_s))
    asyncio.run(without_a_template())
