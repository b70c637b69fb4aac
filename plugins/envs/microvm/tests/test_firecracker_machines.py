"""Machines of Firecracker: jailed, loaded, saved by difference, ended. A strict server stands for Firecracker."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from attrs import evolve
from machines import SPEC, TREE, act, adopting, forked, given_up, heard, output, sh

from composer_core.errors import BackendError, PathError, SandboxUnreachable
from composer_core.protocols import Failed
from composer_plugin_microvm import vsock
from composer_plugin_microvm.jail import RunFolder

CHECK = "md5sum -c --quiet sums && cat said"


def test_a_fork_of_a_fork_of_a_machine_that_was_forked_before_has_all_that_was_written_at_any_time(booted) -> None:
    """Each saving holds what was written since the one before; whoever loses one has a broken machine."""

    async def action(sandbox, provider):
        for turn in range(2):
            await sh(sandbox, f"head -c 1000000 /dev/urandom > f{turn}; md5sum f* > sums; echo {turn} >> said")
            parent, sandbox = sandbox, await forked(sandbox)
            assert await output(sandbox, CHECK) == "".join(f"{number}\n" for number in range(turn + 1))
        await sh(parent, "echo parent >> said")
        assert await output(await forked(parent), CHECK) == "0\n1\nparent\n"
        assert await output(await forked(sandbox), CHECK) == "0\n1\n"

    act(action, booted)


def test_a_saving_that_failed_is_made_up_for_by_the_next(booted, monkeypatch) -> None:
    """Firecracker does not tell twice what was written, so all memory is saved after a loss."""
    merge, kinds = RunFolder.merge, []

    def failing(self, ram_bytes, before, saved, devices):
        kinds.append(before < 0)
        if len(kinds) == 1:
            raise OSError(28, "No space left on device")
        return merge(self, ram_bytes, before, saved, devices)

    async def action(sandbox, provider):
        await sh(sandbox, "head -c 2000000 /dev/urandom > f; md5sum f > sums; echo so > said")
        monkeypatch.setattr(RunFolder, "merge", failing)
        with pytest.raises(OSError, match="No space"):
            await sandbox.fork(1)
        assert await output(sandbox, CHECK) == "so\n"
        assert await output(await forked(sandbox), CHECK) == "so\n"
        assert kinds == [False, True]

    act(action, booted)


def test_a_parent_goes_on_while_it_is_saved_though_its_connection_ends(booted) -> None:
    async def action(sandbox, provider):
        script = "echo 1; sleep 1; for i in 2 3 4 5 6; do echo $i; sleep 0.3; done; touch late"
        running = asyncio.ensure_future(sh(sandbox, script))
        await heard(sandbox, b"1\n")
        forking = asyncio.ensure_future(forked(sandbox))
        answers = await asyncio.gather(*(sandbox.read("a.txt", 10) for _ in range(20)))
        child = await forking
        assert set(answers) == {b"one\n"} and await child.read("a.txt", 10) == b"one\n"
        result = await running
        assert (result.exit_code, result.stdout) == (0, b"1\n2\n3\n4\n5\n6\n")
        assert "late" in await output(sandbox, "ls") and "late" not in await output(child, "ls")

    act(action, booted)


def test_clones_differ_in_randomness_and_identity_and_agree_with_the_host_on_the_time(booted) -> None:
    script = "head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \\n'; echo; cat /etc/machine-id; date +%s.%N"

    async def action(sandbox, provider):
        await asyncio.sleep(1)  # a template older than the clock may be wrong
        children = [await forked(sandbox), *(await provider.create(await provider.prepare(SPEC, TREE), 1))]
        before = time.time()
        rows = [(await output(getattr(child, "backend", child), script)).split() for child in (sandbox, *children)]
        return before, rows, time.time()

    before, rows, after = act(action, booted)
    assert all(len({row[kind] for row in rows}) == 3 for kind in (0, 1)), rows
    assert all(before - 0.5 <= float(row[2]) <= after + 0.5 for row in rows)


def test_a_machine_is_jailed_as_a_user_of_its_own_and_can_write_nothing_that_others_are_made_of(booted) -> None:
    async def action(sandbox, provider):
        other = await forked(sandbox)
        users = set()
        for machine in (sandbox.machine, other.machine):
            root, pid = machine.monitor._jail.root, jailed(machine.process.pid)
            lines = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            (user,) = set(lines["Uid"].split())
            assert int(user) >= booted.uid and lines["Groups"].strip() == "" and lines["NoNewPrivs"] == "1"
            assert {int(lines[name], 16) for name in ("CapEff", "CapPrm", "CapInh")} == {0}
            assert {Path(f"/proc/{pid}/ns/{kind}").readlink() for kind in ("pid", "net")}.isdisjoint(
                {Path(f"/proc/self/ns/{kind}").readlink() for kind in ("pid", "net")}
            )
            assert Path(f"/proc/{pid}/cwd").resolve() == root
            for name in ("mem", "state", "root"):
                info = (root / name).stat()
                assert info.st_uid == os.geteuid() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            assert os.stat(root).st_uid == int(user) and stat.S_IMODE(os.stat(root).st_mode) == 0o700
            users.add(user)
        assert len(users) == 2
        folder = sandbox.machine.monitor._jail._folder
        await sandbox.destroy()
        assert not folder.exists() and len(provider.driver._users) == 1

    act(action, booted)


def child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def jailed(outer: int) -> int:
    """The process that the jailer has become, below those that end it."""
    inner = outer
    while True:
        inner = child_of(inner)
        if Path(f"/proc/{inner}/comm").read_text().strip() in ("firecracker", "jailer"):
            break
    return inner


def test_a_run_leaves_nothing_and_the_next_removes_what_a_killed_one_left(booted) -> None:
    place = Path(booted.cache, "firecracker")

    async def action(sandbox, provider):
        (folder,) = place.glob("run-*")
        RunFolder(Path(booted.cache)).close()
        assert folder.exists()

    act(action, booted, fresh=True)
    assert not [*place.glob("run-*")]
    script = """
