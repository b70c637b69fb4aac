"""Clones, forks and captures: what they share, what they must not, and what is left of them."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from machines import SPEC, TREE, act, adopting, create, given_up, heard, new_provider, output, sh

from composer_core.errors import NoCapacity, SandboxGone
from composer_core.protocols import Created, Failed
from composer_plugin_microvm import machine
from composer_plugin_microvm.channel import Channel
from composer_plugin_microvm.config import QemuConfig
from composer_plugin_microvm.machine import Machine


def test_clones_differ_in_randomness_and_identity_and_agree_with_the_host_on_the_time() -> None:
    script = (
        "head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \\n'; echo; cat /etc/machine-id; date +%s.%N; "
        "python3 -c 'import uuid; print(uuid.uuid4())'"
    )

    async def action(sandbox, provider):
        await asyncio.sleep(2)  # a template older than the clock may be wrong
        children = await provider.create(await provider.prepare(SPEC, TREE), 2)
        forks = await sandbox.fork(2)
        before = time.time()
        texts = await asyncio.gather(*(output(child.backend, script) for child in (*children, *forks)))
        return before, [text.split() for text in texts], time.time()

    before, rows, after = act(action)
    for kind in (0, 1, 3):
        assert len({row[kind] for row in rows}) == 4, rows
    assert all(before - 0.5 <= float(row[2]) <= after + 0.5 for row in rows)


def test_a_clone_that_does_not_acknowledge_who_it_is_is_refused_and_leaves_nothing(monkeypatch) -> None:
    ask = Channel.ask

    async def impostor(self, op, data=b"", limit=1 << 16, **fields):
        header, reply = await ask(self, op, data, limit, **fields)
        return ({**header, "generation": "another"} if op == "adopt" else header), reply

    async def action(sandbox, provider):
        template = await provider.prepare(SPEC, TREE)
        before = children()
        monkeypatch.setattr(Channel, "ask", impostor)
        (child,) = await provider.create(template)
        monkeypatch.setattr(Channel, "ask", ask)
        assert isinstance(child, Failed) and "did not acknowledge" in child.error
        assert children() == before
        monkeypatch.setattr(machine, "ADOPT_S", 0.0001)
        (child,) = await sandbox.fork(1)
        assert isinstance(child, Failed)
        assert children() == before

    act(action)


def children() -> set[str]:
    return {pid for task in Path("/proc/self/task").glob("*/children") for pid in task.read_text().split()}


def test_a_fork_goes_on_from_the_files_and_not_from_the_commands_of_its_parent() -> None:
    async def action(sandbox, provider):
        await sh(sandbox, "echo before > a.txt; echo tmp > /tmp/kept; ln -s a.txt link; chmod 600 pkg/b.txt")
        running = asyncio.ensure_future(sh(sandbox, "echo started; sleep 2; echo late > late; echo ended"))
        await heard(sandbox, b"started\n")
        (child,) = await sandbox.fork(1)
        assert await output(child.backend, "cat link /tmp/kept; stat -c %a pkg/b.txt") == "before\ntmp\n600\n"
        result = await running
        assert (result.exit_code, result.stdout) == (0, b"started\nended\n")
        await asyncio.sleep(0.5)
        assert "late" not in await output(child.backend, "ls")
        assert (await child.backend.changes(1000)).touched() == ["a.txt"]

    act(action)


def test_a_parent_answers_while_it_is_forked_and_siblings_live_on_without_it() -> None:
    async def action(sandbox, provider):
        forking = asyncio.ensure_future(sandbox.fork(3))
        answers = await asyncio.gather(*(sandbox.read("a.txt", 10) for _ in range(20)))
        forked = await forking
        await sandbox.destroy()
        texts = [await child.backend.read("a.txt", 10) for child in forked]
        assert set(answers) == set(texts) == {b"one\n"} and len(texts) == 3

    act(action)


def test_what_clones_are_made_of_cannot_be_written_by_anybody() -> None:
    async def action(sandbox, provider):
        ram = sandbox.machine.monitor.base.ram
        with pytest.raises(PermissionError):
            os.pwrite(ram, b"x", 0)
        with pytest.raises(PermissionError):
            os.truncate(ram, 0)
        writable = os.open(f"/proc/{sandbox.machine.process.pid}/root/proc/self/fd/{ram}", os.O_RDWR)
        try:
            with pytest.raises(PermissionError):
                os.pwrite(writable, b"x", 0)
        finally:
            os.close(writable)

    act(action)


def test_machines_beyond_their_number_are_no_capacity_and_destroying_makes_room() -> None:
    async def action(sandbox, provider):
        first, second = await sandbox.fork(2)
        assert isinstance(first, Created) and isinstance(second, Failed) and second.retryable
        await first.backend.destroy()
        (third,) = await sandbox.fork(1)
        assert isinstance(third, Created)

    act(action, QemuConfig(machines=2))


def test_commands_wait_their_turn_which_is_not_their_time_and_a_sandbox_that_is_gone_does_not_wait_on() -> None:
    async def action(sandbox, provider):
        (other,) = await sandbox.fork(1)
        await sh(other.backend, "true")  # the first command takes longest
        slow = asyncio.ensure_future(sh(sandbox, "sleep 2.5"))
        await asyncio.sleep(0.1)
        waiting = asyncio.ensure_future(sh(other.backend, "sleep 0.2; echo done", timeout_s=2.2))
        gone = asyncio.ensure_future(sh(sandbox, "true"))
        result = await waiting
        assert slow.done() and (result.status, result.stdout) == ("exited", b"done\n")
        await gone
        slow, gone = asyncio.ensure_future(sh(sandbox, "sleep 9")), asyncio.ensure_future(sh(sandbox, "true"))
        await asyncio.sleep(0.1)
        await sandbox.destroy()
        for call in (slow, gone):
            with pytest.raises(SandboxGone):
                await call

    act(action, QemuConfig(commands=1))


def test_snapshots_beyond_their_memory_are_refused() -> None:
    async def action(sandbox, provider):
        with pytest.raises(NoCapacity, match="store_bytes"):
            for _ in range(20):
                await sandbox.snapshot()

    act(action, QemuConfig(store_bytes=24 << 20))


def test_closing_while_machines_start_leaves_none(monkeypatch) -> None:
    async def whole() -> None:
        provider = new_provider()
        template = await provider.prepare(SPEC, TREE)
        before, reached = children(), adopting(monkeypatch)
        starting = asyncio.ensure_future(provider.create(template, 4))
        await reached.wait()
        await provider.close()
        assert all(isinstance(child, Failed) for child in await starting)
        assert children() == before

    asyncio.run(asyncio.wait_for(whole(), 120))


def test_closing_ends_what_can_be_ended_and_then_raises_the_first_error(monkeypatch) -> None:
    async def whole() -> None:
        provider = new_provider()
        before = children()
        sandboxes = [await create(provider) for _ in range(3)]
        close = Machine.close

        async def failing(self):
            await close(self)
            if self is not sandboxes[2].machine:
                raise RuntimeError(f"machine {[one.machine for one in sandboxes].index(self)} does not end")

        monkeypatch.setattr(Machine, "close", failing)
        with pytest.raises(RuntimeError, match="machine 0 does not end"):
            await provider.close()
        assert children() == before
        await provider.close()

    asyncio.run(whole())


def test_a_cancelled_creation_leaves_no_machine(monkeypatch) -> None:
    async def action(sandbox, provider):
        template = await provider.prepare(SPEC, TREE)
        before = children()
        for after_s in (0.0, 0.01, 0.02, 0.04, 0.08):
            await given_up(provider.create(template, 2), asyncio.sleep(after_s))
            assert not children() - before
        assert await given_up(provider.create(template, 2), adopting(monkeypatch).wait())
        assert not children() - before
        await create(provider)

    act(action)


def test_a_cancelled_fork_leaves_no_child_and_a_parent_that_goes_on() -> None:
    async def action(sandbox, provider):
        before = children()
        for step in range(40):  # the machine stands still for some milliseconds of a fork
            await given_up(sandbox.fork(1), asyncio.sleep(step * 0.0005))
            assert await asyncio.wait_for(output(sandbox, "echo on"), 20) == "on\n", step
            assert not children() - before

    act(action)


def test_a_pause_that_is_given_up_leaves_a_machine_that_goes_on() -> None:
    async def action(sandbox, provider):
        for step in range(20):
            pausing = asyncio.ensure_future(sandbox.pause())
            await asyncio.sleep(step * 0.0002)
            pausing.cancel()
            await asyncio.wait([pausing])
            if not pausing.cancelled():
                await sandbox.resume()
            assert await asyncio.wait_for(output(sandbox, "echo on"), 20) == "on\n", step

    act(action)


def test_a_fork_that_meets_a_pause_waits_for_its_end(monkeypatch) -> None:
    async def action(sandbox, provider):
        monkeypatch.setattr(machine, "HOLD_S", 0.3)
        pausing = asyncio.ensure_future(sandbox.pause())
        await asyncio.sleep(0)  # it has begun, and the machine still runs
        forking = asyncio.ensure_future(sandbox.fork(1))
        await pausing
        await asyncio.sleep(1)
        assert not forking.done()
        monkeypatch.undo()
        await sandbox.resume()
        (child,) = await forking
        assert isinstance(child, Created), child
        assert await sandbox.read("a.txt", 10) == await child.backend.read("a.txt", 10) == b"one\n"

    act(action)


def test_a_destroyed_sandbox_is_no_source() -> None:
    async def action(sandbox, provider):
        await sandbox.destroy()
        for call in (sandbox.fork(1), sandbox.snapshot(), sandbox.full_snapshot()):
            with pytest.raises(SandboxGone):
                await call

    act(action)
