"""The few system calls that Python 3.11 does not offer.

openat2, mount, mount_setattr, open_tree, move_mount, umount2, pivot_root, unshare, setns, prctl, setfsuid, and what is
needed of sockets, whose module agents do not bring along.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x00020000, 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = (
    1,
    2,
    4,
    8,
    32,
    4096,
    16384,
    1 << 18,
)
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 36, 38
RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 0x02, 0x04, 0x08
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
AT_FDCWD, AT_RECURSIVE, MNT_DETACH = -100, 0x8000, 2
OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH = 1, 4
AF_UNIX, AF_INET, SOCK_STREAM, SOCK_DGRAM, SOCK_CLOEXEC, SOCK_NONBLOCK = 1, 2, 1, 2, 0x80000, 0x800
SOL_SOCKET, SO_REUSEADDR, SHUT_WR, SIOCSIFFLAGS, IFF_UP = 1, 2, 1, 0x8914, 1
SYS_OPEN_TREE, SYS_MOVE_MOUNT, SYS_CLOSE_RANGE, SYS_OPENAT2, SYS_MOUNT_SETATTR = 428, 429, 436, 437, 442
"""The same number on every architecture, as of all calls since Linux 5.1."""
RACES = 64
"""Times the kernel may ask to resolve a path anew since a rename raced with it."""

libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def checked(result: int, what: str) -> int:
    """The result of a call of `libc`; OSError where it failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    arguments = source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()
    checked(libc.mount(*arguments), f"mount {kind} on {target}")


def close_from(fd: int) -> None:
    """Close this descriptor and all above it, however many the process may have (Linux 5.9)."""
    checked(libc.syscall(SYS_CLOSE_RANGE, ctypes.c_uint(fd), ctypes.c_uint(0xFFFFFFFF), 0), "close_range")


class _MountAttr(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd"))


def restrict(target: str, attributes: int, below: bool = False) -> None:
    """Set attributes of the mount at `target`, with `below` also of all mounts below it (Linux 5.12)."""
    attr, flags = _MountAttr(attributes), AT_RECURSIVE if below else 0
    arguments = AT_FDCWD, target.encode(), flags, ctypes.byref(attr), ctypes.c_size_t(ctypes.sizeof(attr))
    checked(libc.syscall(SYS_MOUNT_SETATTR, *arguments), f"mount_setattr {target}")


def copied_mount(path: str) -> int:
    """A descriptor of what a path shows, as a mount that stands nowhere yet (Linux 5.2)."""
    flags = OPEN_TREE_CLONE | os.O_CLOEXEC
    return checked(libc.syscall(SYS_OPEN_TREE, AT_FDCWD, path.encode(), flags), f"open_tree {path}")


def place_mount(fd: int, target: str) -> None:
    """Mount what `copied_mount` gave, be it of another mount namespace."""
    arguments = fd, b"", AT_FDCWD, target.encode(), MOVE_MOUNT_F_EMPTY_PATH
    checked(libc.syscall(SYS_MOVE_MOUNT, *arguments), f"move_mount to {target}")


def pivot_here() -> None:
    """Make the current folder, a mount, the root of this mount namespace, which then has nothing else."""
    checked(libc.pivot_root(b".", b"."), "pivot_root")
    checked(libc.umount2(b".", MNT_DETACH), "umount of the old root")


def loopback_up() -> None:
    """Of this network namespace. Without the module for sockets, since agents bring along whatever is imported."""
    fd = checked(libc.socket(AF_INET, SOCK_DGRAM, 0), "socket")
    try:
        checked(libc.ioctl(fd, ctypes.c_ulong(SIOCSIFFLAGS), struct.pack("16sH14x", b"lo", IFF_UP)), "loopback")
    finally:
        os.close(fd)


def socket_pair() -> tuple[int, int]:
    """Two ends of a Unix stream, which no program inherits."""
    ends = (ctypes.c_int * 2)()
    checked(libc.socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), "socketpair")
    return ends[0], ends[1]


def listen_on_loopback(port: int, backlog: int) -> int:
    """A listening socket of this network namespace, which no program inherits and nobody waits for."""
    fd = checked(libc.socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), "socket")
    try:
        one = ctypes.byref(ctypes.c_int(1))
        checked(libc.setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, one, 4), "setsockopt")
        address = struct.pack("=H", AF_INET) + struct.pack("!H", port) + bytes((127, 0, 0, 1)) + bytes(8)
        checked(libc.bind(fd, address, len(address)), f"port {port} of the sandbox's loopback")
        checked(libc.listen(fd, backlog), "listen")
    except OSError:
        os.close(fd)
        raise
    return fd


def accept(fd: int) -> int:
    """A connection that waits, or -1."""
    found: int = libc.accept4(fd, None, None, SOCK_CLOEXEC | SOCK_NONBLOCK)
    return found


def shut_for_writing(fd: int) -> None:
    checked(libc.shutdown(fd, SHUT_WR), "shutdown")


def umount(target: str) -> None:
    checked(libc.umount2(target.encode(), 0), f"umount {target}")


def unshare(flags: int) -> None:
    checked(libc.unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    checked(libc.setns(fd, kind), "setns")


def files_as(uid: int, gid: int) -> None:
    """From now on files are opened and made in this identity; signals and rights of the process stay its own."""
    libc.setfsgid(gid)
    libc.setfsuid(uid)


def prctl(option: int, value: int) -> None:
    checked(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def open_beneath(folder: int, path: str, flags: int, mode: int = 0, links: bool = True) -> int:
    """Open `path`, "" for the folder itself, below a folder's descriptor.

    The kernel refuses any step that leaves it (EXDEV). Links are followed as long as they stay beneath; without `links`
    any is ELOOP.
    """
    resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | (0 if links else RESOLVE_NO_SYMLINKS)
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve)
    name = os.fsencode(path or ".")
    if b"\0" in name:  # where the kernel would stop reading
        raise OSError(errno.EINVAL, "a null in a path")
    for _ in range(RACES):
        fd: int = libc.syscall(SYS_OPENAT2, folder, name, ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0 or ctypes.get_errno() != errno.EAGAIN:
            break
    return checked(fd, path)
