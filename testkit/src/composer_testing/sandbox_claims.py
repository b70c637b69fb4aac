"""What a sandbox is tried on for each capability that its record may declare: `CLAIMS`, used by `SandboxContract`.

A probe does what the capability promises and asserts that it held; where the backend lacks the methods, the framework's
Sandbox raises `Unsupported`. Commands are words of `sh`, coreutils and `setsid` (util-linux, busybox).
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from composer_core.errors import QuotaError, SandboxGone, Unsupported
from composer_core.protocols import (
    Changes,
    Created,
    ExecResult,
    SandboxBackend,
    SandboxProvider,
    SnapshotRef,
    TemplateSpec,
)
from composer_core.sandbox import Sandbox
from composer_core.trees import Patch, Tree
from composer_testing.sandbox_networks import networks
from composer_testing.sandbox_walls import isolates

TREE = Tree.of({"a.txt": "one\n", "pkg/b.txt": "two\n", "pkg/deep/c.txt": "three\n"})
SPEC = TemplateSpec(TREE.ref, file_bytes=1 << 20, disk_bytes=8 << 20, memory_bytes=128 << 20, processes=24)
SLEEPS = f"sleep 86400.{os.getpid()}"
"""A command that no other process on this machine has."""
DEPTH = 20 if os.environ.get("COMPOSER_SOAK") else 6
"""How many times a fork is forked."""
WAIT_S = 8.0
"""How long a probe waits for what must happen by itself."""
Probe = Callable[[Sandbox, SandboxProvider], Awaitable[None]]


async def until(happened: Callable[[], Awaitable[bool]]) -> bool:
    """Whether it happens within `WAIT_S`."""
    for _ in range(int(WAIT_S * 20)):
        if await happened():
            return True
        await asyncio.sleep(0.05)
    return False


def held() -> set[str]:
    """What a sandbox could leave: temporary files, and this process's descriptors, children and `SLEEPS`."""
    files = {str(path) for path in Path(tempfile.gettempdir()).rglob("*")}
    children = {f"child {pid}" for task in Path("/proc/self/task").glob("*/children") for pid in _text(task).split()}
    commands = ((path, _text(path).replace("\0", " ")) for path in Path("/proc").glob("[0-9]*/cmdline"))
    left = {f"{path.parent.name} ({line})" for path, line in commands if SLEEPS in line}
    return files | {f"descriptor {fd.name}" for fd in Path("/proc/self/fd").glob("*")} | children | left


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # a process that has ended
        return ""


# --- files --------------------------------------------------------------------------------------------------------


async def changes(sandbox: Sandbox, provider: SandboxProvider) -> None:
    if not isinstance(sandbox.backend, Changes):
        raise Unsupported("the backend has no method changes()")
    await sandbox.write("a.txt", b"changed")
    await sandbox.write("new/file", b"new")
    await sandbox.exec(["rm", "-f", "pkg/b.txt"])
    told, true = await sandbox.patch(), Patch.between(TREE, await sandbox.tree())
    assert told == true, f"changes() tells {told}; a walk finds {true}"


async def forks(sandbox: Sandbox, provider: SandboxProvider) -> None:
    await sandbox.write("a.txt", b"parent")
    await sandbox.exec(["rm", "-f", "pkg/b.txt"])
    first, second, *_ = children = await forked(sandbox, 8)
    ids = {child.id for child in (*children, sandbox)}
    assert len(ids) == 9, f"{len(ids) - 1} new ids of 8 forks"
    starts = [await child.patch() for child in children]
    assert set(starts) == {await sandbox.patch()}, f"forks do not start as their parent is: {starts}"
    await first.write("a.txt", b"child")
    found = await second.read("a.txt"), await sandbox.read("a.txt")
    assert found == (b"parent", b"parent"), f"what one fork wrote is seen by a sibling or the parent: {found}"
    for depth in range(DEPTH):
        await first.write(f"at-{depth}", b"x")
        (child,) = await forked(first, 1)
        await first.destroy()
        first = child
    kept = {file.path for file in (await first.patch()).writes}
    assert kept == {"a.txt", *(f"at-{depth}" for depth in range(DEPTH))}, f"a fork of forks kept {sorted(kept)}"


