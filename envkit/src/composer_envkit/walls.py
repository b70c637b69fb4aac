"""Commands behind a program that puts walls around them and passes descriptors on, such as `bwrap` or `unshare`.

Such a program stands between a command and whoever waits for it, and four things would go wrong if it merely stood in
front of the command's words:

- it exits with 128 + n both for a command that signal n ended and for one that exited so;
- walls that could not be put up look like a command that failed, and an attempt that should be void would be failed;
- a word that is no program ends with the code of the walls, not with a shell's 126 or 127;
- variables for the command reach the program outside the walls, and `LD_PRELOAD` is one of them.

So a runner starts the command inside the walls, with its variables, and reports on a pipe: first that it is there, then
how the command ended. A runner that is there and says no more was ended by the command, whose loss that is.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from attrs import evolve

from composer_core.errors import BackendError
from composer_core.protocols import ExecRequest, ExecResult, TemplateSpec
from composer_envkit.folders import FolderProvider, FolderSandbox
from composer_envkit.processes import as_a_shell_says

RUNNER = """
import ctypes, os, sys
report, place, n = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]) + 4
os.set_inheritable(report, False)
prctl = ctypes.CDLL(None).prctl
prctl(4, 0, 0, 0, 0)
prctl(38, 1, 0, 0, 0)
for capability in range(64):
    prctl(24, capability, 0, 0, 0)
os.write(report, b"+")
env, argv = dict(word.split("=", 1) for word in sys.argv[4:n]), sys.argv[n:]
try:
    os.chdir(place)
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", 'exec "$@"', "sh", *argv], env, setsigdef=[13, 25])
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
except (OSError, ValueError) as error:
    print(f"{argv[0][:200]}: {error}", file=sys.stderr)
    code = 126
os.write(report, str(code).encode())
"""
"""prctl 4 (PR_SET_DUMPABLE) closes /proc/PID/fd to the command; 38 (PR_SET_NO_NEW_PRIVS) and 24 (PR_CAPBSET_DROP) leave
it no capability, with which it could be opened again. Python ignores signals 13 (SIGPIPE) and 25 (SIGXFSZ); the command
gets their defaults."""


class WalledSandbox(FolderSandbox):
    """A `FolderSandbox` whose commands run behind `walls`; files are the host's, as in all of them.

    The walls must take in all that a command starts, and end it with the command: a process that went on could exchange
    a folder for a link while a snapshot is copied.
    """

    python: str = "python3"
    """The interpreter that runs the runner inside, 3.9 or newer, and looks at no folder of the workspace."""
    inside: str = "/workspace"
    """Where the walls show the workspace; a command may have closed it, so only the runner goes there."""

    def __init__(self, provider: FolderProvider, spec: TemplateSpec, home: Path) -> None:
        super().__init__(provider, spec, home)
        self.home_inside = "/tmp"

    def walls(self) -> Sequence[object]:
        """The program with its arguments, up to the command's own."""
        raise NotImplementedError("put walls around a command")

    async def run(self, request: ExecRequest, cwd: Path) -> ExecResult:
        """Raises BackendError if the walls could not be put up."""
        impossible: list[str] = []

        def not_started(name: str, error: OSError | ValueError) -> ExecResult:
            """Words that no system can be given are the command's own; walls that cannot be executed are not."""
            if isinstance(error, OSError) and error.errno != errno.E2BIG:
                raise BackendError("walls cannot be put up", found=f"{name}: {error.strerror}")
            impossible.append(name)
            return as_a_shell_says(request.argv[0], error)

        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        with open(reader, "rb", buffering=0) as report:
            with open(writer, "wb"):
                within = evolve(request, argv=self._words(request, cwd, writer))
                result = await self.processes.run(
                    within, self.home, {"PATH": self.provider.path}, pass_fds=[writer], not_started=not_started
                )
            gone = self.id not in self.provider.live
            return result if gone or impossible or result.status != "exited" else told(result, report.read(64))

    def _words(self, request: ExecRequest, cwd: Path, report: int) -> tuple[str, ...]:
        variables = [f"{name}={value}" for name, value in self.environment(request).items()]
        place = Path(self.inside, cwd.relative_to(self.folder))
        runner = (self.python, "-ISc", RUNNER, report, place, len(variables), *variables)
        return tuple(map(str, (*self.walls(), *runner, *request.argv)))


def told(result: ExecResult, report: bytes | None) -> ExecResult:
    """The result of the walls, with the command's own end."""
    if not report:
        raise BackendError("a command was not run", found=result.stderr.decode(errors="replace").strip())
    code = int(report[1:] or -9)
    if code < 0:
        return evolve(result, status="signaled", exit_code=None, signal=-code)
    return evolve(result, exit_code=code)
