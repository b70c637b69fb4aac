"""What a command can reach and take: files, processes, network, rights (S1, S3, S4 of what sandboxes are tried on)."""

from __future__ import annotations

from pathlib import Path

import pytest
from containers import act, output, sh

from composer_core.errors import PathError


def test_no_file_of_the_host_is_seen(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host secret")
    found = output(f"cat {secret} /proc/1/root{secret} /proc/self/root{secret} /etc/shadow; ls /home /root")
    assert "host secret" not in found and found.count("No such file") + found.count("Permission denied") >= 6


def test_nothing_but_workspace_and_tmp_can_be_written() -> None:
    places = "/usr/x /bin/x /etc/x /x /.composer/x /dev/x /proc/sys/kernel/core_pattern /sys/fs/cgroup/x /run/x"
    found = output(f"for at in {places}; do (echo no > $at) 2>&1; done; echo yes > /tmp/x; echo yes > x; cat x /tmp/x")
    assert found.count("cannot create") == len(places.split()) and found.count("yes") == 2


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
