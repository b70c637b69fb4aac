"""Commands on this machine: what they print, how they end, and that nothing of theirs goes on after them."""

import asyncio
import os
import select
import signal
import subprocess
import sys

import pytest

from composer_core.errors import BackendError
from composer_core.protocols import ExecRequest
from composer_core.trees import File, Tree
from composer_envkit import Processes, copy, lay, remove

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
LONG_S = 60
"""Of commands that must be ended and of waits that must not be needed: only a test that fails takes so long."""


@pytest.fixture
def run(tmp_path):
    """Run `sh -c script`, or words, in an empty folder."""

    def run(*words, **fields):
        argv = ("sh", "-c", *words) if len(words) == 1 else words
        return asyncio.run(Processes().run(ExecRequest(argv, **fields), tmp_path, ENV))

    return run


@pytest.fixture
def let_go(tmp_path):
    """Whether all who opened the pipe `held` for writing have ended, or do so soon."""
    os.mkfifo(tmp_path / "held")
    reader = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    yield lambda: bool(select.select([reader], [], [], LONG_S / 2)[0]) and os.read(reader, 1) == b""
    os.close(reader)


async def until_there(path):
    async with asyncio.timeout(LONG_S):
        while not path.exists():
            await asyncio.sleep(0.01)


def test_a_tree_is_laid_out_with_its_folders_and_modes(tmp_path):
    lay(Tree((File("a/b/script", b"x", True), File("plain", b"y"))), tmp_path / "made" / "here")
    assert (tmp_path / "made/here/a/b/script").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "made/here/plain").stat().st_mode & 0o777 == 0o644
    lay(Tree(()), tmp_path / "empty")
    assert list((tmp_path / "empty").iterdir()) == []


def test_output_is_kept_up_to_the_cap_and_counted_to_its_end(run):
    result = run("head -c 300000 /dev/zero; head -c 70 /dev/zero >&2", output_bytes=100)
    assert (len(result.stdout), result.stdout_bytes) == (100, 300_000)
    assert (len(result.stderr), result.stderr_bytes) == (70, 70)


def test_an_endless_writer_is_drained_and_ends_with_its_time(run):
    result = run("yes", timeout_s=0.5, output_bytes=10)
    assert (result.status, result.exit_code, result.stdout) == ("timeout", None, b"y\ny\ny\ny\ny\n")
    assert result.stdout_bytes > 1_000_000


@pytest.mark.parametrize("script", ["exit 3", "true", "head -c 10 >/dev/null"])
def test_input_that_a_command_does_not_read_holds_up_nothing(run, script):
    assert run(script, stdin=b"x" * 2_000_000, timeout_s=LONG_S).status == "exited"


def test_a_death_by_signal_is_told_with_its_number(run):
    result = run("kill -11 $$")
    assert (result.status, result.exit_code, result.signal) == ("signaled", None, 11)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("no-such-command", "x"), 127),
        (("./plain", "x"), 126),
        (("echo", "a\0b"), 126),
        (("echo", "\ud800"), 126),
        (("echo", "x" * 3_000_000), 126),
    ],
    ids=["unknown", "no program", "null", "half a character", "too long"],
)
def test_what_cannot_be_started_exits_as_a_shell_says_it(run, tmp_path, words, code):
    (tmp_path / "plain").write_text("text")
    result = run(*words)
    assert (result.status, result.exit_code) == ("exited", code)
    assert result.stderr.startswith(words[0].encode())


def test_what_a_command_leaves_behind_ends_with_it(run, let_go):
    assert run(f"exec 3>held; sleep {LONG_S} & echo done").stdout == b"done\n"
    assert let_go()


LEAVES = f"""
mkfifo left
setsid sh -c 'echo $$ | tee pid; echo >left; exec sleep {LONG_S}' &
read _ <left
"""


def test_a_process_that_left_the_group_does_not_hold_the_result(run):
    result = run(LEAVES, timeout_s=LONG_S)
    assert result.status == "exited"
    os.kill(int(result.stdout), signal.SIGKILL)  # ProcessLookupError if its end had been waited for


def test_a_command_that_is_cancelled_twice_is_forgotten(tmp_path, let_go, monkeypatch):
    async def main():
        processes = Processes()
        request = ExecRequest(("sh", "-c", f"{LEAVES} exec 3>held; touch there; sleep {LONG_S}"), timeout_s=LONG_S)
        running = asyncio.ensure_future(processes.run(request, tmp_path, ENV))
        await until_there(tmp_path / "there")
        running.cancel()
        assert await asyncio.to_thread(let_go)  # its group is killed, and who left it still holds its output
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        monkeypatch.setattr(os, "killpg", lambda group, number: killed.append(group))
        await processes.kill()

    killed = []
    asyncio.run(main())
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert killed == [], "its number may be another's by now"


