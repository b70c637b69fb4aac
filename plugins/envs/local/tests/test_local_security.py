"""What the namespaces tier promises beside what the public suite tries in every kind of sandbox; on real bubblewrap."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from composer_core.errors import ConfigError, PathError, SandboxGone, SandboxUnreachable
from composer_core.protocols import Created, ExecRequest, ExecResult, TemplateSpec
from composer_core.trees import Tree
from composer_plugin_local.config import NamespacesConfig
from composer_plugin_local.namespaces import NamespacesProvider, NamespacesSandbox, hidden_folders, package_folders

TREE = Tree.of({"a.txt": "one\n", "pkg/b.txt": "two\n"})
SPEC = TemplateSpec(TREE.ref, ("python3",), processes=24, disk_bytes=16 << 20, memory_bytes=128 << 20)
Act = Callable[[NamespacesSandbox, NamespacesProvider], Awaitable[Any]]


def act(action: Act) -> Any:
    async def whole() -> Any:
        provider = NamespacesProvider()
        try:
            return await asyncio.wait_for(action(await create(provider), provider), 60)
        finally:
            await provider.close()

    return asyncio.run(whole())


async def create(provider: NamespacesProvider) -> NamespacesSandbox:
    (child,) = await provider.create(await provider.prepare(SPEC, TREE))
    assert isinstance(child, Created) and isinstance(child.backend, NamespacesSandbox)
    return child.backend


async def sh(sandbox: NamespacesSandbox, script: str, timeout_s: float = 20.0) -> ExecResult:
    return await sandbox.exec(ExecRequest(("sh", "-c", script), timeout_s=timeout_s))


def output(script: str) -> str:
    async def action(sandbox: NamespacesSandbox, provider: NamespacesProvider) -> str:
        result = await sh(sandbox, script)
        return (result.stdout + result.stderr).decode()

    return str(act(action))


def test_packages_that_this_process_imports_are_not_seen() -> None:
    """A task set keeps its answers in its package; installed system-wide, that stands below /usr."""
    folder = next(path for path in sorted(Path("/usr/share").iterdir()) if path.is_dir() and any(path.iterdir()))

    async def listed(**settings: Any) -> str:
        provider = NamespacesProvider(**settings)
        try:
            return (await sh(await create(provider), f"ls -A {folder}; touch {folder}/x")).stdout.decode()
        finally:
            await provider.close()

    assert asyncio.run(listed(packages=[]))
    assert not asyncio.run(listed(packages=[str(folder)]))


def test_package_folders_are_translated_to_what_a_sandbox_sees(tmp_path: Path) -> None:
    inside = tmp_path / "lib" / "site-packages"
    inside.mkdir(parents=True)
    assert hidden_folders({"python3": str(tmp_path)}, [str(inside), "/proc/none"]) == ["/opt/python3/lib/site-packages"]
    assert hidden_folders({}, [str(inside)]) == []
    assert all("-packages" in path for path in package_folders())
    assert package_folders()


def test_no_file_of_the_host_is_seen(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host secret")
    tmp_path.chmod(0o755)
    script = f"cat {secret} /proc/1/root{secret} /proc/self/root{secret} /etc/shadow /root/.bashrc; ls /home /root /mnt"
    found = output(script)
    assert "host secret" not in found and found.count("No such file") >= 6


def test_system_folders_and_devices_cannot_be_written() -> None:
    found = output(
        "for at in /usr/x /bin/x /etc/x /x /dev/x /proc/sys/kernel/core_pattern; do echo no > $at; done; ls /"
    )
    assert found.count("cannot create") == 6


def test_there_is_loopback_and_no_other_network() -> None:
    found = output("cat /proc/net/dev | tail -n +3 | cut -d: -f1; cat /proc/net/route | tail -n +2")
    assert found.split() == ["lo"]


def test_no_power_is_held_and_none_can_be_gained() -> None:
    found = output(
        "grep -E 'CapEff|CapPrm|CapBnd|NoNewPrivs' /proc/self/status; unshare -U true; mount -t tmpfs x /tmp"
    )
    assert found.count("0000000000000000") == 3 and "NoNewPrivs:\t1" in found
    assert "unshare failed" in found and "mount: " in found


def test_a_network_is_a_sandboxs_own_and_the_keeper_has_none() -> None:
    listen = (
        "import socket; a, b = socket.socket(), socket.socket(socket.AF_UNIX); a.bind(('127.0.0.1', 4321)); "
        "b.bind('\\0here'); a.listen(); b.listen(); open('ready', 'w'); a.accept(); b.accept()"
    )
    connect = (
        "import socket; a, b = socket.socket(), socket.socket(socket.AF_UNIX); "
        "print(a.connect_ex(('127.0.0.1', 4321)), b.connect_ex('\\0here'))"
    )

    async def action(sandbox: NamespacesSandbox, provider: NamespacesProvider) -> None:
        other = await create(provider)
        listening = asyncio.ensure_future(sandbox.exec(ExecRequest(("python3", "-S", "-c", listen), timeout_s=20)))
        while "ready" not in [entry.name for entry in await sandbox.list("")]:
            await asyncio.sleep(0.01)
        found = [await each.exec(ExecRequest(("python3", "-S", "-c", connect))) for each in (other, sandbox)]
        assert [result.stdout for result in found] == [b"111 111\n", b"0 0\n"]
        assert (await listening).exit_code == 0
        host, keepers = os.readlink("/proc/self/ns/net"), []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if b"keeper.start" in (path / "cmdline").read_bytes():
                    keepers.append(os.readlink(path / "ns/net"))
        assert keepers.count(host) <= len(keepers) // 3, "launchers alone, which start nothing but what leaves it"

    act(action)


def test_devices_and_terminals_work_and_none_can_be_added() -> None:
    script = (
        "echo x > /dev/null; head -c 4 /dev/zero | od -An -tx1; head -c 8 /dev/urandom | wc -c; "
        "python3 -S -c 'import os, pty; a, b = pty.openpty(); os.write(b, b\"typed\"); print(os.read(a, 9))'; "
        "mknod /tmp/sda b 8 0 2>/dev/null || echo none; ls /dev/pts"
    )
    assert output(script).split() == ["00"] * 4 + ["8", "b'typed'", "none", "ptmx"]


def test_mounts_cannot_be_changed_and_nothing_lies_bare_below_them() -> None:
    acts = (
        "mount -o remount,rw /",
        "mount -o remount,rw /usr",
        "umount -l /proc",
        "mount --bind /usr /tmp",
        "touch /usr/x",
    )
    assert output("".join(f"{act} 2>/dev/null && echo done;" for act in acts)) == ""
    mounted = output("cat /proc/self/mountinfo")
    rows = {line.split()[4]: line.split()[5].split(",") for line in mounted.splitlines()}
    writable = {path for path, options in rows.items() if "rw" in options and not path.startswith(("/proc", "/dev/"))}
    assert writable == {"/tmp", "/workspace"}
    assert all("nosuid" in options for options in rows.values())
    assert {path for path, options in rows.items() if "nodev" not in options} <= {
        "/dev", "/dev/pts", *(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty"))
    }  # fmt: skip


def test_shared_memory_of_a_command_ends_with_it() -> None:
    async def action(sandbox: NamespacesSandbox, provider: NamespacesProvider) -> None:
        made = await sh(sandbox, "ipcmk -M 100000 -Q; ipcs -m | grep -c 100000; hostname")
        assert made.stdout.splitlines()[-2:] == [b"1", b"sandbox"], made
        assert (await sh(sandbox, "ipcs -mq | grep -c '^0x'")).stdout == b"0\n"

    act(action)


def test_processes_of_the_host_and_of_siblings_are_not_seen() -> None:
    async def action(sandbox: NamespacesSandbox, provider: NamespacesProvider) -> bytes:
        other = await create(provider)
        sleeping = asyncio.ensure_future(sh(other, "exec sleep 4321", 30))
        await sh(other, "sleep 0.2")
        found = (await sh(sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; ls /tmp /workspace/..")).stdout
        await other.destroy()
        with pytest.raises(SandboxGone):
            await sleeping
        return found

    found = act(action)
    assert b"4321" not in found and b"pytest" not in found


def test_tmp_is_private_and_lasts_as_long_as_the_sandbox() -> None:
    async def action(sandbox: NamespacesSandbox, provider: NamespacesProvider) -> None:
        await sh(sandbox, "echo kept > /tmp/mine; echo kept > /dev/shm/mine")
        assert (await sh(sandbox, "cat /tmp/mine /dev/shm/mine")).stdout == b"kept\nkept\n"
        assert (await sh(await create(provider), "ls /tmp /dev/shm")).stdout.split() == [b"/dev/shm:", b"/tmp:"]

    act(action)


def test_fifos_and_devices_do_not_block_file_operations() -> None:
    async def action(sandbox: NamespacesSandbox, provider: NamespacesProvider) -> None:
        await sh(sandbox, "mkfifo pipe; python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('sock')\"")
        for path in ("pipe", "sock"):
            with pytest.raises(PathError):
                await sandbox.read(path, 100)
            with pytest.raises(PathError):
                await sandbox.write(path, b"x")
        assert set((await sandbox.changes(100)).skipped) == {"pipe", "sock"}

    act(action)


def test_whiteouts_opaque_folders_and_names_without_encoding_make_a_true_patch() -> None:
    async def action(sandbox: NamespacesSandbox, provider: NamespacesProvider) -> None:
        await sh(sandbox, "rm -r pkg a.txt; mkdir -p pkg/new a.txt; echo x > pkg/new/file; echo y > a.txt/y")
        await sh(sandbox, "echo > $(printf '\\377')")
        (child,) = await sandbox.fork(1)
        assert isinstance(child, Created) and isinstance(child.backend, NamespacesSandbox)
        for one in (sandbox, child.backend):
            patch = await one.changes(1 << 20)
            assert [file.path for file in patch.writes] == ["a.txt/y", "pkg/new/file"]
            assert patch.deletes == ("a.txt", "pkg/b.txt") and len(patch.skipped) == 1

    act(action)


def test_a_flood_of_output_is_drained_counted_and_capped() -> None:
    async def action(sandbox: NamespacesSandbox, provider: NamespacesProvider) -> ExecResult:
        return await sh(sandbox, "head -c 100000000 /dev/zero; head -c 5000000 /dev/zero >&2")

    result = act(action)
    assert (result.exit_code, result.stdout_bytes, result.stderr_bytes) == (0, 100_000_000, 5_000_000)
    assert len(result.stdout) == len(result.stderr) == 1 << 20


def test_a_timeout_kills_what_left_its_session_too() -> None:
    marker = f"{os.getpid()}.7654"

    async def action(sandbox: NamespacesSandbox, provider: NamespacesProvider) -> None:
        result = await sh(sandbox, f"setsid sh -c 'setsid sleep {marker} & sleep {marker}' & sleep {marker}", 0.5)
        assert result.status == "timeout"
        assert marker not in commands_on_this_machine()

    act(action)


def commands_on_this_machine() -> str:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(found)


def test_memory_a_command_may_not_have_is_its_own_end() -> None:
    async def action(sandbox: NamespacesSandbox, provider: NamespacesProvider) -> ExecResult:
        request = ExecRequest(("python3", "-S", "-c", "x = bytearray(600 << 20); print('had it')"))
        result = await sandbox.exec(request)
        assert (await sh(sandbox, "echo alive")).stdout == b"alive\n"
        return result

    result = act(action)
    assert result.stdout == b"" and (result.status == "oom" or b"MemoryError" in result.stderr)


def test_a_killed_keeper_is_unreachable_and_takes_its_processes_along() -> None:
    marker = f"{os.getpid()}.8765"

    async def action(sandbox: NamespacesSandbox, provider: NamespacesProvider) -> None:
        running = asyncio.ensure_future(sh(sandbox, f"sleep {marker}"))
        await sh(sandbox, "sleep 0.2")
        assert marker in commands_on_this_machine()
        assert provider._keeper is not None and provider._keeper.process is not None
        provider._keeper.process.send_signal(signal.SIGKILL)
        with pytest.raises(SandboxUnreachable):
            await running
        with pytest.raises(SandboxUnreachable):
            await sandbox.read("a.txt", 10)
        await sandbox.destroy()
        for _ in range(100):
            if marker not in commands_on_this_machine():
                return
            await asyncio.sleep(0.05)
        raise AssertionError("a command outlived its keeper")

    act(action)


SUICIDE = """
import asyncio, os, signal
from composer_core.protocols import ExecRequest, TemplateSpec
from composer_core.trees import Tree
from composer_plugin_local.namespaces import NamespacesProvider

