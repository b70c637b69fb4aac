"""Templates, homes and frozen layers: overlays whose upper folders are in a size-limited tmpfs of each sandbox.

That tmpfs is a sandbox's *home*: the workspace's changes, /tmp and /dev/shm. To fork or to capture is to freeze: the
home is set aside as a *layer* that nobody writes to any more, and parent and children each stack a new, empty home on
it. So neither time nor memory depends on how much was written. A frozen layer is safe to share since nothing of a
command outlives it; while one runs it may hold files of the home open for writing, and the home is copied instead.

Each sandbox has a mount namespace of its own that only a descriptor keeps alive; closing it unmounts everything. It is
a copy of the one in which the layers below are mounted, at `live/0` and up: an overlay is told of layers by paths.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOSPC
from typing import Any

from composer_envkit.agent import files, linux

INODES_PER_SANDBOX = 1 << 14
LEVELS = 32
"""Layers below a home; where there would be more they are merged into one, which is a copy. Names of all have to fit
into the page that mount(2) takes options in."""
TREES = ("workspace", "tmp", "shm")
FORKED = ("workspace", "tmp")
"""What children start with; /dev/shm is their own."""


class Store:
    """Memory that templates and frozen layers may take together."""

    def __init__(self, state: str, limit_bytes: int) -> None:
        self.state, self.limit_bytes, self.frozen_bytes = state, limit_bytes, 0

    def take(self, size: int) -> None:
        """Raises OSError where there is no room."""
        if used_bytes(self.state) + self.frozen_bytes + size > self.limit_bytes:
            raise OSError(ENOSPC, f"templates and frozen layers would take more than {self.limit_bytes} bytes")
        self.frozen_bytes += size


class Template:
    """A pristine workspace and the limits of every sandbox made from it."""

    def __init__(self, folder: str, rows: list[tuple[str, bytes, bool]], spec: dict[str, Any]) -> None:
        self.folder = folder
        self.executable = {path: executable for path, _, executable in rows}
        self.spec = spec
        os.makedirs(folder)
        fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        try:
            for path, data, executable in rows:
                files.write(fd, path, data, len(data), executable)
        finally:
            os.close(fd)


class Layer:
    """A frozen home."""

    def __init__(self, home: Home, store: Store) -> None:
        """Raises OSError where the store has no room for it."""
        self.size, self.store, self.uses = used_bytes(home.path), store, 0
        self.filled = {tree for tree in TREES if home.touched(tree)}
        self.fd = os.dup(home.fd)
        try:
            store.take(self.size)
        except OSError:
            os.close(self.fd)
            raise

    def upper(self, tree: str) -> str:
        return f"/proc/self/fd/{self.fd}/up/{tree}"

    def drop(self) -> None:
        self.uses -= 1
        if self.uses == 0:
            os.close(self.fd)
            self.store.frozen_bytes -= self.size


class State:
    """What a sandbox is created from: a template and the frozen layers above it, newest first.

    `namespace` is the mount namespace that has them at `live/0` and up, the oldest first; it belongs to the state, and
    both go with the last that `hold`s it.
    """

    def __init__(self, template: Template, layers: tuple[Layer, ...] = (), namespace: int = -1) -> None:
        self.template, self.layers, self.namespace, self.uses = template, layers, namespace, 0
        for layer in layers:
            layer.uses += 1

    def hold(self) -> State:
        self.uses += 1
        return self

    def drop(self) -> None:
        self.uses -= 1
        if self.uses == 0 and self.layers:
            os.close(self.namespace)
            for layer in self.layers:
                layer.drop()


class Home:
    """A writable home above the layers of a state, in a mount namespace of its own; `show` mounts what commands see.

    `own` is the number of layers that were the same sandbox's homes before: its /dev/shm goes on through these.
    """

    def __init__(self, live: str, state: State, own: int = 0, size: int = 0) -> None:
        """`size` is the room in bytes; default, the template's limit."""
        self.live, self.state, self.own = live, state, own
        self.level = len(state.layers)
        self.at = f"{live}/{self.level}"
        self.shown: dict[str, str] = {}
        """Tree -> where commands' view of it is, in the namespace."""
        self.fd = self.workspace = self.namespace = -1
        size = size or state.template.spec["disk_bytes"]
        try:
            with entered(state.namespace):
                linux.unshare(linux.CLONE_NEWNS)
                options = f"mode=755,size={size},nr_inodes={INODES_PER_SANDBOX}"
                linux.mount("tmpfs", self.at, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
                self.fd = os.open(self.at, os.O_PATH | os.O_DIRECTORY)
                self.namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY)
                for kind in ("up", "scratch", "seen"):
                    for folder in (kind, *(f"{kind}/{tree}" for tree in TREES)):
                        os.mkdir(folder, 0o755, dir_fd=self.fd)
                for tree in TREES:
                    self._take_after(tree)
        except BaseException:
            self.close()
            raise

    def _take_after(self, tree: str) -> None:
        """The topmost folder's mode and times are the whole's."""
        below = self._below(tree)
        if below:
            info = os.stat(below[0])
            os.chmod(f"{self.at}/up/{tree}", info.st_mode & 0o7777)
            os.utime(f"{self.at}/up/{tree}", ns=(info.st_atime_ns, info.st_mtime_ns))

    def _below(self, tree: str) -> list[str]:
        """Uppers of the layers that hold something of a tree, newest first, as the namespace has them."""
        count = self.own if tree == "shm" else self.level
        rows = enumerate(self.state.layers[:count])
        return [f"{self.live}/{self.level - 1 - index}/up/{tree}" for index, layer in rows if tree in layer.filled]

    @property
    def path(self) -> str:
        """The tmpfs, as seen from outside its mount namespace."""
        return f"/proc/self/fd/{self.fd}"

    def touched(self, tree: str) -> bool:
        """Whether anything was changed in a tree since the home was made."""
        upper, below = f"{self.path}/up/{tree}", [layer for layer in self.state.layers if tree in layer.filled]
        mode = os.stat(below[0].upper(tree)).st_mode if below and tree != "shm" else 0o040755
        return bool(os.listdir(upper)) or os.stat(upper).st_mode != mode

    def show(self) -> None:
        """Mount the overlays that are not; a tree with nothing below is its upper folder itself."""
        with entered(self.namespace):
            for tree in [tree for tree in TREES if tree not in self.shown]:
                below = self._below(tree) + ([self.state.template.folder] if tree == "workspace" else [])
                if not below:
                    self.shown[tree] = f"{self.at}/up/{tree}"
                    continue
                layout = f"lowerdir={':'.join(below)},upperdir={self.at}/up/{tree},workdir={self.at}/scratch/{tree}"
                flags = linux.MS_NOSUID | linux.MS_NODEV
                linux.mount("overlay", f"{self.at}/seen/{tree}", "overlay", flags, f"userxattr,{layout}")
                self.shown[tree] = f"{self.at}/seen/{tree}"
            self.workspace = os.open(self.shown["workspace"], os.O_PATH | os.O_DIRECTORY)

    def hide(self) -> None:
        """Unmount the overlays that are mounted; raises OSError (EBUSY) where something still uses one."""
        self._close_workspace()
        with entered(self.namespace):
            for tree, path in list(self.shown.items()):
                if path.startswith(f"{self.at}/seen/"):
                    linux.umount(path)
                del self.shown[tree]

    def _close_workspace(self) -> None:
        if self.workspace >= 0:
            os.close(self.workspace)
        self.workspace = -1

    def leave(self) -> int:
        """Close all but the namespace, which is returned."""
        self._close_workspace()
        if self.fd >= 0:
            os.close(self.fd)
        found, self.fd, self.namespace = self.namespace, -1, -1
        return found

    def close(self) -> None:
        namespace = self.leave()
        if namespace >= 0:
            os.close(namespace)


def used_bytes(folder: str) -> int:
    """What the file system of a folder holds."""
    found = os.statvfs(folder)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


@contextmanager
def entered(namespace: int) -> Iterator[None]:
    """Within a mount namespace, or, with -1, within this one; what is unshared inside ends with it."""
    base = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    try:
        if namespace >= 0:
            linux.setns(namespace, linux.CLONE_NEWNS)
        try:
            yield
        finally:
            linux.setns(base, linux.CLONE_NEWNS)
    finally:
        os.close(base)
