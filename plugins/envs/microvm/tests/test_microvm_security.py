"""What a machine has of its own against a hostile command, and what a hostile machine meets; on real QEMU."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from machines import act, heard, output, sh

from composer_core.errors import PathError, SandboxUnreachable


def test_a_command_has_no_power_over_its_machine() -> None:
    """Beside what the public suite tries in every kind of sandbox."""
    script = """
    for at in /x /run/x /proc/sys/kernel/core_pattern /dev/vport0p1; do
      (echo no > $at) 2>/dev/null && echo "wrote $at"
    done
    kill -9 1 2>/dev/null && echo killed
    cat /proc/1/environ /proc/1/mem 2>/dev/null && echo read
    cut -d: -f1 /proc/net/dev | tail -n +3
    cat /proc/sys/kernel/modules_disabled
    """

    async def action(sandbox, provider):
        return await output(sandbox, script)

    assert act(action) == "    lo\n1\n"


def test_a_time_limit_ends_what_left_session_group_and_parent() -> None:
    script = "setsid sh -c '(sleep 50) &' & setsid sleep 50 & sleep 50"

    async def action(sandbox, provider):
        assert (await sh(sandbox, script, timeout_s=1.5)).status == "timeout"
        assert await output(sandbox, "cat /proc/[0-9]*/comm | grep sleep") == ""

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
        running = asyncio.ensure_future(sh(sandbox, "echo so far; sleep 20"))
        await heard(sandbox, b"so far\n")
        os.kill(sandbox.machine.process.pid, signal.SIGKILL)
        for call in (running, sandbox.read("a.txt", 10), sh(sandbox, "true")):
            with pytest.raises(SandboxUnreachable):
                await call

    act(action)


@pytest.mark.parametrize("nonsense", [b"\xff" * 64, b"\0\0\0\2\0\0\0\0[]", b'\0\0\0\x0b\0\0\0\0{"n":99999}'])
def test_a_guest_that_talks_nonsense_has_spoilt_its_own_machine(nonsense: bytes) -> None:
    async def action(sandbox, provider):
        running = asyncio.ensure_future(sh(sandbox, "echo so far; sleep 20"))
        await heard(sandbox, b"so far\n")
        sandbox.machine.channel.data_received(nonsense)
        result = await running
        assert (result.status, result.exit_code, result.stdout) == ("lost", None, b"so far\n")
        with pytest.raises(PathError):
            await sandbox.read("a.txt", 10)
        assert not await sandbox.changes(1000)
        assert sandbox.machine.ended.done()

    act(action)
