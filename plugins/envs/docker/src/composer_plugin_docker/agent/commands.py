"""One command: a shepherd that adopts what it leaves behind, pipes that are always drained, how it ended.

A *shepherd* is a process of the agent's own identity between the agent and the command. It asks the kernel to be given
every orphan below it, so a process that leaves its session still belongs to its command. The command's processes have
another identity and no rights: they can neither signal, trace nor limit the shepherd or the agent.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from composer_envkit.agent import linux, processes
from composer_envkit.agent.deadlines import Timed
from composer_envkit.agent.streams import Stream, source

NOBODY = 65534
LAST_CAPABILITY = 63
LIKELIER = "500"
"""What is added to a command's badness when the kernel looks for memory, so that it spares the agent."""
_WORD = struct.Struct("!ci")


class Command(Timed):
    """A command that runs; `ended` once its shepherd has let go of the status pipe. With `shell` it is a session's."""

    def __init__(
        self, request: dict[str, Any], stdin: bytes | int, cwd: int, env: dict[str, str], oom: Callable[[], bool]
    ) -> None:
        """`cwd` is a folder's descriptor; `oom` says whether the kernel killed for memory since it was asked last.

        Raises OSError when no process can be started.
        """
        super().__init__(request)
        self.number: int = request["n"]
        self.ran_out_of_memory = oom
        self.out, self.err, self.status = (Stream(cap) for cap in (*[request["output_bytes"]] * 2, _WORD.size))
        argv = [word.encode() for word in request["argv"]]
        full = {**env, **request["env"]}
        fd = source(stdin)
        try:
            self.shepherd = os.fork()
            if self.shepherd == 0:
                fds = (fd, self.out.theirs, self.err.theirs, self.status.theirs)
                _shepherd(argv, full, cwd, fds, request["file_bytes"])
        except OSError:
            self.close()
            raise
        finally:
            for end in (fd, *(stream.theirs for stream in self.streams)):
                os.close(end)

    @property
    def streams(self) -> tuple[Stream, Stream, Stream]:
        return self.out, self.err, self.status

    def reported(self) -> bool:
        """Take what the shepherd has to say; False once it is gone."""
        before = len(self.status.kept)
        goes_on = self.status.drain()
        if not before and self.status.kept[:1] == b"L":
            self.kill()
        return goes_on

    def kill(self) -> None:
        processes.kill_below(self.shepherd)

    def result(self) -> tuple[dict[str, Any], bytes]:
        """How it ended and what it printed; call it once, when `reported` was False."""
        with suppress(ChildProcessError):
            os.waitpid(self.shepherd, 0)
        for stream in self.streams:
            stream.finish()
        header = {
            **self._end(self.ran_out_of_memory()),
            "wall_s": self.wall_s,
            "split": len(self.out.kept),
        }
        header |= {"stdout_bytes": self.out.total, "stderr_bytes": self.err.total}
        data = bytes(self.out.kept + self.err.kept)
        self.close()
        return header, data

    def _end(self, oom: bool) -> dict[str, Any]:
        code: int | None = None
        signal_number: int | None = None
        status = "lost"
        if len(self.status.kept) == _WORD.size:
            code = os.waitstatus_to_exitcode(_WORD.unpack(self.status.kept)[1])
            status = "exited"
        if self.timed_out:
            status, code = "timeout", None
        elif oom and code != 0:
            status, code = "oom", None
        elif code is not None and code < 0:
            status, signal_number = "signaled", -code
            code = None
        return {"status": status, "exit_code": code, "signal": signal_number}

    def close(self) -> None:
        for stream in self.streams:
            stream.close()


def _shepherd(argv: list[bytes], env: dict[str, str], cwd: int, fds: tuple[int, ...], file_bytes: int) -> NoReturn:
    """Never returns. Says X (or L where something is left of the command) with the wait status, waits for the rest."""
    try:
        signal.set_wakeup_fd(-1)
        linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
        main = os.fork()
        if main == 0:
            _command(argv, env, cwd, fds, file_bytes)
        status = os.dup2(fds[3], 3)
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.closerange(4, 1 << 20)
        os.write(status, _wait_for(main))
        while True:
            os.wait()
    except ChildProcessError:
        os._exit(0)
    except BaseException as error:
        os.write(fds[2], f"{error}\n".encode())
        os.write(fds[3], _WORD.pack(b"X", 126 << 8))
        os._exit(0)


def _wait_for(main: int) -> bytes:
    found = 0
    while True:
        pid, status = os.wait()
        if pid == main:
            found = status
            break
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
        return _WORD.pack(b"L", found)
    return _WORD.pack(b"X", found)


def _command(argv: list[bytes], env: dict[str, str], cwd: int, fds: tuple[int, ...], file_bytes: int) -> NoReturn:
    """Give up everything, then become the command."""
    code = 126
    try:
        os.setsid()
        os.fchdir(cwd)
        for at, fd in enumerate(fds[:3]):
            os.dup2(fd, at)
        os.closerange(3, 1 << 20)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        give_up()
        code = _become(argv, env)
    except BaseException as error:
        os.write(2, f"{error}\n".encode(errors="replace"))
    os._exit(code)


def give_up() -> None:
    """From the agent's identity to one without any right, for good."""
    linux.files_as(0, 0)  # else this process's own folder in /proc is out of reach
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(LIKELIER)
    for capability in range(LAST_CAPABILITY + 1):
        with suppress(OSError):  # one that this kernel does not know
            linux.prctl(linux.PR_CAPBSET_DROP, capability)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def _become(argv: list[bytes], env: dict[str, str]) -> int:
    """Returns only with the exit code of what cannot be run: 127 if it is not found, else 126."""
    name, code, reason = argv[0], 127, "not found"
    paths = [name] if b"/" in name else [os.path.join(at, name) for at in env.get("PATH", "").encode().split(b":")]
    for path in paths:
        try:
            os.execve(path, argv, env)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                code, reason = 126, error.strerror or ""
    os.write(2, name[:200] + f": {reason}\n".encode())
    return code
