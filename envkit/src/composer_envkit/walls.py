"""Commands behind a program that puts walls around them and passes descriptors on, such as `bwrap` or `unshare`.

Such a program stands between a command and whoever waits for it, and four things would go wrong if it merely stood in
front of the command's words:

- it exits with 128 + n both for a command that signal n ended and for one that exited so;
- walls that could not be put up look like a command that failed, and an attempt that should be void would be failed;
- a word that is no program ends with the code of the walls, not with a shell's 126 or 127;
- variables for the command reach the program outside the walls, and `LD_PRELOAD` is one of them.

So a runner starts the command inside the walls, with its variables, and reports its end on a descriptor that the
command is not given and cannot reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile

from attrs import evolve

from composer_core.errors import BackendError
from composer_core.protocols import ExecRequest, ExecResult, TemplateSpec
from composer_envkit.folders import FolderProvider, FolderSandbox

REPORTED = ("sh", "-c", 'exec 3>"$0" "$@"')
"""Opens the file that is its first word as descriptor 3, and becomes the command that is the others."""
NOT_STARTED = 126
"""How a command ends whose words no system can be given; `Processes` says so, and nothing else was tried."""
RUNNER = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
os.set_inheritable(3, False)
n = int(sys.argv[2]) + 3
env, argv = dict(word.split("=", 1) for word in sys.argv[3:n]), sys.argv[n:]
try:
    os.chdir(sys.argv[1])
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", 'exec "$@"', "sh", *argv], env, setsigdef=[13, 25])
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
except (OSError, ValueError) as error:
    print(f"{argv[0][:200]}: {error}", file=sys.stderr)
    code = 126
os.write(3, str(code).encode())
"""
"""prctl 4 (PR_SET_DUMPABLE) closes /proc/PID/fd to the command. Python ignores signals 13 (SIGPIPE) and 25 (SIGXFSZ);
the command gets their defaults."""


class WalledSandbox(FolderSandbox):
    """A `FolderSandbox` whose commands run behind `walls`; files are the host's, as in all of them.

    The walls must take in all that a command starts, and end it with the command: a process that went on could exchange
    a folder for a link while a file is read from outside.
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
        """Raises BackendError if the command was not run."""
        variables = [f"{name}={value}" for name, value in self.environment(request).items()]
        place = Path(self.inside, cwd.relative_to(self.folder))
        runner = (self.python, "-ISc", RUNNER, place, len(variables), *variables, *request.argv)
        with NamedTemporaryFile() as report:
            argv = tuple(map(str, (*REPORTED, report.name, *self.walls(), *runner)))
            result = await self.processes.run(evolve(request, argv=argv), self.home, {"PATH": self.provider.path})
            return self._told(result, report.read())

    def _told(self, result: ExecResult, report: bytes) -> ExecResult:
        """The end as reported from inside. Without a report the command killed the runner, or nothing was run."""
        code = result.exit_code
        if result.status != "exited" or code in (None, NOT_STARTED) or self.id not in self.provider.live:
            return result
        if report:
            code = int(report)
        elif code <= 128:
            raise BackendError("a command was not run", found=result.stderr.decode(errors="replace").strip())
        else:
            code = 128 - code
        if code < 0:
            return evolve(result, status="signaled", exit_code=None, signal=-code)
        return evolve(result, exit_code=code)
