"""One command: started in its own group as an unprivileged user, its pipes drained to the end, ended at its deadline.

A command ends when its first process does. Whatever it started is then killed with its group, so that a background
child can neither hold the pipes open nor live on. Output beyond the cap is counted and dropped; what is kept is sent
while the command runs, so that it is not lost with the guest.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import time
from collections.abc import Callable
from typing import Any

from composer_envkit.agent import linux
from composer_envkit.agent.deadlines import Timed
from composer_envkit.agent.streams import Stream, source
from composer_plugin_microvm.guest import OWNER
from composer_plugin_microvm.guest.groups import Group, put
from composer_plugin_microvm.guest.wire import MAX_BODY

PATH = "/usr/local/sbin:/usr/local/bin:/usr/bin:/bin"
ENV = {"PATH": PATH, "HOME": "/tmp", "LANG": "C.UTF-8", "TMPDIR": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
FLUSH_BYTES, FLUSH_S = 1 << 15, 0.25
"""What is printed is sent once it is this much, or has waited this long."""
OPEN_FILES = 1024
WORKLOAD_SCORE = "500"
"""How gladly the kernel kills a command when memory runs out; the agent has the least score there is."""
RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores and a command expects as they are by default."""
Send = Callable[[dict[str, Any], bytes], None]


class Command(Timed):
    """A started command; `send` takes what it prints, and once how it ended. With `shell` it is a session's."""

    def __init__(self, request: dict[str, Any], limits: dict[str, Any], send: Send) -> None:
        super().__init__(request)
        self.number: int = request["n"]
        self.send, self.flushed = send, self.started
        self.pid = -1
        self.killed = False
        self.kills = 0
        self.group = Group(f"c{self.number}", limits["memory_bytes"], limits["processes"])
        self.streams = self.out, self.err = Stream(request["output_bytes"]), Stream(request["output_bytes"])

    def start(self, argv: list[str], env: dict[str, str], stdin: bytes | int, cwd: int, file_bytes: int) -> None:
        """Raises OSError where there is no room for a process, ValueError where a word is no text."""
        given = source(stdin)
        out, err = (stream.theirs for stream in self.streams)
        try:
            words = [os.fsencode(word) for word in argv]
            names = {os.fsencode(name): os.fsencode(value) for name, value in {**ENV, **env}.items()}
            self.pid = os.fork()
            if self.pid == 0:
                _become(self.group, (given, out, err), cwd, file_bytes, words, names)
        finally:
            for fd in (given, out, err):
                os.close(fd)

    @property
    def holds(self) -> bool:
        """Whether something that was printed is still to be sent."""
        return not self.shell and any(stream.kept for stream in self.streams)

    def flush(self, now: float) -> None:
        """Send what was printed, in few frames; a session's results travel whole."""
        if self.shell:
            return
        held = max(len(stream.kept) for stream in self.streams)
        if held >= FLUSH_BYTES or (held and now - self.flushed >= FLUSH_S):
            self._flush(now)

    def _flush(self, now: float) -> None:
        self.flushed = now
        out, err = self.streams
        for name, stream in {"out": out, "err": err}.items():
            while stream.kept:
                self.send({"n": self.number, "k": name, "more": True}, _popped(stream))

    def kill(self) -> None:
        self.killed = True
        self.group.kill()

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel killed in its group for memory since this was asked last."""
        before, self.kills = self.kills, self.group.out_of_memory()
        return self.kills > before

    def ended(self, wait_status: int) -> None:
        """Its first process is gone: end the others, and tell how it went."""
        self.group.kill()
        for stream in self.streams:
            stream.finish()
        code = os.waitstatus_to_exitcode(wait_status)
        if self.timed_out:
            end: dict[str, Any] = {"status": "timeout"}
        elif code and self.ran_out_of_memory():
            end = {"status": "oom"}
        elif code < 0:
            end = {"status": "signaled", "signal": -code}
        else:
            end = {"status": "exited", "exit_code": code}
        out, err = self.streams
        if len(out.kept) + len(err.kept) > MAX_BODY and not self.shell:
            self._flush(time.monotonic())
        end |= {"stdout_bytes": out.total, "stderr_bytes": err.total, "split": len(out.kept)}
        data = bytes(out.kept + err.kept)
        if self.shell:
            self.shell.ended(end, data)
        else:
            self.send({"n": self.number, **end}, data)

    def close(self) -> None:
        for stream in self.streams:
            stream.close()


def _popped(stream: Stream) -> bytes:
    """What is sent no longer has to be kept; it still counts for what may be."""
    data = bytes(stream.kept[:MAX_BODY])
    del stream.kept[:MAX_BODY]
    stream.cap -= len(data)
    return data


def _become(
    group: Group, fds: tuple[int, int, int], cwd: int, file_bytes: int, words: list[bytes], env: dict[bytes, bytes]
) -> None:
    """In the new process; never returns. Every step is done as root, the last of them gives that up."""
    try:
        group.enter()
        put("/proc/self/oom_score_adj", WORKLOAD_SCORE)
        for restored in RESTORED:
            signal.signal(restored, signal.SIG_DFL)
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
        os.setsid()
        for kind, most in ((resource.RLIMIT_FSIZE, file_bytes), (resource.RLIMIT_CORE, 0)):
            resource.setrlimit(kind, (most, most))
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
        os.fchdir(cwd)
        os.setgroups([])
        os.setresgid(OWNER, OWNER, OWNER)
        os.setresuid(OWNER, OWNER, OWNER)
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        os.umask(0o022)
        _run(words, env)
    except (OSError, ValueError) as error:
        number = error.errno if isinstance(error, OSError) else None
        reason = "not found" if number == errno.ENOENT else os.strerror(number or errno.EINVAL)
        os.write(2, f"sh: 1: {words[0].decode(errors='replace')}: {reason}\n".encode())
        os._exit(127 if number == errno.ENOENT else 126)
    finally:
        os._exit(126)


def _run(words: list[bytes], env: dict[bytes, bytes]) -> None:
    if b"/" in words[0]:
        os.execve(words[0], words, env)
    refused: OSError = FileNotFoundError(errno.ENOENT, "not found")
    for folder in env.get(b"PATH", b"").split(b":"):
        path = folder + b"/" + words[0]
        if not os.access(path, os.F_OK):  # the kernel finds that out when it has begun a new process image
            continue
        try:
            os.execve(path, words, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            refused = error
    raise refused