async def main():
    provider, tree = NamespacesProvider(), Tree.of({"a": "b"})
    (child,) = await provider.create(await provider.prepare(TemplateSpec(tree.ref), tree))
    task = asyncio.ensure_future(child.backend.exec(ExecRequest(("sleep", MARKER))))
    await child.backend.exec(ExecRequest(("true",)))
    print(provider._keeper.process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_a_killed_controller_leaves_no_process_mount_or_group() -> None:
    marker = f"{os.getpid()}.9876"
    words = [sys.executable, "-c", f"MARKER = {marker!r}\n{SUICIDE}"]
    child = subprocess.run(words, check=False, timeout=60, stdout=subprocess.PIPE)
    assert child.returncode == -signal.SIGKILL
    launchers = [int(child.stdout)]
    for _ in range(100):
        if marker not in commands_on_this_machine() and not leftovers(launchers):
            return
        subprocess.run(["sleep", "0.05"], check=True)
    raise AssertionError(leftovers(launchers))


def test_fifty_sandboxes_with_crashes_leave_nothing() -> None:
    fds, launchers = len(os.listdir("/proc/self/fd")), []

    async def action(sandbox: NamespacesSandbox, provider: NamespacesProvider) -> None:
        forks: list[str] = []
        for index in range(50):
            one = await create(provider)
            running = asyncio.ensure_future(sh(one, ["kill -9 $$", "sleep 60", "true"][index % 3]))
            await asyncio.sleep(0.01)
            forks += [child.backend.id for child in await one.fork(2) if isinstance(child, Created)]
            await one.destroy()
            await asyncio.gather(running, return_exceptions=True)
        keeper = provider._keeper
        assert keeper is not None and keeper.process is not None
        launchers.append(keeper.process.pid)
        assert bool(leftovers(launchers)) == keeper.counts_memory, "what is looked for at the end is there now"
        header, _ = await keeper.ask("stats")
        assert (header["sandboxes"], header["running"]) == (101, 0)  # the first, and two forks of each
        many = header["descriptors"]
        for one in [NamespacesSandbox(keeper, name) for name in forks]:
            await one.destroy()
        header, _ = await keeper.ask("stats")
        assert (header["sandboxes"], header["descriptors"]) == (1, many - 3 * len(forks))

    act(action)
    assert not leftovers(launchers) and len(os.listdir("/proc/self/fd")) <= fds


def leftovers(launchers: list[int]) -> set[str]:
    """Control groups and mounts of these keepers, whatever others have on this machine."""
    names = {f"composer-{pid}" for pid in launchers}
    groups = {str(path) for path in Path("/sys/fs/cgroup").glob("**/composer-*") if path.name in names}
    return groups | {line for line in Path("/proc/self/mounts").read_text().splitlines() if " /mnt/state " in line}


def test_a_missing_bubblewrap_is_an_error_with_a_fix() -> None:
    provider = NamespacesProvider(NamespacesConfig(bwrap="no-such-bwrap"))
    with pytest.raises(ConfigError, match="apt install bubblewrap"):
        asyncio.run(provider.probe())


UNPRIVILEGED = """
import asyncio, os, shutil, sys
import composer_core.trees
from composer_core.protocols import ExecRequest, TemplateSpec
from composer_core.trees import Tree
from composer_plugin_local.namespaces import NamespacesProvider

if os.getuid() == 0:
    sys.executable = shutil.which("python3", path="/usr/bin") or sys.executable
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)

async def main():
    provider, tree = NamespacesProvider(), Tree.of({"a": "b"})
    (child,) = await provider.create(await provider.prepare(TemplateSpec(tree.ref, ("python3",)), tree))
    result = await child.backend.exec(ExecRequest(("sh", "-c", "echo x > a; id -u; exec python3 -S -c 'print(6 * 7)'")))
    (twin,) = await child.backend.fork(1)
    print(result.stdout.split(), await twin.backend.read("a", 10))
    print((await child.backend.changes(100)).writes[0].path)
    await provider.close()

asyncio.run(main())
"""


def test_it_works_without_privileges() -> None:
    child = subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED], capture_output=True, text=True, check=False, timeout=60
    )
    assert child.stdout == "[b'65534', b'42'] b'x\\n'\na\n", child.stderr