def test_environment_and_folder_are_those_given(run, tmp_path):
    assert run("env", "-0").stdout.split(b"\0")[:-1] == [f"PATH={ENV['PATH']}".encode()]
    assert run("pwd").stdout.decode().strip() == str(tmp_path.resolve())


@pytest.mark.parametrize("cancelled", [True, False], ids=["cancelled", "killed"])
def test_cancelling_or_killing_ends_the_whole_group(tmp_path, let_go, cancelled):
    async def main():
        processes = Processes()
        script = f"exec 3>held; sleep {LONG_S} & touch there; sleep {LONG_S}"
        request = ExecRequest(("sh", "-c", script), timeout_s=LONG_S)
        running = asyncio.ensure_future(processes.run(request, tmp_path, ENV))
        await until_there(tmp_path / "there")
        if cancelled:
            running.cancel()
        else:
            await processes.kill()
        return (await asyncio.gather(running, return_exceptions=True))[0]

    result = asyncio.run(main())
    assert (
        isinstance(result, asyncio.CancelledError) if cancelled else (result.status, result.signal) == ("signaled", 9)
    )
    assert let_go()


def test_what_is_started_after_the_end_ends_at_once(tmp_path):
    async def main():
        processes = Processes()
        await processes.kill()
        await processes.kill()
        return await processes.run(ExecRequest(("sleep", f"{LONG_S}"), timeout_s=LONG_S), tmp_path, ENV)

    result = asyncio.run(main())
    assert (result.status, result.signal) == ("signaled", 9)


def test_many_commands_run_beside_each_other(tmp_path):
    async def main():
        processes = Processes()
        requests = [ExecRequest(("sh", "-c", f"sleep 0.2; echo {number}")) for number in range(30)]
        return await asyncio.gather(*(processes.run(request, tmp_path, ENV) for request in requests))

    assert [int(result.stdout) for result in asyncio.run(main())] == list(range(30))


def test_a_copy_keeps_links_modes_and_what_is_no_file(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    lay(Tree((File("a/script", b"x", True),)), source)
    (source / "link").symlink_to("/etc/passwd")
    os.mkfifo(source / "pipe")
    target.mkdir()
    asyncio.run(copy(source, target))
    assert (target / "a/script").stat().st_mode & 0o777 == 0o755
    assert (target / "link").readlink().as_posix() == "/etc/passwd"
    assert (target / "pipe").is_fifo()


def test_a_copy_that_fails_says_why(tmp_path):
    with pytest.raises(OSError, match="no-such-folder"):
        asyncio.run(copy(tmp_path / "no-such-folder", tmp_path))


def test_a_folder_is_removed_however_deep_it_is_and_a_second_time(tmp_path):
    (tmp_path / "it").mkdir()
    script = "import os\nfor _ in range(1200): os.mkdir('d'); os.chdir('d')\nopen('file', 'w')"
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path / "it", check=True)
    asyncio.run(remove(tmp_path / "it"))
    asyncio.run(remove(tmp_path / "it"))
    assert not list(tmp_path.iterdir())


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Put a program of the host before the real one."""

    def put(name, script):
        folder = tmp_path / "programs"
        lay(Tree((File(name, f"#!/bin/sh\n{script}\n".encode(), True),)), folder)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    return put


def test_a_folder_that_cannot_be_removed_is_said(tmp_path, program):
    program("rm", "echo device is busy >&2; exit 1")
    (tmp_path / "it").mkdir()
    with pytest.raises(BackendError, match="device is busy") as caught:
        asyncio.run(remove(tmp_path / "it"))
    assert str(tmp_path / "it") in str(caught.value)


def test_a_copy_that_is_cancelled_has_ended_when_its_caller_goes_on(tmp_path, program):
    program("cp", f"touch {tmp_path}/begun; read _ <{tmp_path}/go; touch {tmp_path}/ended")
    os.mkfifo(tmp_path / "go")

    async def main():
        copying = asyncio.ensure_future(copy(tmp_path, tmp_path))
        await until_there(tmp_path / "begun")
        copying.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not copying.done()
        await asyncio.to_thread((tmp_path / "go").write_text, "\n")
        with pytest.raises(asyncio.CancelledError):
            await copying

    asyncio.run(main())
    assert (tmp_path / "ended").exists()
