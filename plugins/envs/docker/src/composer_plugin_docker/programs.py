"""Programs of this machine with all they need to run elsewhere: links on the way, shared libraries, a standard library.

What a base image holds when no image is named. Only what is asked for is taken along, so nothing that lies beside it
gets into a sandbox: neither installed packages (which may hold the answers of tasks) nor anybody's files.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from composer_core.errors import PrepareError

SYSTEM = "/usr/local/bin:/usr/bin:/bin"
"""Where programs are looked for here, and commands in a sandbox of a base image made here."""
USUAL = """
    sh bash awk base64 basename cat chmod cmp comm cp cut date dd df diff dirname du echo env expr false
    find fold grep egrep fgrep gzip head hostname id install join ln ls md5sum mkdir mkfifo mktemp mv nl
    nproc od paste patch printf pwd python3 readlink realpath rm rmdir sed seq setsid sha256sum shuf sleep
    sort split stat sync tail tar tee test timeout touch tr true truncate tsort tty uname uniq wc which
    whoami xargs yes
"""
"""Taken along where they are installed; `sh` and `cat` must be."""
NEEDED = ("sh", "cat")
BESIDE = {"git": ("/usr/lib/git-core", "/usr/share/git-core")}
"""Program -> folders that it runs or reads and that no library list names."""
PACKAGES = {"rg": "ripgrep"}
LOADER_FILES = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d")
TOP_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64")
"""Links at the root on merged systems, by which scripts name their shell."""
LEFT_OUT = (
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
)
SCRIPTS = sysconfig.get_path("scripts")
"""Where programs stand that came with Python packages, such as ruff."""
_LIBRARY = re.compile(rb"^\s(?:\S+ => )?(/\S+) \(0x", re.M)


def found(names: Iterable[str]) -> dict[str, str]:
    """Program -> its path here. Raises PrepareError for one of `names` that is not installed."""
    asked = {*names, *NEEDED}
    places = {name: shutil.which(name, path=SYSTEM) for name in {*asked, *USUAL.split()}}
    if "python3" in places and not places["python3"]:
        places["python3"] = f"{sys.base_prefix}/bin/python3"
    places |= {name: places[name] or shutil.which(name) or shutil.which(name, path=SCRIPTS) for name in places}
    missing = sorted(name for name in asked if not places[name])
    if missing:
        fix = f"apt install {' '.join(PACKAGES.get(name, name) for name in missing)}"
        raise PrepareError(f"commands are not installed here: {', '.join(missing)}", expected=f"on {SYSTEM}", fix=fix)
    return {name: place for name in sorted(places) if (place := places[name])}


def closure(programs: Iterable[str], folders: Iterable[str] = ()) -> list[str]:
    """Every path to archive for `programs` (paths) and all that `folders` hold, parents first."""
    paths: set[str] = set()
    links = [path for path in TOP_LINKS if os.path.islink(path)]
    for path in [*programs, *LOADER_FILES, *links, *folders]:
        _reach(path, paths)
    if any(Path(path).name.startswith("python3") for path in programs):
        for folder in _standard_library(next(path for path in programs if Path(path).name.startswith("python3"))):
            _reach(folder, paths)
            paths.update(_below(folder, LEFT_OUT))
    for program in programs:
        for folder in BESIDE.get(Path(program).name, ()):
            _reach(folder, paths)
            paths.update(_below(folder))
    for folder in [*folders, "/etc/ld.so.conf.d"]:
        paths.update(_below(folder))
    for library in _libraries([path for path in paths if _may_load(path)]):
        _reach(library, paths)
    return sorted(paths)


def outside(programs: dict[str, str]) -> dict[str, str]:
    """Link in a sandbox's search path -> program, for those that stand in no folder of it here."""
    folders = SYSTEM.split(":")
    return {f"/usr/local/bin/{name}": path for name, path in programs.items() if str(Path(path).parent) not in folders}


def _reach(path: str, paths: set[str]) -> None:
    """Add a path, the folders above it, and every link on the way with what it leads to."""
    if not os.path.lexists(path):
        return
    at = Path("/")
    parts = Path(path).parts[1:]
    for index, part in enumerate(parts):
        at /= part
        if str(at) in paths and not at.is_symlink():
            continue
        paths.add(str(at))
        if at.is_symlink():
            target = os.path.normpath(at.parent / os.readlink(at))
            _reach(os.path.join(target, *parts[index + 1 :]), paths)
            return


def _below(folder: str, without: tuple[str, ...] = ()) -> list[str]:
    rows = []
    for at, names, files in os.walk(folder):
        names[:] = [name for name in names if name not in without and not name.startswith("config-")]
        rows += [f"{at}/{name}" for name in [*names, *files] if name not in without]
    return rows


def _standard_library(python: str) -> list[str]:
    script = "import sysconfig; print(*{sysconfig.get_path(name) for name in ('stdlib', 'platstdlib')}, sep='\\n')"
    ran = subprocess.run([python, "-I", "-S", "-c", script], capture_output=True, text=True, check=False)
    return sorted(filter(os.path.isdir, ran.stdout.split("\n")))


def _may_load(path: str) -> bool:
    with suppress(OSError):
        if os.path.isfile(path) and not os.path.islink(path) and (os.access(path, os.X_OK) or ".so" in path):
            with open(path, "rb") as file:
                return file.read(4) == b"\x7fELF"
    return False


def _libraries(files: list[str]) -> set[str]:
    listed: set[str] = set()
    for start in range(0, len(files), 200):
        ran = subprocess.run(["ldd", *files[start : start + 200]], capture_output=True, check=False)
        listed.update(os.fsdecode(path) for path in _LIBRARY.findall(ran.stdout))
    return listed