async def forked(sandbox: Sandbox, n: int) -> list[Sandbox]:
    found = await sandbox.fork(n)
    made = [child for child in found if isinstance(child, Sandbox)]
    assert len(found) == len(made) == n, f"fork({n}) gave {len(made)} sandboxes of {found}"
    return made


async def file_snapshots(sandbox: Sandbox, provider: SandboxProvider) -> None:
    await sandbox.write("kept", b"1")
    ref = await sandbox.snapshot()
    await sandbox.write("kept", b"2")
    await sandbox.destroy()
    for _ in range(2):
        backend = await restored(provider, ref)
        assert await backend.read("kept", 10) == b"1", "a file is not as it was when the snapshot was taken"
        await backend.write("kept", b"3")


async def restored(provider: SandboxProvider, ref: SnapshotRef) -> SandboxBackend:
    made = await provider.create(ref)
    assert len(made) == 1 and isinstance(made[0], Created), f"create(snapshot) gave {made}, not one sandbox"
    return made[0].backend


# --- processes ----------------------------------------------------------------------------------------------------


async def full_snapshots(sandbox: Sandbox, provider: SandboxProvider) -> None:
    await sandbox.full_snapshot()
    shells = "sandbox.sessions" in await provider.probe()
    if shells:
        await sandbox.session_exec("shell", ["cd", "pkg"])
    script = "sleep 2; echo on > late"
    running = asyncio.ensure_future(sandbox.exec(["sh", "-c", f"setsid sh -c '{script}' & {script}"], timeout_s=30))
    await asyncio.sleep(0.5)
    ref = await sandbox.full_snapshot()
    await sandbox.destroy()
    await asyncio.gather(running, return_exceptions=True)
    backend = await restored(provider, ref)

    async def went_on() -> bool:
        return "late" in [entry.name for entry in await backend.list("")]

    assert await until(went_on), "a process that ran when it was captured does not go on in what is created from that"
    if shells:
        kept = await Sandbox(backend, sandbox.plugin, TREE).session_exec("shell", ["cat", "b.txt"], timeout_s=20)
        assert kept.stdout == b"two\n", f"a session that stood in pkg when it was captured prints {kept}"


async def sessions(sandbox: Sandbox, provider: SandboxProvider) -> None:
    async def said(*words: str, name: str = "one", timeout_s: float = 20) -> ExecResult:
        return await sandbox.session_exec(name, words, timeout_s=timeout_s)

    await said("cd", "pkg")
    one, other = await said("cat", "b.txt"), await said("cat", "a.txt", name="other")
    assert one.stdout == b"two\n", f"after `cd pkg` a session's `cat b.txt` prints {one.stdout + one.stderr!r}"
    assert other.stdout == b"one\n", f"another session's `cat a.txt` prints {other.stdout + other.stderr!r}"
    await said("eval", "kept=3; show() { echo $kept; }")
    shown = await said("show")
    assert shown.stdout == b"3\n", f"a function that shows a variable prints {shown.stdout + shown.stderr!r}"
    ended = await said("eval", "exit 3")
    assert (ended.exit_code, ended.restarted) == (3, True), f"a session that ends itself with 3 is told as {ended}"
    late = await said("sleep", "40", timeout_s=1)
    assert (late.status, late.restarted) == ("timeout", True), f"a command that is late is told as {late}"
    lost = await said("show")
    assert lost.exit_code == 127, f"what a session held is there after it has ended: {lost}"


async def pauses(sandbox: Sandbox, provider: SandboxProvider) -> None:
    await sandbox.pause()
    await sandbox.resume()
    running = asyncio.ensure_future(sandbox.exec(["sh", "-c", "sleep 2; echo done"], timeout_s=4))
    await asyncio.sleep(0.1)
    await sandbox.pause()
    later = asyncio.ensure_future(sandbox.exec(["echo", "later"], timeout_s=20))
    await asyncio.sleep(4.2)
    went_on, begun = running.done(), later.done()
    await sandbox.resume()
    result = await running
    assert not went_on, "a command came to its end while its sandbox was paused"
    assert result.status != "timeout", f"a command's time of 4 s ran on while its sandbox was paused: {result}"
    assert result.stdout == b"done\n", f"after resume() a command ended with {result}"
    assert not begun, "a command began while its sandbox was paused"
    assert (await later).stdout == b"later\n", "a command that was asked for meanwhile was never run"


