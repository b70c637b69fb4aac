"""The interpreter that the agent is shipped with: this machine's own, cut down to what an agent that runs has loaded.

An image need not hold Python, a shell or even a C library. What is needed is asked of the interpreter itself: a probe
imports the agent and says which modules and which shared objects it then has. They are laid under `/.composer`, modules
compiled, and started through their own loader, so nothing of the image is looked at.
"""

from __future__ import annotations

import hashlib
import json
import marshal
import os
import subprocess
import sys
from functools import cache
from importlib.util import MAGIC_NUMBER
from pathlib import Path

from composer_core.errors import ConfigError
from composer_envkit import agent as shared
from composer_plugin_docker.tars import Entries, Link, Whole

HOME = "/.composer"
PACKAGE = "composer_plugin_docker"
HOLLOW = (PACKAGE, "composer_envkit")
"""Packages of which only their agents are taken along, so that their own modules say nothing there."""
PROBE = """
import sys
sys.path += {roots!r}
import encodings.ascii, encodings.latin_1, encodings.utf_8
import {package}.agent.main
import json
files = {{name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}}
with open("/proc/self/maps") as maps:
    mapped = sorted({{line.split(None, 5)[5].strip() for line in maps if line.count("/")}})
print(json.dumps([files, mapped]))
"""
ENTRY = f"from {PACKAGE}.agent.main import main; main()"


def identity() -> str:
    """Changes whenever what `packed` returns may."""
    sources = [path for folder in _agents() for path in sorted(folder.glob("*.py"))]
    parts = [sys.version.encode(), executable().encode(), *(path.read_bytes() for path in sources)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _agents() -> list[Path]:
    return [Path(__file__).resolve().parent / "agent", Path(shared.__file__).resolve().parent]


def executable() -> str:
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


@cache
def packed() -> tuple[Entries, list[str]]:
    """(path in a container -> what stands there, the words that start the agent)."""
    program = executable()
    script = PROBE.format(roots=[str(folder.parents[1]) for folder in _agents()], package=PACKAGE)
    ran = subprocess.run([program, "-I", "-S", "-B", "-c", script], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise ConfigError("the agent cannot be packed", found=ran.stderr.strip(), where=program)
    modules, mapped = json.loads(ran.stdout)
    entries: Entries = {f"{HOME}/bin/python3": Whole(Path(program).read_bytes(), executable=True)}
    library = f"{HOME}/lib/python{sys.version_info[0]}.{sys.version_info[1]}"
    for name, file in modules.items():
        if file and name != "__main__":
            entries.update(_module(name, Path(file), library))
    loader = [path for path in mapped if os.path.basename(path).startswith("ld-")]
    for path in mapped:
        if ".so" in path and "/lib-dynload/" not in path:
            entries.update(_shared(path))
    entries.setdefault(f"{library}/lib-dynload/.keep", Whole(b""))
    start = [f"{HOME}/so/{os.path.basename(loader[0])}", "--library-path", f"{HOME}/so"] if loader else []
    return entries, [*start, f"{HOME}/bin/python3", "-I", "-S", "-B", "-c", ENTRY]


def _module(name: str, file: Path, library: str) -> Entries:
    if file.suffix != ".py":
        return {f"{library}/lib-dynload/{file.name}": Whole(file.read_bytes(), executable=True)}
    inner = name.replace(".", "/") + ("/__init__" if file.name == "__init__.py" else "")
    if name in HOLLOW:
        return {f"{library}/{inner}.pyc": Whole(_compiled("", inner))}
    return {f"{library}/{inner}.pyc": Whole(_compiled(file.read_text(), inner))}


def _compiled(text: str, name: str) -> bytes:
    """A module without its source: the header says that there is none to compare it with."""
    return MAGIC_NUMBER + bytes(12) + marshal.dumps(compile(text, f"{name}.py", "exec", dont_inherit=True))


def _shared(path: str) -> Entries:
    """A library under its own name, and under every other that it goes by beside itself."""
    file = Path(path)
    entries: Entries = {f"{HOME}/so/{file.name}": Whole(file.read_bytes(), executable=True)}
    for other in file.parent.glob(file.name.partition(".so")[0].rstrip("0123456789.-") + "*"):
        if other.name != file.name and other.is_symlink() and other.resolve() == file.resolve():
            entries[f"{HOME}/so/{other.name}"] = Link(file.name)
    return entries
