"""The sandbox backend `workshop/jail`: a folder for each sandbox, one bubblewrap for each command.

Folders, copies and files are `composer_envkit`'s; the walls are told here. Nothing runs in a sandbox between commands:
what one has started ends with it, which is what makes it safe that files are read and written from outside.

What it does not do: memory, processes and disk are not limited, so no limit is declared; a run that wants them uses
another backend. Ids mean something in this process only.
"""

import sys
import sysconfig
from pathlib import Path

from composer_core import BuildContext, NoConfig, Tree
from composer_core.errors import BackendError, ConfigError
from composer_core.protocols import ExecRequest, TemplateSpec
from composer_envkit import FolderProvider, WalledSandbox

PYTHON = Path(sys.executable).resolve()
PATH = f"/usr/local/bin:/usr/bin:/bin:{PYTHON.parent}"
SHOWN = list(dict.fromkeys([Path("/usr"), Path(sys.base_prefix).resolve()]))
"""Folders of the host that every sandbox sees, read-only: the system's programs and this interpreter."""
LIBRARY = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
IMPORTED = [path for path in map(Path, sys.path) if path.is_dir() and path.resolve() not in LIBRARY]
OURS = [path.resolve() for path in IMPORTED if path.name != "lib-dynload"]
PACKAGES = [found for path in [*SHOWN, Path("/usr/local")] for found in path.glob("lib*/python3*/*-packages")]
PACKAGES += [path for path in OURS if path not in PACKAGES and any(path.is_relative_to(shown) for shown in SHOWN)]
"""Shown empty, also where this process imports from: an installed plugin may hold the answers of its tasks."""
WALLS = [
    *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session", "--clearenv"),
    *("--cap-drop", "ALL", "--uid", "1000", "--gid", "1000"),
    *(word for path in SHOWN for word in ("--ro-bind", path, path)),
    *(word for path in PACKAGES for word in ("--tmpfs", path, "--remount-ro", path)),
    *(word for name in ("bin", "lib", "lib64", "sbin") for word in ("--symlink", f"usr/{name}", f"/{name}")),
    *(word for name in ("alternatives", "ld.so.cache") for word in ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")),
    *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/dev/shm", "--remount-ro", "/dev", "--tmpfs", "/tmp"),
]
"""bubblewrap's arguments for every sandbox: new namespaces of every kind and so no network, no privilege to win back, a
/tmp that lasts as long as the command."""


class JailProvider(FolderProvider):
    """`protocols.SandboxProvider`."""

    def __init__(self, config: NoConfig, build: BuildContext) -> None:
        super().__init__(Jail, PATH)

    async def probe(self) -> frozenset[str]:
        """Tries one command, since what a kernel allows cannot be read anywhere; ConfigError if it cannot run."""
        try:
            trial = await self.start(TemplateSpec(Tree(()).ref), self.folder())
            self.live[trial.id] = trial
            await trial.exec(ExecRequest(("true",)))
            await trial.destroy()
        except BackendError as error:
            raise ConfigError(
                "workshop/jail cannot run commands here",
                found=str(error),
                fix="apt install bubblewrap (0.8 or newer), allow user namespaces, or use another sandbox",
            ) from error
        return await super().probe() | {"sandbox.isolates"}


class Jail(WalledSandbox):
    """`protocols.SandboxBackend` whose commands run behind `WALLS`."""

    python = str(PYTHON)

    def walls(self) -> list[object]:
        return ["bwrap", *WALLS, "--bind", self.folder, self.inside, "--remount-ro", "/", "--chdir", "/", "--"]
