"""What a hostile command meets in a machine, and what a hostile machine meets on the host; on real QEMU."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from machines import act, output, sh

from composer_core.errors import PathError, SandboxUnreachable
from composer_core.protocols import ExecRequest


def test_a_command_has_no_power_over_its_machine() -> None:
    script = """
    grep -E 'CapEff|CapPrm|NoNewPrivs' /proc/self/status
    for at in /x /etc/x /run/x /sys/fs/cgroup/x /proc/sys/kernel/core_pattern /dev/vda /dev/vport0p1 /dev/mem; do
      (echo no > $at) 2>/dev/null && echo "wrote $at"
    done
    mount -t tmpfs x /tmp 2>/dev/null && echo mounted
    unshare -U true 2>/dev/null && echo unshared
    kill -9 1 2>/dev/null && echo killed
    cat /proc/1/environ /proc/1/mem 2>/dev/null && echo read
    cut -d: -f1 /proc/net/dev | tail -n +3
    echo $(ls /proc/self/fd)
    cat /proc/sys/kernel/modules_disabled
    """
    expected = "CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\n    lo\n0 1 2 3\n1\n"

    async def action(sandbox, provider):
        return await output(sandbox, script)

    assert act(action) == expected


def test_a_time_limit_ends_what_left_session_group_and_parent() -> None:
    script = "setsid sh -c '(sleep 1.5; touch late; sleep 50) &' & setsid sleep 50 & echo first; sleep 50"

    async def action(sandbox, provider):
        result = await sh(sandbox, script, timeout_s=0.8)
        assert (result.status, result.stdout) == ("timeout", b"first\n")
        await asyncio.sleep(1.5)
        assert "late" not in await output(sandbox, "ls; cat /proc/[0-9]*/comm | grep sleep")

    act(action)


@pytest.mark.parametrize(
    "attack",
    [
        "f() { f | f & f; }; while :; do (f); done",
        "while :; do python3 -c '[b\"x\" * n for n in range(10**6, 10**7)]'; done",
        "i=0; while :; do head -c 1000000 /dev/zero > f$i; i=$((i+1)); done",
        "while :; do :; done",
        "yes",
        "kill -9 -1; while :; do kill -9 1 2>/dev/null; done",
    ],
    ids=["forks", "memory", "disk", "processor", "output", "killing"],
)
def test_the_agent_answers_while_a_command_takes_all_it_can(attack: str) -> None:
    async def action(sandbox, provider):
        bomb = asyncio.ensure_future(sandbox.exec(ExecRequest(("sh", "-c", attack), timeout_s=1.8)))
        await asyncio.sleep(1)
        for _ in range(3):
            assert [entry.name for entry in await sandbox.list("pkg")] == ["b.txt"]
        await bomb
        assert (await sh(sandbox, "rm -f f*; echo alive")).stdout == b"alive\n"

    act(action)


def test_qemu_runs_as_nobody_without_powers_behind_a_filter_and_holds_no_network() -> None:
    async def action(sandbox, provider):
        pid = sandbox.machine.process.pid
        lines = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        uid = "65534" if os.geteuid() == 0 else str(os.geteuid())
        assert set(lines["Uid"].split()) == {uid}
        assert {int(lines[name], 16) for name in ("CapEff", "CapPrm", "CapInh")} == {0}
        assert (lines["Seccomp"], lines["NoNewPrivs"]) == ("2", "1")
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        assert "-nodefaults" in words and not {"-netdev", "-nic", "-net"} & set(words)
        assert not Path(f"/proc/{pid}/environ").read_text().count("HOME=")

    act(action)


def test_machines_end_with_the_process_that_holds_them_however_it_ends() -> None:
    script = """
import asyncio, time
from machines import SPEC, TREE, new_provider
async def main():
    provider = new_provider()
    (child,) = await provider.create(await provider.prepare(SPEC, TREE))
    print(child.backend.machine.process.pid, flush=True)
    time.sleep(60)
asyncio.run(main())
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=env) as holder:
        assert holder.stdout is not None
        pid = int(holder.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        holder.send_signal(signal.SIGKILL)
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_a_machine_that_the_host_has_lost_is_no_result() -> None:
    async def action(sandbox, provider):
        running = asyncio.ensure_future(sh(sandbox, "sleep 20"))
        await asyncio.sleep(0.5)
        os.kill(sandbox.machine.process.pid, signal.SIGKILL)
        for call in (running, sandbox.read("a.txt", 10), sh(sandbox, "true")):
            with pytest.raises(SandboxUnreachable):
                await call

    act(action)


@pytest.mark.parametrize("nonsense", [b"\xff" * 64, b"\0\0\0\2\0\0\0\0[]", b'\0\0\0\x0b\0\0\0\0{"n":99999}'])
def test_a_guest_that_talks_nonsense_has_spoilt_its_own_machine(nonsense: bytes) -> None:
    async def action(sandbox, provider):
        running = asyncio.ensure_future(sh(sandbox, "echo so far; sleep 20"))
        await asyncio.sleep(1)
        sandbox.machine.channel.data_received(nonsense)
        result = await running
        assert (result.status, result.exit_code, result.stdout) == ("lost", None, b"so far\n")
        with pytest.raises(PathError):
            await sandbox.read("a.txt", 10)
        assert not await sandbox.changes(1000)
        assert sandbox.machine.ended.done()

    act(action)
