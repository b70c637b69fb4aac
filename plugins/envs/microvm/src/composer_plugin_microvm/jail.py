"""Folders of Firecracker machines: what a machine may see, who it is, and what is left when it has gone.

    CACHE/firecracker/run-X/          one provider's; locked while it lives
        root, vmlinux, initrd         the image
        captures/Y/{mem,state,root}   what machines are made of, owned by whoever runs the run, read-only
        jails/firecracker/ID/root/    a machine's whole file system: links to what it needs, its sockets, what it saves

Firecracker opens files by name, so unlike QEMU's what it needs has one: hard links, which cost nothing. A run that was
killed leaves its folder; the next provider that starts removes it, since nobody holds its lock.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path

from attrs import frozen

from composer_core.errors import BackendError
from composer_plugin_microvm import memory
from composer_plugin_microvm.image import alone

API, VSOCK, LOG, METRICS = "api.sock", "v.sock", "log", "metrics"
SAVED_MEMORY, SAVED_DEVICES = "saved-memory", "saved-devices"
PIPE_BYTES = 1 << 18
"""What a log or metrics hold until they are read; more is dropped by Firecracker, which never waits."""
MAX_DEVICES = 64 << 20
TRIES, TRY_S = 20, 0.05
FICLONE = 0x40049409
"""ioctl(2): share the blocks of another file (include/uapi/linux/fs.h); btrfs and XFS can."""


@frozen
class Kept:
    """A `Capture`: the files that a machine is loaded from."""

    folder: Path
    ram_bytes: int

    @property
    def size_bytes(self) -> int:
        return sum(os.stat(self.folder / name).st_blocks * 512 for name in ("mem", "state"))

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)  # it may have gone with the run


class RunFolder:
    """One provider's folder."""

    def __init__(self, cache: Path) -> None:
        above = cache / "firecracker"
        above.mkdir(exist_ok=True, mode=0o700)
        with alone(above / "lock"):
            _remove_left(above)
            self.path = Path(tempfile.mkdtemp(dir=above, prefix="run-"))
            self._lock = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        for name in ("captures", "jails"):
            (self.path / name).mkdir(mode=0o700)

    def hold(self, name: str, path: Path) -> None:
        """A part of the image, from now on under this name."""
        if not (self.path / name).exists():
            _link(path, self.path / name)

    def capture(self, ram_bytes: int, mem: Path, state: Path) -> Kept:
        """Of files that are kept elsewhere."""
        made = self._fresh()
        _link(mem, made / "mem")
        _link(state, made / "state")
        return Kept(made, ram_bytes)

    def merge(self, ram_bytes: int, before: int, saved: int, devices: int) -> Kept:
        """Of what a machine has saved: memory that changed since `before` (-1: all of it), and devices."""
        made = self._fresh()
        try:
            with _new(made / "mem") as mem:
                os.truncate(mem.fileno(), ram_bytes)
                if before >= 0:
                    _copy(before, mem.fileno())
                memory.copy_sparse(saved, mem.fileno())
            with _new(made / "state") as state:
                os.truncate(state.fileno(), os.fstat(devices).st_size)
                memory.copy_sparse(devices, state.fileno())
        except BaseException:
            shutil.rmtree(made)
            raise
        return Kept(made, ram_bytes)

    def _fresh(self) -> Path:
        made = Path(tempfile.mkdtemp(dir=self.path / "captures"))
        _link(self.path / "root", made / "root")
        return made

    def close(self) -> None:
        """Safe twice."""
        if self._lock >= 0:
            _remove(self.path)
            os.close(self._lock)
            self._lock = -1


def _remove_left(above: Path) -> None:
    """What runs have left that nobody holds any more."""
    for path in above.glob("run-*"):
        try:
            lock = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # it was killed before it had one
            shutil.rmtree(path, ignore_errors=True)
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(lock)