import asyncio, os, sys, time
from machines import create, new_provider
from composer_plugin_microvm import firecracker_driver, provider
from composer_plugin_microvm.config import FirecrackerConfig
firecracker_driver.KVM, provider.STEP_BYTES = "/dev/null", 1 << 30
async def main():
    config = FirecrackerConfig(firecracker=sys.argv[1], jailer=sys.argv[2], cache=sys.argv[3])
    sandbox = await create(new_provider(config))
    print(os.getpid(), sandbox.machine.process.pid, flush=True)
    time.sleep(60)
asyncio.run(main())
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    words = [sys.executable, "-c", script, booted.firecracker, booted.jailer, booted.cache]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env) as holder:
        assert holder.stdout is not None
        holding, outer = map(int, holder.stdout.readline().split())
        inner = jailed(outer)
        os.kill(holding, signal.SIGKILL)
    end = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in (outer, inner)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(Path(f"/proc/{pid}").exists() for pid in (outer, inner))
    assert len([*place.glob("run-*")]) == 1
    RunFolder(Path(booted.cache)).close()
    assert not [*place.glob("run-*")]


def test_a_guest_that_ends_itself_is_lost_and_a_machine_that_the_host_loses_is_no_result(booted) -> None:
    async def action(sandbox, provider):
        other = await forked(sandbox)
        running = asyncio.ensure_future(sh(sandbox, "echo so far; sleep 20"))
        await heard(sandbox, b"so far\n")
        sandbox.machine.channel._transport.write(b"\xff" * 8)  # process 1 ends, the kernel with it
        result = await running
        assert (result.status, result.stdout) == ("lost", b"so far\n")
        with pytest.raises(PathError):
            await sandbox.read("a.txt", 10)
        os.kill(child_of(jailed(other.machine.process.pid)), signal.SIGKILL)
        with pytest.raises(SandboxUnreachable, match=r"the strict server runs(.|\n)*vcpu\.failures=1"):
            await sh(other, "true")

    act(action, booted)


def test_an_agent_that_is_not_reached_again_has_been_broken_by_its_guest(booted, monkeypatch) -> None:
    async def nobody(*words: object) -> None:
        raise BackendError("a machine's agent cannot be reached")

    async def action(sandbox, provider):
        monkeypatch.setattr(vsock, "connect", nobody)
        (child,) = await sandbox.fork(1)
        assert isinstance(child, Failed) and not child.retryable
        assert (await sh(sandbox, "true")).status == "lost"

    act(action, booted)


def test_without_a_jailer_it_runs_as_who_runs_it(booted, monkeypatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    async def action(sandbox, provider):
        words = Path(f"/proc/{sandbox.machine.process.pid}/cmdline").read_text().split("\0")
        assert booted.firecracker in words and "unshare" not in words
        return await output(await forked(sandbox), "cat a.txt")

    assert act(action, evolve(booted, jailer=""), fresh=True) == "one\n"


def test_a_creation_that_is_cancelled_or_closed_over_leaves_nothing(booted, monkeypatch) -> None:
    async def action(sandbox, provider):
        template = await provider.prepare(SPEC, TREE)
        jails = sandbox.machine.monitor._jail._folder.parent
        for after_s in (0.0, 0.05, 0.1, 0.2):
            await given_up(provider.create(template, 2), asyncio.sleep(after_s))
            assert len([*jails.iterdir()]) == 1
        reached = adopting(monkeypatch)
        assert await given_up(provider.create(template, 2), reached.wait())
        assert len([*jails.iterdir()]) == 1
        reached.clear()
        creating = asyncio.ensure_future(provider.create(template, 2))
        await reached.wait()
        await provider.close()
        assert all(isinstance(child, Failed) for child in await creating)
        assert not [*Path(booted.cache, "firecracker").glob("run-*")]

    act(action, booted, fresh=True)