async def leases(sandbox: Sandbox, provider: SandboxProvider) -> None:
    for _ in range(4):
        await sandbox.renew(1.0)
        await asyncio.sleep(0.4)
    await provider.attach(sandbox.id)

    async def reaped() -> bool:
        with suppress(SandboxGone):
            await provider.attach(sandbox.id)
            return False
        return True

    assert await until(reaped), f"a lease of 1 s was not renewed and the sandbox is still there {WAIT_S} s later"


# --- limits -------------------------------------------------------------------------------------------------------
# Each takes a little first, which every sandbox must give: a command that cannot run says nothing about a limit.


async def memory(sandbox: Sandbox, provider: SandboxProvider) -> None:
    async def hold(size: int) -> ExecResult:
        return await sandbox.exec(["sh", "-c", f"head -c {size} /dev/zero | tail -c {size} | wc -c"], timeout_s=60)

    small, large = 16_000_000, 390_000_000
    result = await hold(small)
    assert result.stdout.strip() == b"%d" % small, f"no command to try it with, not even 16 MB could be held: {result}"
    result = await hold(large)
    assert result.stdout.strip() != b"%d" % large, f"a command held 390 MB, over {SPEC.memory_bytes}"
    assert result.status != "timeout", f"a command that would hold 390 MB was not stopped in time: {result}"
    await lives(sandbox)


async def processes(sandbox: Sandbox, provider: SandboxProvider) -> None:
    async def start(count: int) -> ExecResult:
        script = f"for i in $(seq {count}); do sleep 30 & done; echo all"
        return await sandbox.exec(["sh", "-c", script], timeout_s=10)

    result = await start(8)
    assert result.stdout == b"all\n", f"no command to try it with, not even 8 processes could be started: {result}"
    result = await start(200)
    assert b"all" not in result.stdout, f"a command started 200 processes, over {SPEC.processes}"
    told = result.status != "timeout" or b"fork" in result.stderr.lower()  # bash tries for long to fork again
    assert told, f"a command that would start 200 processes was not stopped in time: {result}"
    await lives(sandbox)


async def file_size(sandbox: Sandbox, provider: SandboxProvider) -> None:
    async def grow(size: int) -> int:
        result = await sandbox.exec(["sh", "-c", f"head -c {size} /dev/zero > big; wc -c < big"])
        assert result.stdout.strip().isdigit(), f"no command to try it with: {result}"
        return int(result.stdout)

    found = await grow(1000)
    assert found == 1000, f"of a file of 1000 bytes a command wrote {found}"
    found = await grow(3_000_000)
    assert found <= SPEC.file_bytes, f"a command wrote a file of {found} bytes"


async def disk(sandbox: Sandbox, provider: SandboxProvider) -> None:
    fill = "i=0; while head -c 900000 /dev/zero > f$i; do i=$((i+1)); test $i -lt 40 || exit 9; done"
    result = await sandbox.exec(["sh", "-c", f"{fill}; test $i -gt 0 && exit 3"], timeout_s=30)
    assert result.exit_code in (3, 9), f"no command to try it with, not even 900 kB could be written: {result}"
    assert result.exit_code == 3, f"a command wrote 36 MB, over {SPEC.disk_bytes}: {result}"
    with pytest.raises(QuotaError):
        await sandbox.write("more", b"x" * 900_000)
    assert await sandbox.read("pkg/b.txt") == b"two\n", "a full disk took a file along"


async def lives(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["echo", "alive"])
    assert result.stdout == b"alive\n", f"the sandbox did not outlive the command: {result}"


CLAIMS: Mapping[str, Probe] = {
    "sandbox.isolates": isolates,
    "sandbox.forks": forks,
    "sandbox.snapshots.files": file_snapshots,
    "sandbox.snapshots.full": full_snapshots,
    "sandbox.sessions": sessions,
    "sandbox.pauses": pauses,
    "sandbox.networks": networks,
    "sandbox.leases": leases,
    "sandbox.limits.memory": memory,
    "sandbox.limits.processes": processes,
    "sandbox.limits.file_size": file_size,
    "sandbox.limits.disk": disk,
    "sandbox.changes": changes,
}
"""Capability -> its probe."""
