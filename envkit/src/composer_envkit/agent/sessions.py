"""Sessions: shells that live on between commands, so that folder, variables, functions and jobs are kept.

A session's shell is started like any command and reads its script from a socket. Each command is one line of it, parsed
whole before it runs, whose last part says on that socket how the command ended. Nothing printed can be taken for that:
programs get neither the socket (theirs is /dev/null, and sockets cannot be opened again through /proc) nor the random
word it has to begin with, which stands in the shell's input and in no variable. What runs in the shell *itself* is the
shell: it may end it, redefine what it is made of, or be stuck, which costs the session and nothing else.

A shell that has ended, or was ended for being late, takes what it held along. Whoever asks next gets a new one; either
result says `restarted`.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from composer_envkit.agent import linux
from composer_envkit.agent.files import Refused
from composer_envkit.agent.streams import Stream

WORDS = ("sh", "-c", "command -v bash >/dev/null 2>&1 && exec bash --noprofile --norc; exec sh")
"""What a session is started with: bash where the sandbox has it, without files of its own."""
LINE = "command eval {} </dev/null; {{ printf '\\n%s %s\\n' {} $? >&0; }} 2>/dev/null\n"
"""`command` keeps a shell alive whose `eval` met a mistake (POSIX 2.14); the braces hide the rest from `set -x`."""
MOST = 8
"""Sessions of one sandbox."""
TEXT_BYTES = 96 << 10
"""Of one command, quoted: what a socket takes at once of an agent that waits for nobody."""
HEARD_BYTES = 4096
NEVER_S = 1e9
NOBODY = 0
"""Number of requests whose answers nobody hears; hosts begin above."""
END_S = 2.0
Header = dict[str, Any]


class Shell:
    """One session. An agent watches `fd` and calls `heard`, and calls `ended` once the process has."""

    def __init__(self, sessions: Sessions, name: str, request: Header) -> None:
        """Raises OSError where no process can be started."""
        self.sessions, self.name = sessions, name
        self.fd, self.theirs = linux.socket_pair()
        os.set_blocking(self.fd, False)
        self.waiting: deque[Header] = deque()
        self.current: Header | None = None
        self.restarted = False
        """Whether the next result says so."""
        self._given_up = False
        """Whether nobody waits for the current command any more."""
        self._heard, self._started = b"", 0.0
        try:
            self.process = sessions.begin(self, request)
        except BaseException:
            self._close()
            raise
        os.close(self.theirs)
        self.theirs = -1
        self._mute()

    @property
    def _streams(self) -> tuple[Stream, Stream]:
        return self.process.out, self.process.err

    def _mute(self) -> None:
        """Between commands nothing is kept, and nothing is late."""
        self.process.deadline = time.monotonic() + NEVER_S
        for stream in self._streams:
            stream.begin(0)

    def ask(self, request: Header) -> None:
        self.waiting.append(request)
        if self.current is None:
            self._next()

    def _next(self) -> None:
        self.current = request = self.waiting.popleft()
        self._word, self._started = os.urandom(16).hex(), time.monotonic()
        for stream in self._streams:
            stream.begin(request["output_bytes"])
        self.process.deadline = self._started + request["timeout_s"]
        line = LINE.format(request["text"], self._word).encode()
        try:
            whole = os.write(self.fd, line) == len(line)
        except OSError:
            whole = False
        if not whole:  # it does not read any more
            self.process.kill()

    def give_up(self, number: int) -> None:
        """Nobody waits for that request any more. If it runs, it takes the shell along; who comes next is told."""
        self.waiting = deque(request for request in self.waiting if request["n"] != number)
        if self.current is not None and self.current["n"] == number:
            self._given_up = True
            self.process.kill()

    def stood_still(self, seconds: float) -> None:
        """That time does not count."""
        self._started += seconds

    def heard(self) -> bool:
        """Take what the shell says; False where it will say no more."""
        try:
            data = os.read(self.fd, HEARD_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data:  # it has ended, or has closed what it is asked on
            self.process.deadline = min(self.process.deadline, time.monotonic() + END_S)
            return False
        *lines, rest = (self._heard + data).split(b"\n")
        self._heard = rest[-HEARD_BYTES:]
        for word, _, code in (line.partition(b" ") for line in lines):
            ours = self.current is not None and word == self._word.encode() and code.isdigit()
            if ours and not self._given_up:
                self._done(int(code) & 0xFF)
        return True

    def _done(self, code: int) -> None:
        out, err = self._streams
        for stream in self._streams:
            stream.settle()
        oom = bool(code and self.process.ran_out_of_memory())
        header: Header = {"status": "oom" if oom else "exited", "exit_code": None if oom else code, "signal": None}
        header |= {"stdout_bytes": out.total, "stderr_bytes": err.total, "split": len(out.kept)}
        data = bytes(out.kept + err.kept)
        self._mute()
        self._answer(header, data, self.restarted)
        if self.waiting:
            self._next()

    def _answer(self, header: Header, data: bytes, restarted: bool) -> None:
        request, self.current, self.restarted = self.current, None, False
        assert request is not None
        header = {**header, "wall_s": time.monotonic() - self._started, "restarted": restarted}
        self.sessions.reply(request["n"], header, data)

    def ended(self, header: Header, data: bytes) -> None:
        """`header` is how the process ended, as a result, and `data` what it printed last."""
        told = self.current is not None and self.current["n"] != NOBODY and not self._given_up
        if self.current is not None:
            self._answer(header, data, True)
        self._close()
        self.sessions.gone(self, told)

    def _close(self) -> None:
        for fd in (self.fd, self.theirs):
            if fd >= 0:
                os.close(fd)
        self.fd = self.theirs = -1


class Sessions:
    """The sessions of one sandbox, by name.

    `begin(shell, request)` starts WORDS, for the first request, as a command whose input is `shell.theirs`, and returns
    it: it has `out`, `err`, `deadline`, `kill()` and `ran_out_of_memory()`. `reply(number, header, data)` answers.
    """

    def __init__(self, begin: Callable[[Shell, Header], Any], reply: Callable[[int, Header, bytes], None]) -> None:
        self.begin, self.reply = begin, reply
        self._shells: dict[str, Shell] = {}
        self._lost: set[str] = set()
        """Names whose shell has ended, which nobody was told yet."""
        self._closed = False

    def ask(self, request: Header) -> None:
        """A request has n, name, argv, timeout_s and output_bytes. Raises Refused or OSError."""
        name, text = request["name"], quoted(" ".join(map(quoted, request["argv"])))
        if len(text.encode()) > TEXT_BYTES:
            raise Refused("quota", f"a command of a session has at most {TEXT_BYTES} bytes; write a file and run that")
        if name not in self._shells:
            if len(self._shells) == MOST:
                raise Refused("quota", f"a sandbox has at most {MOST} sessions; `exit` in one of them makes room")
            self._shells[name] = Shell(self, name, request)
            self._shells[name].restarted = name in self._lost
            self._lost.discard(name)
        self._shells[name].ask({**request, "text": text})

    def give_up(self, number: int) -> None:
        """Nobody waits for that request any more, if it is one of a session."""
        for shell in list(self._shells.values()):
            shell.give_up(number)

    def gone(self, shell: Shell, told: bool) -> None:
        """Who waited for it goes on in a new one."""
        del self._shells[shell.name]
        if not told:
            self._lost.add(shell.name)
        for request in shell.waiting:
            try:
                if self._closed:
                    raise Refused("gone", "the sandbox was destroyed")
                self.ask(request)
            except (Refused, OSError) as error:
                kind = error.kind if isinstance(error, Refused) else "backend"
                self.reply(request["n"], {"error": kind, "message": str(error)}, b"")

    def disown(self) -> None:
        """Nobody waits for what was asked until now, and it goes on: its answers have the number NOBODY."""
        for shell in self._shells.values():
            for request in (shell.current, *shell.waiting):
                if request is not None:
                    request["n"] = NOBODY

    def close(self) -> None:
        """No shell is started any more; those that run are an agent's commands, for it to end."""
        self._closed = True


def quoted(word: str) -> str:
    """As a shell reads it back."""
    return "'" + word.replace("'", "'\"'\"'") + "'"