def _remove(path: Path) -> None:
    """A capture that nobody waits for any more may still be written into it."""
    for _ in range(TRIES):
        with suppress(OSError):
            shutil.rmtree(path)
            return
        time.sleep(TRY_S)
    shutil.rmtree(path)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # across file systems
        shutil.copyfile(source, target)
        target.chmod(0o444)


def _new(path: Path) -> FileIO:
    return FileIO(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o444), "r+")


def _copy(source: int, target: int) -> None:
    """Of a file as long; costs nothing where the file system can share blocks."""
    try:
        fcntl.ioctl(target, FICLONE, source)
    except OSError:
        memory.copy_sparse(source, target)


class Jail:
    """One machine's folder. `user` is -1 where it runs as the run's user, in no jail of the jailer's."""

    def __init__(self, run: Path, program: str, user: int, links: Mapping[str, Path]) -> None:
        self.id = secrets.token_hex(8)
        self.user = user
        self.base = run / "jails"
        self._folder = self.base / program / self.id
        self.root = self._folder / "root"
        self.root.mkdir(parents=True, mode=0o700)
        self.fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        """Of the root folder: it stays this one, whatever is done to the path."""
        self.heard: dict[str, int] = {}
        """Descriptors of what Firecracker writes into."""
        try:
            for name, path in links.items():
                os.link(path, self.root / name)
            for name in (LOG, METRICS):
                self.heard[name] = self._pipe(name)
        except BaseException:
            self.close()
            raise

    def _pipe(self, name: str) -> int:
        os.mkfifo(self.root / name, 0o600)
        if self.user >= 0:
            os.chown(self.root / name, self.user, self.user)
        found = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.fd)
        fcntl.fcntl(found, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        return found

    def said(self, name: str) -> bytes:
        """What has been written into a pipe since it was last asked."""
        with suppress(OSError, KeyError):
            return os.read(self.heard[name], PIPE_BYTES)
        return b""

    def take(self, name: str, most: int) -> int:
        """A descriptor of what the machine has saved, whose name is gone then. It was written by whoever is jailed."""
        found = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            info = os.fstat(found)
            if not stat.S_ISREG(info.st_mode) or info.st_size > most:
                raise BackendError("what a machine has saved is no file of its size", found=f"{info.st_size} bytes")
            os.unlink(name, dir_fd=self.fd)
        except BaseException:
            os.close(found)
            raise
        return found

    def close(self) -> None:
        """Once nobody is in it any more. Safe twice."""
        if self.fd < 0:
            return
        for fd in (self.fd, *self.heard.values()):
            os.close(fd)
        self.fd = -1
        self.heard.clear()
        shutil.rmtree(self._folder)
        _remove_groups(self.id)


def _remove_groups(name: str, mounts: Path = Path("/proc/mounts")) -> None:
    """The control groups that the jailer made for it, which it leaves to others."""
    for line in mounts.read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            with suppress(OSError):
                os.rmdir(Path(place, "composer", name))


def words(jail: Jail, program: Path, jailer: str, groups: Sequence[str], version: int, ram_bytes: int) -> list[str]:
    """What starts Firecracker, jailed. It has namespaces of its own for processes and an empty one for the network.

    The shell is the namespace's first process: the kernel ends it with whoever started it, and all others with it. The
    jailer's change of user would undo that order for Firecracker itself.
    """
    outer = ["unshare", "--pid", "--net", "--fork", "--kill-child=KILL", "--", "sh", "-c", '"$@" & wait "$!"', "sh"]
    who = ["--id", jail.id, "--uid", str(jail.user), "--gid", str(jail.user)]
    limits = ["--resource-limit", f"fsize={ram_bytes + MAX_DEVICES}", "--resource-limit", "no-file=1024"]
    if version:
        limits += ["--cgroup-version", str(version), "--parent-cgroup", "composer"]
        limits += [word for group in groups for word in ("--cgroup", group)]
    where = ["--exec-file", str(program), "--chroot-base-dir", str(jail.base)]
    return [*outer, jailer, *who, *where, *limits, "--", "--api-sock", API]
