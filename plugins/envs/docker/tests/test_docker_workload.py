"""What a workload does to itself is its own end, never the sandbox's: memory, processes, disk, floods (S2)."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace

import pytest
from containers import SPEC, act, run, sh

from composer_core.errors import SandboxGone, SandboxUnreachable
from composer_core.protocols import Failed
from composer_core.trees import Patch
from composer_plugin_docker.config import DockerConfig
from composer_plugin_docker.endings import NEAR_S, told
from composer_plugin_docker.engine import Engine
from composer_plugin_docker.sandbox import DockerSandbox
from composer_plugin_docker.walls import Template


def test_memory_a_command_may_not_have_is_its_own_end() -> None:
    result = run("exec python3 -S -c \"x = bytearray(600 << 20); print('had it')\"")
    assert (result.status, result.exit_code, result.stdout) == ("oom", None, b"")


def test_a_fork_bomb_ends_with_its_time_and_is_gone() -> None:
    bomb = "import os\nwhile True:\n  try:\n    if not os.fork(): os.setsid()\n  except OSError: pass"
    result = run(f"exec python3 -S -c '{bomb}'", 3.0)
    assert result.status == "timeout"
    assert b"fork" in run("bomb() { bomb | bomb & bomb; }; bomb").stderr.lower()


def test_a_bomb_of_threads_is_gone_with_its_command() -> None:
    script = "import threading, time\nwhile True:\n threading.Thread(target=time.sleep, args=(60,)).start()"
    result = run(f"exec python3 -S -c '{script}'", 5.0)
    assert (result.status, result.exit_code) in (("exited", 1), ("timeout", None))


@pytest.mark.parametrize("place", ["/workspace", "/tmp", "/dev/shm"])
def test_a_full_disk_is_the_commands_own_error_and_files_stay(place: str) -> None:
    result = run(f"cd {place}; i=0; while head -c 1000000 /dev/zero > f$i; do i=$((i+1)); done; cat /workspace/a.txt")
    assert result.status == "exited" and b"No space left" in result.stderr and result.stdout == b"one\n"


def test_cores_are_limited() -> None:
    v2, v1 = "/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_"

    async def action(sandbox, provider):
        found = await sh(sandbox, f"cat {v2} 2>/dev/null || cat {v1}quota_us {v1}period_us")
        return found.stdout.split()

    quota, period = map(int, act(action, config=DockerConfig(cpus=0.5)))
    assert quota / period == 0.5


def test_descriptors_are_limited() -> None:
    script = "import os\ntry:\n  while True: os.dup(0)\nexcept OSError as e: print(e.errno)"
    assert run(f"python3 -S -c '{script}'").stdout == b"24\n"


def test_what_a_command_leaves_ends_with_it_and_leaves_other_commands_alone() -> None:
    async def action(sandbox, provider):
        other = asyncio.ensure_future(sh(sandbox, "sleep 1; echo whole", 30))
        await asyncio.sleep(0.2)
        first = await sh(sandbox, "setsid sleep 77.7 & sleep 78.8 & echo done")
        assert first.stdout == b"done\n" and b"sleep" not in (await sh(sandbox, "cat /proc/*/comm")).stdout.replace(
            b"sleep\n", b"", 1
        )
        assert (await other).stdout == b"whole\n"

    act(action)


def test_an_agent_that_answers_nobody_is_ended_and_the_attempt_goes_on_to_be_graded(monkeypatch) -> None:
    """The engine's pause stands for whatever keeps an agent from its work."""
    monkeypatch.setattr("composer_plugin_docker.sandbox.GRACE_S", 0.5)

    async def action(sandbox, provider):
        api = provider.engine.api
        running = asyncio.ensure_future(sh(sandbox, "sleep 50", 1.0))
        await asyncio.sleep(0.3)
        await provider.engine.call(api.pause, sandbox._container)
        assert (await running).status == "lost"
        await ended_by_its_workload(sandbox)

    act(action)


def test_an_agent_that_gave_up_is_the_workloads_doing() -> None:
    async def action(sandbox, provider):
        await end_agent_with(sandbox, provider)
        assert (await sh(sandbox, "true")).status == "lost"
        await ended_by_its_workload(sandbox)

    act(action)


async def end_agent_with(sandbox, provider) -> None:
    """A frame that is none makes the agent raise, as running out of everything would."""
    sandbox._channel._transport.write(b"\xff" * 64)
    await asyncio.sleep(1)


async def ended_by_its_workload(sandbox) -> None:
    """Calls answer, none is an error of the machinery."""
    assert (await sh(sandbox, "true")).status == "lost"
    assert await sandbox.changes(100) == Patch()
    (child,) = await sandbox.fork(1)
    assert isinstance(child, Failed) and not child.retryable


def test_a_container_that_somebody_else_removes_is_no_fault_of_the_policy() -> None:
    async def action(sandbox, provider):
        running = asyncio.ensure_future(sh(sandbox, "sleep 50", 60))
        await asyncio.sleep(0.3)
        await provider.engine.remove_container(sandbox._container)
        with pytest.raises((SandboxGone, SandboxUnreachable)):
            await running
        with pytest.raises((SandboxGone, SandboxUnreachable)):
            await sandbox.read("a.txt", 10)

    act(action)


def test_a_container_that_somebody_else_kills_is_no_fault_of_the_policy() -> None:
    """Although the engine says `OOMKilled` of it, for the command that once was."""

    async def action(sandbox, provider):
        assert (await sh(sandbox, 'exec python3 -S -c "bytearray(600 << 20)"')).status == "oom"
        await asyncio.sleep(2 * NEAR_S)
        await provider.engine.call(provider.engine.api.kill, sandbox._container)
        for _ in range(2):
            with pytest.raises(SandboxUnreachable):
                await sh(sandbox, "true")

    act(action)


def test_a_provider_that_is_closed_while_an_end_is_looked_into_leaves_no_error_that_nobody_hears(caplog) -> None:
    """Without an engine: it is asked again and again whether it has noticed that the container ended."""
    asked: list[str] = []

    def running(container: str) -> dict[str, object]:
        asked.append(container)
        return {"State": {"Running": True}}

    async def main() -> None:
        engine = Engine(SimpleNamespace(inspect_container=running, close=lambda: None), "me")
        sandbox = DockerSandbox(SimpleNamespace(engine=engine), Template("", (), {}, SPEC, 0))
        sandbox._channel = SimpleNamespace(last_words=b"", malformed=False, close=lambda: None)
        judging = asyncio.ensure_future(sandbox._judge_once())
        while not asked:
            await asyncio.sleep(0.01)
        judging.cancel()
        await sandbox.end()
        await asyncio.to_thread(engine.close)
        with pytest.raises(SandboxGone, match="closed"):
            await engine.call(running, "another")
        await asyncio.wait([sandbox._judging])
        assert sandbox._judging.exception() is None

    asyncio.run(main())
    gc.collect()
    assert not caplog.records


@pytest.mark.parametrize(
    ("state", "for_memory", "cause"),
    [
        ({"Running": True}, False, ""),
        ({"Running": False, "ExitCode": 137}, True, "out of memory"),
        ({"Running": False, "ExitCode": 137}, False, ""),
        ({"Running": False, "ExitCode": 70}, False, "its agent gave up (words)"),
    ],
)
def test_who_ended_a_container_is_read_off_its_end(state, for_memory, cause) -> None:
    assert told(state, for_memory, "words") == cause
