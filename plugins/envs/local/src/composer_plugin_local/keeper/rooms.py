"""The room that commands of a sandbox are put into: a root put together once, and a network of loopback alone.

bubblewrap builds such a root for each command as well, which takes most of its time: some 25 mounts, over a copy of
all mounts of the host, and a new network. Here the root is a mount namespace of its own that holds nothing else, and
bubblewrap takes it as it is; what counts for each command, its user, process, IPC, host name and control group
namespaces and its /proc, stays bubblewrap's. Nothing can be left in a network by a command that is gone.

A room is made with the first command, so that a fork that runs none has none. What all rooms have in common is put
together once for each choice of tools; a room is a copy with the sandbox's own folders, terminals and network.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from composer_envkit.agent import linux
from composer_envkit.agent.relay import Relay
from composer_plugin_local.keeper.layers import Home, entered

SHUT = linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV | linux.MOUNT_ATTR_RDONLY
WORKSPACE = "/workspace"
FOLDERS = {"/dev/shm": "shm", "/tmp": "tmp", WORKSPACE: "workspace"}
"""Where commands find what of a home."""
TOP = ("bin", "lib", "lib32", "lib64", "sbin")
LOADER = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d")
"""Of /etc."""
HOSTS = {"hosts": "127.0.0.1 localhost\n", "nsswitch.conf": "hosts: files\n"}
"""Files of /etc, with which names of the sandbox's own loopback are found and no others are looked for."""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "core": "/proc/kcore",
    "ptmx": "pts/ptmx",
}


class Rooms:
    """Makes rooms."""

    def __init__(self, place: str, tools: str, hidden: list[str]) -> None:
        """`place` is an empty folder to put roots together on; folders in `hidden` appear empty."""
        self.place, self.tools, self.hidden = place, tools, hidden
        self._empty: dict[tuple[str, ...], int] = {}
        """Tools -> a mount namespace whose root is a room without folders of a sandbox; they are kept."""

    def make(self, home: Home) -> Room:
        tools = tuple(home.state.template.spec["tools"])
        if tools not in self._empty:
            with entered(-1):
                linux.unshare(linux.CLONE_NEWNS)
                _Root(self.place).furnish(self.tools, tools, self.hidden)
                os.chdir(self.place)
                linux.pivot_here()
                os.chdir("/")
                self._empty[tools] = os.open("/proc/self/ns/mnt", os.O_RDONLY)
        return Room(self._empty[tools], home)


class Room:
    """Two descriptors that keep it alive: of a mount namespace and of a network."""

    def __init__(self, empty: int, home: Home) -> None:
        self.root = self.network = -1
        trees: dict[str, int] = {}
        try:
            with entered(home.namespace):
                for path, tree in FOLDERS.items():
                    trees[path] = linux.copied_mount(home.shown[tree])
            with entered(empty):
                linux.unshare(linux.CLONE_NEWNS)
                linux.mount("devpts", "/dev/pts", "devpts", linux.MS_NOSUID, "newinstance,ptmxmode=666,mode=620")
                for path, fd in trees.items():
                    linux.place_mount(fd, path)
                self.root = os.open("/proc/self/ns/mnt", os.O_RDONLY)
            self.network = loopback()
        except BaseException:
            self.close()
            raise
        finally:
            for fd in trees.values():
                os.close(fd)

    def open_way_out(self, relay: Relay) -> None:
        """Raises OSError where something here holds its port."""
        with own_network():
            linux.setns(self.network, linux.CLONE_NEWNET)
            relay.listen()

    def close(self) -> None:
        for fd in (self.root, self.network):
            if fd >= 0:
                os.close(fd)
        self.root = self.network = -1


class _Root:
    """A tmpfs that is filled with mounts and then shut."""

    def __init__(self, place: str) -> None:
        self.place = place
        linux.mount("tmpfs", place, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=1m")

    def furnish(self, tools: str, names: tuple[str, ...], hidden: list[str]) -> None:
        self._programs(tools, names)
        self._hide([folder for folder in hidden if folder.startswith(("/usr/", *(f"/opt/{name}/" for name in names)))])
        self._devices()
        for path in FOLDERS:
            os.mkdir(self.place + path)
        self._mount("proc", "/proc")  # bubblewrap may mount one of its own only where there is one
        for path in ("/dev", ""):
            linux.restrict(self.place + path, linux.MOUNT_ATTR_RDONLY)

    def _programs(self, tools: str, names: tuple[str, ...]) -> None:
        self._show("/usr", "/usr", SHUT)
        for name in TOP:
            if os.path.islink(f"/{name}"):
                os.symlink(os.readlink(f"/{name}"), f"{self.place}/{name}")
            elif os.path.isdir(f"/{name}"):
                self._show(f"/{name}", f"/{name}", SHUT)
        for name in LOADER:
            if os.path.exists(f"/etc/{name}"):
                self._show(f"/etc/{name}", f"/etc/{name}", SHUT)
        os.makedirs(f"{self.place}/etc", exist_ok=True)
        for name, text in HOSTS.items():
            with open(f"{self.place}/etc/{name}", "w") as file:
                file.write(text)
        for name in names:
            self._show(f"{tools}/{name}", f"/opt/{name}", SHUT)

    def _hide(self, folders: list[str]) -> None:
        for folder in folders:
            self._mount("tmpfs", folder, "mode=555")
            linux.restrict(self.place + folder, linux.MOUNT_ATTR_RDONLY)

    def _devices(self) -> None:
        os.mkdir(f"{self.place}/dev", 0o755)
        linux.mount("tmpfs", f"{self.place}/dev", "tmpfs", linux.MS_NOSUID, "mode=755,size=1m")
        for name in DEVICES:
            self._show(f"/dev/{name}", f"/dev/{name}", linux.MOUNT_ATTR_NOSUID)
        os.mkdir(f"{self.place}/dev/pts")
        for name, target in DEVICE_LINKS.items():
            os.symlink(target, f"{self.place}/dev/{name}")

    def _mount(self, kind: str, path: str, options: str = "") -> None:
        os.makedirs(self.place + path, exist_ok=True)
        linux.mount(kind, self.place + path, kind, linux.MS_NOSUID | linux.MS_NODEV, options)

    def _show(self, source: str, path: str, attributes: int) -> None:
        target = self.place + path
        if os.path.isdir(source):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        linux.mount(source, target, "", linux.MS_BIND | linux.MS_REC)
        linux.restrict(target, attributes, below=True)


def loopback() -> int:
    """A new network that has nothing but loopback."""
    with own_network():
        linux.unshare(linux.CLONE_NEWNET)
        linux.loopback_up()
        return os.open("/proc/self/ns/net", os.O_RDONLY)


@contextmanager
def own_network() -> Iterator[None]:
    """Whatever network is entered meanwhile, it is left at the end."""
    base = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        yield
    finally:
        linux.setns(base, linux.CLONE_NEWNET)
        os.close(base)
