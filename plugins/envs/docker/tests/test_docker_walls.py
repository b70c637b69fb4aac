"""What a command can reach and take: files, processes, network, rights (S1, S3, S4 of what sandboxes are tried on)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from containers import act, create, output, sh

from composer_core.errors import PathError, SandboxGone


def test_no_file_of_the_host_is_seen(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host secret")
    found = output(f"cat {secret} /proc/1/root{secret} /proc/self/root{secret} /etc/shadow; ls /home /root")
    assert "host secret" not in found and found.count("No such file") + found.count("Permission denied") >= 6


def test_nothing_but_workspace_and_tmp_can_be_written() -> None:
    places = "/usr/x /bin/x /etc/x /x /.composer/x /dev/x /proc/sys/kernel/core_pattern /sys/fs/cgroup/x /run/x"
    found = output(f"for at in {places}; do (echo no > $at) 2>&1; done; echo yes > /tmp/x; echo yes > x; cat x /tmp/x")
    assert found.count("cannot create") == len(places.split()) and found.count("yes") == 2


def test_no_socket_of_an_engine_or_agent_is_in_reach() -> None:
    assert output("find / -xdev -type s 2>/dev/null; find /run /var -type s 2>/dev/null; true") == ""


def test_there_is_loopback_and_no_other_network() -> None:
    assert output("tail -n +3 /proc/net/dev | cut -d: -f1; tail -n +2 /proc/net/route").split() == ["lo"]


def test_no_right_is_held_and_none_can_be_gained() -> None:
    found = output("grep -E 'Cap|NoNewPrivs|Seccomp:' /proc/self/status; id -u; id -g; id -G")
    assert found.count("0000000000000000") == 5 and "NoNewPrivs:\t1" in found and "Seccomp:\t2" in found
    assert found.split()[-3:] == ["65534", "65534", "65534"]


@pytest.mark.parametrize("call", ["os.unshare(0x10000000)", "os.mount", "ptrace", "setuid"])
def test_calls_that_would_give_power_are_refused(call: str) -> None:
    scripts = {
        "os.unshare(0x10000000)": "libc.unshare(0x10000000)",
        "os.mount": "libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None)",
        "ptrace": "libc.ptrace(16, 1, 0, 0)",
        "setuid": "libc.setuid(0)",
    }
    script = f"import ctypes; libc = ctypes.CDLL(None, use_errno=True); print({scripts[call]}, ctypes.get_errno())"
    assert output(f'python3 -S -c "{script}"') == "-1 1\n"


def test_no_descriptor_of_the_agent_is_inherited() -> None:
    assert output("ls /proc/self/fd").split() == ["0", "1", "2", "3"]  # 3 is the folder that ls reads


def test_the_agent_and_its_shepherds_cannot_be_signaled_limited_or_looked_into() -> None:
    scripts = [
        "for n in KILL STOP INT TERM HUP CHLD; do kill -$n 1; kill -$n $PPID; done",
        "cat /proc/1/environ /proc/1/mem /proc/$PPID/maps; ls /proc/1/fd /proc/1/root /proc/$PPID/fd",
        "echo -1000 > /proc/self/oom_score_adj; echo 0 > /proc/1/oom_score_adj",
        "python3 -S -c 'import resource; resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))'",
    ]
    for script in scripts:
        found = output(f"({script}) 2>&1; true").lower()
        assert "permi" in found or "denied" in found, (script, found)


def test_killing_everything_in_reach_ends_the_command_alone() -> None:
    found = output("sleep 60 & kill -9 -1; echo survived")
    assert found == "survived\n"


def test_processes_and_files_of_siblings_are_not_seen() -> None:
    async def action(sandbox, provider):
        other = await create(provider)
        sleeping = asyncio.ensure_future(sh(other, "echo mine > /tmp/mine; exec sleep 4321", 30))
        await sh(other, "sleep 0.2")
        found = (await sh(sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; ls /tmp /dev/shm")).stdout
        await other.destroy()
        with pytest.raises(SandboxGone):
            await sleeping
        return found

    found = act(action)
    assert b"4321" not in found and b"pytest" not in found and b"mine" not in found


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../../etc/passwd", "/proc/self/root/etc/passwd", "loop"])
def test_links_out_of_the_workspace_are_not_followed(target: str) -> None:
    async def action(sandbox, provider):
        await sh(sandbox, f"ln -s {target} loop; ln -s / up")
        for path in ("loop", "up/etc/passwd"):
            with pytest.raises(PathError):
                await sandbox.read(path, 1 << 20)
            with pytest.raises(PathError):
                await sandbox.write(path, b"x")
            with pytest.raises(PathError):
                await sandbox.list(path)

    act(action)


def test_a_link_that_stays_inside_is_followed() -> None:
    async def action(sandbox, provider):
        await sh(sandbox, "ln -s pkg inner")
        assert await sandbox.read("inner/b.txt", 100) == b"two\n"

    act(action)


def test_a_folder_that_keeps_turning_into_a_link_leads_nowhere() -> None:
    async def action(sandbox, provider):
        swap = "mkdir d; echo in > d/passwd; ln -s /etc l; while :; do mv d t; mv l d; mv d l; mv t d; done"
        swapping = asyncio.ensure_future(sh(sandbox, swap, 3))
        while not swapping.done():
            with suppress(PathError):
                assert await sandbox.read("d/passwd", 1 << 20) == b"in\n"
            for file in (await sandbox.changes(1 << 20)).writes:
                assert b"root:" not in file.data

    act(action)


def test_fifos_and_sockets_do_not_block_file_calls() -> None:
    async def action(sandbox, provider):
        await sh(sandbox, "mkfifo pipe; python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('sock')\"")
        for path in ("pipe", "sock"):
            with pytest.raises(PathError):
                await sandbox.read(path, 100)
            with pytest.raises(PathError):
                await sandbox.write(path, b"x")
        assert set((await sandbox.changes(100)).skipped) == {"pipe", "sock"}

    act(action)
