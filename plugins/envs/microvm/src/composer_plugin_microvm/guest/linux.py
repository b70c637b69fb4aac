"""The few system calls that Python does not offer, and the one ioctl that a cloned machine needs before all else."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
PR_SET_NO_NEW_PRIVS = 38
SYS_OPENAT2 = 437
RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 0x02, 0x04, 0x08
RNDADDENTROPY, RNDRESEEDCRNG = 0x40085203, 0x5207
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
TRIES = 64
"""Of a resolution that raced with a rename: the kernel asks to try again."""

_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    arguments = source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()
    _checked(_libc.mount(*arguments), f"mount {kind} on {target}")


def no_new_privileges() -> None:
    _checked(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def open_beneath(folder: int, path: str, flags: int, mode: int = 0, links: bool = True) -> int:
    """Open `path` below the folder descriptor; the kernel refuses any step that leaves it (EXDEV).

    With `links` a symbolic link is followed as long as it stays beneath; without, any link is ELOOP.
    """
    resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | (0 if links else RESOLVE_NO_SYMLINKS)
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve)
    name = os.fsencode(path or ".")
    for _ in range(TRIES):
        fd: int = _libc.syscall(SYS_OPENAT2, folder, name, ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0 or ctypes.get_errno() != errno.EAGAIN:
            break
    return _checked(fd, path)


def add_entropy(data: bytes) -> None:
    """Mix `data` into the kernel's generator, credit it, and make every generator draw anew."""
    with open("/dev/random", "wb") as device:
        fcntl.ioctl(device, RNDADDENTROPY, struct.pack("ii", 8 * len(data), len(data)) + data)
        fcntl.ioctl(device, RNDRESEEDCRNG)


def loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))
