"""Templates, layers and sandboxes: overlays whose upper folder is a size-limited tmpfs of the sandbox's own.

A template is a read-only lower folder. A snapshot copies a sandbox's upper folder once into a frozen layer; what is
created from it stacks a new, empty upper folder on that layer, so a fork of n costs one small copy and n mounts. (The
parent's own upper cannot be frozen in place: commands of the parent may hold its mount.)
"""

from __future__ import annotations

import os
import secrets
import shutil
from typing import Any

from composer_envkit.agent import files, linux
from composer_plugin_local.keeper.copying import copy_below

INODES_PER_SANDBOX = 1 << 14


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
    """A frozen upper folder and the /tmp that went with it; removed with the last thing that stands on it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.uses = 0
        self.has_tmp = False

    def drop(self) -> None:
        self.uses -= 1
        if self.uses == 0:
            shutil.rmtree(self.folder, ignore_errors=True)


class State:
    """What a sandbox is created from: a template and the frozen layers above it, newest first."""

    def __init__(self, template: Template, layers: tuple[Layer, ...] = ()) -> None:
        self.template = template
        self.layers = layers

    def hold(self) -> None:
        for layer in self.layers:
            layer.uses += 1

    def drop(self) -> None:
        for layer in self.layers:
            layer.drop()


class Sandbox:
    """One overlay, in a mount namespace of its own that only `namespace` keeps alive.

    A command's mount namespace copies the one it starts in, mount by mount, so sandboxes in one namespace would make
    every command pay for all of them. Closing the descriptors unmounts everything.
    """

    def __init__(self, mountpoint: str, state: State) -> None:
        self.id = secrets.token_hex(8)
        self.state = state
        self.spec = state.template.spec
        self.mountpoint = mountpoint
        self.commands: set[Any] = set()
        self.destroyed_by: int | None = None
        """Number of the destroy request that waits for the last command."""
        self.fd = self.home_fd = self.namespace = -1
        state.hold()
        base = os.open("/proc/self/ns/mnt", os.O_RDONLY)
        try:
            linux.unshare(linux.CLONE_NEWNS)
            try:
                self._mount()
            finally:
                linux.setns(base, linux.CLONE_NEWNS)
            if self.state.layers and self.state.layers[0].has_tmp:
                copy_below(f"{self.state.layers[0].folder}/tmp", f"{self.home}/tmp")
        except BaseException:
            self.close()
            raise
        finally:
            os.close(base)

    @property
    def home(self) -> str:
        """The sandbox's tmpfs, as seen from outside its mount namespace."""
        return f"/proc/self/fd/{self.home_fd}"

    @property
    def upper(self) -> str:
        return f"{self.home}/up"

    def _mount(self) -> None:
        home = self.mountpoint
        options = f"mode=755,size={self.spec['disk_bytes']},nr_inodes={INODES_PER_SANDBOX}"
        linux.mount("tmpfs", home, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
        for name in ("up", "work", "m", "tmp", "shm"):
            os.mkdir(f"{home}/{name}", 0o755)
        lower = ":".join([layer.folder + "/up" for layer in self.state.layers] + [self.state.template.folder])
        layout = f"userxattr,lowerdir={lower},upperdir={home}/up,workdir={home}/work"
        linux.mount("overlay", f"{home}/m", "overlay", linux.MS_NOSUID | linux.MS_NODEV, layout)
        self.fd = os.open(f"{home}/m", os.O_PATH | os.O_DIRECTORY)
        self.home_fd = os.open(home, os.O_PATH | os.O_DIRECTORY)
        self.namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY)

    def freeze(self, folder: str) -> State:
        """Capture the files now; the sandbox goes on. What a running command writes meanwhile may be half there."""
        layer = Layer(folder)
        os.makedirs(folder)
        try:
            for name in ("up", "tmp"):
                os.mkdir(f"{folder}/{name}")
                copy_below(f"{self.home}/{name}", f"{folder}/{name}")
            layer.has_tmp = bool(os.listdir(f"{folder}/tmp"))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return State(self.state.template, (layer, *self.state.layers))

    def close(self) -> None:
        for fd in (self.fd, self.home_fd, self.namespace):
            if fd >= 0:
                os.close(fd)
        self.fd = self.home_fd = self.namespace = -1
        self.state.drop()
