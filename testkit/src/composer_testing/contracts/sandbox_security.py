"""What a hostile command meets, the same in every kind of sandbox. Subclass `SecurityContract` and name the record:

class TestSecurity(SecurityContract):
    spec = next(iter(composer_sandboxes()))

For providers that declare `sandbox.isolates`; limits are tried where they are declared. That files, processes and
addresses of the host are out of reach is tried first, by means that harm nobody, and nothing else is run if they are
not. Takes `sh`, coreutils and `python3`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import ClassVar

import pytest

from composer_core.errors import PathError, QuotaError
from composer_core.protocols import ExecResult, SandboxProvider
from composer_core.sandbox import Sandbox
from composer_testing.sandbox_suite import new_sandbox
from composer_testing.walled_suite import WalledSuite

POWERS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
tried = {
    "setuid": lambda: libc.setuid(0), "mount": lambda: libc.mount(b"x", b"/tmp", b"tmpfs", 0, None),
    "user namespace": lambda: libc.unshare(0x10000000),
    "chroot": lambda: libc.chroot(b"/tmp"),
    "kexec": lambda: libc.syscall(246, 0, 0, 0, 0), "bpf": lambda: libc.syscall(321, 0, 0, 0),
    "settime": lambda: libc.syscall(227, 0, ctypes.byref((ctypes.c_long * 2)(0, 0))),
    "raw socket": lambda: libc.socket(2, 3, 1), "module": lambda: libc.syscall(175, 0, 0, b""),
}
print(*[name for name, call in tried.items() if call() >= 0], sep="\\n")
"""
STATUS = "grep -E '^(CapEff|CapPrm|NoNewPrivs)' /proc/self/status"
DEVICES = """
for at in /dev/mem /dev/kmem /dev/kvm /dev/vda /dev/sda /dev/fuse /dev/net/tun /dev/port /dev/loop-control; do
  (: < $at) 2>/dev/null && echo $at
done; :"""
SETTINGS = """
for at in /proc/sys/kernel/core_pattern /proc/sysrq-trigger /proc/sys/kernel/modprobe /sys/fs/cgroup/x /etc/x /usr/x; do
  (: >> $at) 2>/dev/null && echo $at
done; find / -xdev -perm -4000 -type f -user root 2>/dev/null | head -1 | grep -q . && echo setuid program; :"""
NETWORK = """
import socket
for family, kind, address in (
    (socket.AF_INET, socket.SOCK_STREAM, ("169.254.169.254", 80)),
    (socket.AF_INET, socket.SOCK_STREAM, ("1.1.1.1", 53)),
    (socket.AF_INET, socket.SOCK_DGRAM, ("1.1.1.1", 53)), (socket.AF_INET6, socket.SOCK_STREAM, ("2001:db8::1", 80)),
    (socket.AF_INET, socket.SOCK_STREAM, ("10.0.0.1", 80)), (socket.AF_INET, socket.SOCK_STREAM, ("172.17.0.1", 80)),
):
    try:
        one = socket.socket(family, kind)
        one.settimeout(0.3)
        one.connect(address)
        print("reached", address)
    except OSError:
        pass
try:
    print("resolved", socket.getaddrinfo("example.com", 80))
except OSError:
    pass
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).close()
print("loopback works")
"""
SOCKETS = "find / /run /var /tmp -xdev -type s 2>/dev/null; cut -d@ -s -f2 /proc/net/unix; :"
BOMBS = {
    "processes": "f() { f | f & f; }; f",
    "memory": "exec python3 -S -c 'x = []\nwhile True: x.append(bytearray(1 << 24))'",
    "disk": "i=0; while head -c 900000 /dev/zero > f$i; do i=$((i+1)); test $i -lt 90 || exit 9; done",
    "inodes": "mkdir many && cd many && i=0; while test $i -lt 90000 && : > $i; do i=$((i+1)); done",
    "output": "exec head -c 100000000 /dev/zero",
    "processor": "while :; do :; done",
    "killing": "kill -9 1; kill -9 -1; kill -STOP $PPID; while :; do :; done",
}


