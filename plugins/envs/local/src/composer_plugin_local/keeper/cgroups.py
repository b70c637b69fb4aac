"""Control groups, version 1 or 2: what makes a memory limit a kill that can be told apart, and counts processes.

One group per slot, not per sandbox: nothing survives a command, so a command's slot is where its processes are. Files
that a sandbox keeps in memory stay charged to the slot that wrote them; each command's limit is therefore set above
what its slot holds when the command starts.

Version 2 gives controllers to the groups below a group only as long as no process is in that itself, and the run's own
processes usually are in theirs. Ours are then made further up, where that is allowed and takes nobody out of a limit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

ROOT = "/sys/fs/cgroup"
ROOTS_2 = (ROOT, f"{ROOT}/unified")
"""Where version 2 is: alone, or beside version 1."""
CONTROLLERS = ("memory", "pids")
PREFIX = "composer-"


class Groups:
    """The folders, one per hierarchy, below which this keeper may make groups."""

    def __init__(self, memory: str, pids: str, version: int) -> None:
        self.memory, self.pids, self.version = memory, pids, version
        self.limit_file = "memory.limit_in_bytes" if version == 1 else "memory.max"
        self.usage_file = "memory.usage_in_bytes" if version == 1 else "memory.current"
        self.kills_file = "memory.oom_control" if version == 1 else "memory.events"

    @property
    def folders(self) -> tuple[str, ...]:
        return tuple(sorted({self.memory, self.pids}))

    def make(self, name: str) -> None:
        for folder in self.folders:
            os.makedirs(f"{folder}/{name}", exist_ok=True)
        calm, value = ("memory.swappiness", "0") if self.version == 1 else ("memory.swap.max", "0")
        if os.path.exists(f"{self.memory}/{name}/{calm}"):
            _put(f"{self.memory}/{name}/{calm}", value)

    def join(self, name: str) -> None:
        """The calling process enters the group."""
        self.make(name)
        for folder in self.folders:
            _put(f"{folder}/{name}/cgroup.procs", "0")

    def leave(self, name: str) -> None:
        """Remove a group in which nothing is left."""
        for folder in self.folders:
            _remove_tree(f"{folder}/{name}")

    def limit(self, name: str, memory_bytes: int, processes: int) -> None:
        held = int(_get(f"{self.memory}/{name}/{self.usage_file}"))
        _put(f"{self.memory}/{name}/{self.limit_file}", str(held + memory_bytes))
        _put(f"{self.pids}/{name}/pids.max", str(processes))

    def kills(self, name: str) -> int:
        """Processes that the kernel killed in the group for want of memory, so far."""
        for line in _get(f"{self.memory}/{name}/{self.kills_file}").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
        return 0


def delegate(uid: int) -> Groups | None:
    """As root: a group of our own in each hierarchy, handed to `uid`; None where that is not allowed."""
    for groups in (*_version_1(), *_version_2()):
        try:
            for folder in groups.folders:
                _sweep(os.path.dirname(folder))
                os.mkdir(folder)
                _enable(groups, folder)
                for name in ("", "cgroup.procs", "tasks", "cgroup.subtree_control"):
                    if os.path.exists(f"{folder}/{name}"):
                        os.chown(f"{folder}/{name}", uid, uid)
            return groups
        except OSError:
            remove(groups)
    return None


def _enable(groups: Groups, folder: str) -> None:
    if groups.version == 2:
        for at in (os.path.dirname(folder), folder):
            if not _has(f"{at}/cgroup.subtree_control"):
                _put(f"{at}/cgroup.subtree_control", " ".join(f"+{name}" for name in CONTROLLERS))


def _has(file: str) -> bool:
    """Whether a file lists the controllers we need."""
    return os.path.exists(file) and set(CONTROLLERS) <= set(_get(file).split())


def _own() -> dict[str, str]:
    rows = (line.split(":", 2) for line in _get("/proc/self/cgroup").splitlines())
    return {name: path for _, names, path in rows for name in names.split(",")}


def _version_1() -> Iterator[Groups]:
    own, name = _own(), f"{PREFIX}{os.getpid()}"
    folders = [f"{ROOT}/{kind}{own.get(kind, '').rstrip('/')}" for kind in CONTROLLERS]
    if all(kind in own for kind in CONTROLLERS) and all(os.access(at, os.W_OK) for at in folders):
        yield Groups(f"{folders[0]}/{name}", f"{folders[1]}/{name}", 1)


def _version_2() -> Iterator[Groups]:
    """Below our own group, or below the nearest one above it, up to one that has a limit of memory or processes."""
    for root in ROOTS_2:
        folder = f"{root}{_own().get('', '/').rstrip('/')}"
        while folder.startswith(root) and _has(f"{folder}/cgroup.controllers") and os.access(folder, os.W_OK):
            yield Groups(f"{folder}/{PREFIX}{os.getpid()}", f"{folder}/{PREFIX}{os.getpid()}", 2)
            if any(_limited(f"{folder}/{kind}.max") for kind in CONTROLLERS):
                break
            folder = os.path.dirname(folder)


def _limited(file: str) -> bool:
    return os.path.exists(file) and _get(file).strip() != "max"


def _sweep(parent: str) -> None:
    """Remove the groups of launchers that are no more; a group with processes cannot be removed."""
    for name in os.listdir(parent):
        pid = name.removeprefix(PREFIX)
        if name.startswith(PREFIX) and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            _remove_tree(f"{parent}/{name}")


def remove(groups: Groups) -> None:
    for folder in groups.folders:
        _remove_tree(folder)


def _remove_tree(folder: str) -> None:
    try:
        with os.scandir(folder) as entries:
            inner = [entry.path for entry in entries if entry.is_dir()]
        for path in [*inner, folder]:
            os.rmdir(path)
    except OSError:
        return  # busy or gone; the next start sweeps again


def _get(path: str) -> str:
    with open(path) as file:
        return file.read()


def _put(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
