"""Snapshots with memory: processes go on in what is created from them, and nothing else of the parent does."""

from __future__ import annotations

import asyncio
import time

from machines import act, heard, output, sh

from composer_core.protocols import Created, ExecRequest

COUNTS = """echo 0 > count; echo started; n=0
until test -e stop; do n=$((n+1)); echo $n >> count; sleep 0.1; done; echo ended"""


async def made_of(provider, ref):
    (child,) = await provider.create(ref)
    assert isinstance(child, Created), child
    return child.backend


async def count(sandbox):
    """The last number that was written whole."""
    return int((await sandbox.read("count", 1 << 20)).rpartition(b"\n")[0].split()[-1])


async def until_above(sandbox, number):
    async with asyncio.timeout(60):
        while await count(sandbox) <= number:
            await asyncio.sleep(0.1)


async def said(sandbox, text):
    return await sandbox.session_exec("s", ExecRequest(("eval", text), timeout_s=60))


def test_a_process_goes_on_from_its_memory_in_all_that_is_made_of_it_and_is_heard_by_its_parent_alone() -> None:
    async def action(sandbox, provider):
        running = asyncio.ensure_future(sh(sandbox, COUNTS, timeout_s=60))
        await heard(sandbox, b"started\n")
        await until_above(sandbox, 5)
        ref = await sandbox.full_snapshot()
        await sandbox.write("stop", b"")
        assert (await running).stdout == b"started\nended\n"
        one, other = await made_of(provider, ref), await made_of(provider, ref)
        await until_above(one, 8)
        await one.write("stop", b"")
        assert await output(one, "sleep 0.5; cat /etc/machine-id") != await output(other, "cat /etc/machine-id")
        (child,) = await other.fork(1)
        stopped, left = await count(one), await count(child.backend)
        await until_above(other, max(stopped, left) + 3)
        assert await count(one) == stopped, "each is a process of its own"
        assert await count(child.backend) == left, "a fork has files and no processes, whatever its parent is made of"
        numbers = (await other.read("count", 1 << 20)).split()
        assert numbers == [b"%d" % n for n in range(len(numbers))], "it went on from its memory"

    act(action)


def test_time_stands_still_as_long_as_a_snapshot_lies_and_a_command_ends_after_what_it_had_left() -> None:
    async def up_s(sandbox):
        return float((await output(sandbox, "cat /proc/uptime")).split()[0])

    async def action(sandbox, provider):
        running = asyncio.ensure_future(sh(sandbox, COUNTS, timeout_s=8))
        await heard(sandbox, b"started\n")
        before_s, started = await up_s(sandbox), time.monotonic()
        ref = await sandbox.full_snapshot()
        captured = time.monotonic()
        assert (await running).status == "timeout"
        await asyncio.sleep(3)
        asked = time.monotonic()
        child = await made_of(provider, ref)
        after_s, at, before = await up_s(child), await count(child), -1
        assert after_s - before_s < captured - started + time.monotonic() - asked + 1
        async with asyncio.timeout(60):
            while before != at:
                await asyncio.sleep(1)
                before, at = at, await count(child)

    act(action)


def test_a_session_keeps_its_shell_and_what_its_parent_asked_is_answered_to_nobody() -> None:
    async def action(sandbox, provider):
        await said(sandbox, "kept=3; cd pkg")
        running = asyncio.ensure_future(said(sandbox, "sleep 2; kept=4; echo mine"))
        await asyncio.sleep(0.3)
        ref = await sandbox.full_snapshot()
        child = await made_of(provider, ref)
        found = await said(child, "echo $kept; cat b.txt")
        assert (found.stdout, found.restarted) == (b"4\ntwo\n", False)
        assert (await running).stdout == b"mine\n"

    act(action)


def test_no_network_is_inherited_and_another_can_be_set() -> None:
    look = """echo "-$http_proxy-"; bash -c 'exec 3<>/dev/tcp/127.0.0.1/3128' && echo on"""

    async def action(sandbox, provider):
        await sandbox.set_network(["127.0.0.1:9"])
        assert (await output(sandbox, look)).endswith("-\non\n")
        child = await made_of(provider, await sandbox.full_snapshot())
        text = await output(child, look)
        assert text.startswith("--\n") and "refused" in text
        await child.set_network(["127.0.0.1:9"])
        assert (await output(child, look)).endswith("-\non\n")
        assert (await output(sandbox, look)).endswith("-\non\n"), "the parent keeps its own"

    act(action)