class SecurityContract(WalledSuite):
    """Name your subclass `Test...`."""

    setuid_programs: ClassVar[bool] = True
    """Whether the image has such programs, which `NoNewPrivs` makes harmless."""

    def said(self, script: str, *, python: bool = False, timeout_s: float = 30) -> str:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> ExecResult:
            words = ["python3", "-I", "-S", "-c"] if python else ["sh", "-c"]
            return await sandbox.exec([*words, script], timeout_s=timeout_s)

        result: ExecResult = self.act(act)
        return (result.stdout + result.stderr).decode(errors="replace")

    # --- S1, S3, S4, S6, S7: what can be reached ---

    def test_no_power_is_held_and_none_can_be_gained(self) -> None:
        lines = self.said(STATUS).split("\n")
        assert all(line.endswith("\t0000000000000000") for line in lines if line.startswith("Cap")), lines
        assert "NoNewPrivs:\t1" in lines
        assert self.said(POWERS, python=True).strip() == ""

    def test_devices_and_settings_of_the_kernel_are_out_of_reach(self) -> None:
        assert self.said(DEVICES) == ""
        found = self.said(SETTINGS).split("\n")
        assert not [line for line in found if line and not (self.setuid_programs and line == "setuid program")], found

    def test_there_is_loopback_and_no_other_network(self) -> None:
        assert self.said(NETWORK, python=True) == "loopback works\n"

    def test_no_descriptor_and_no_socket_of_the_machinery_is_in_reach(self) -> None:
        assert self.said("ls /proc/self/fd").split() == ["0", "1", "2", "3"]  # 3 is the folder that ls reads
        assert self.said(SOCKETS) == ""

    @pytest.mark.parametrize("target", ["/etc/passwd", "../../../../etc/passwd", "/proc/self/root/etc/passwd", "loop"])
    def test_links_out_of_the_workspace_are_not_followed(self, target: str) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            await sandbox.exec(["sh", "-c", f"ln -s {target} loop; ln -s / up; ln -s pkg inner"])
            for path in ("loop", "up/etc/passwd", "up/proc/self/environ"):
                for call in (sandbox.read(path), sandbox.write(path, b"x"), sandbox.list(path)):
                    with pytest.raises(PathError):
                        await call
            assert await sandbox.read("inner/b.txt") == b"two\n"

        self.act(act)

    def test_a_folder_that_keeps_turning_into_a_link_leads_nowhere(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            await sandbox.exec(["sh", "-c", "mkdir d; echo in > d/passwd; ln -s /etc l"])
            swap = "while :; do mv d t; mv l d; mv d l; mv t d; done"
            swapping = asyncio.ensure_future(sandbox.exec(["sh", "-c", swap], timeout_s=2))
            while not swapping.done():
                with suppress(PathError):
                    assert await sandbox.read("d/passwd") == b"in\n"
                for file in (await sandbox.patch()).writes:
                    assert b"root:" not in file.data

        self.act(act)

    def test_siblings_see_nothing_of_each_other(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> bytes:
            other = await new_sandbox(provider)
            leave = "echo treasure > /tmp/mine; echo treasure > /dev/shm/mine; exec sleep 43.21"
            running = asyncio.ensure_future(other.exec(["sh", "-c", leave], timeout_s=30))
            await other.exec(["sleep", "0.3"])
            look = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; cat /tmp/m* /dev/shm/m*; ls /tmp /dev/shm"
            found = await sandbox.exec(["sh", "-c", look])
            await other.destroy()
            await asyncio.gather(running, return_exceptions=True)
            return found.stdout

        found = self.act(act)
        assert b"43.21" not in found and b"treasure" not in found and b"pytest" not in found

    def test_nothing_of_this_process_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COMPOSER_SECRET", "a secret of this process")

        async def act(sandbox: Sandbox, provider: SandboxProvider) -> bytes:
            script = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; env"
            return (await sandbox.exec(["sh", "-c", script])).stdout

        assert b"secret" not in self.act(act, fresh=True).lower()

    # --- S2: what can be used up ---

    @pytest.mark.parametrize("bomb", BOMBS)
    def test_a_sandbox_answers_while_a_command_takes_all_it_can_and_after_it(self, bomb: str) -> None:
        """Answers are timed generously: what matters is that they come while the bomb goes off."""

        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            going_off = asyncio.ensure_future(sandbox.exec(["sh", "-c", BOMBS[bomb]], timeout_s=2))
            await asyncio.sleep(0.5)
            for _ in range(3):
                entries = await asyncio.wait_for(sandbox.list("pkg"), 10)
                assert [entry.name for entry in entries] == ["b.txt", "deep"]
            result = await going_off
            assert result.status in ("exited", "signaled", "timeout", "oom"), result
            await sandbox.exec(["sh", "-c", "rm -rf f* many"], timeout_s=20)
            assert (await sandbox.exec(["echo", "alive"])).stdout == b"alive\n"

        self.act(act)

    def test_sparse_files_cores_and_descriptors_are_bounded(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> str:
            with suppress(PathError, QuotaError):
                await sandbox.exec(["sh", "-c", "truncate -s 10G sparse"])
                assert len(await sandbox.read("sparse")) <= sandbox.limits.read_bytes
            script = "sh -c 'kill -SEGV $$'; ls; ulimit -c; ulimit -n"
            return (await sandbox.exec(["sh", "-c", script])).stdout.decode()

        *_, cores, descriptors = self.act(act).split()
        assert cores == "0" and descriptors != "unlimited" and int(descriptors) <= 1 << 20
