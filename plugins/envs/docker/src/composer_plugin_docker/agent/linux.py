"""System calls that Python does not offer: prctl, setfsuid and openat2."""

from __future__ import annotations

import ctypes
import errno
import os

PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER = 4, 24, 36
RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 0x02, 0x04, 0x08
SYS_OPENAT2 = 437
RACES = 64
"""Times the kernel may ask to resolve a path anew since a rename raced with it."""

_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def prctl(option: int, value: int) -> int:
    """The call's result, negative where it failed."""
    found: int = _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0)
    return found


def files_as(uid: int, gid: int) -> None:
    """From now on files are opened and made in this identity; signals and rights of the process stay its own."""
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)


def open_beneath(folder: int, path: str, flags: int, mode: int = 0, links: bool = True) -> int:
    """Open `path` below a folder's descriptor; the kernel refuses any step that leaves it (EXDEV).

    Links are followed as long as they stay beneath; without `links` any is ELOOP.
    """
    resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | (0 if links else RESOLVE_NO_SYMLINKS)
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve)
    name = os.fsencode(path)
    for _ in range(RACES):
        fd: int = _libc.syscall(SYS_OPENAT2, folder, name, ctypes.byref(how), ctypes.sizeof(how))
        number = ctypes.get_errno()
        if fd >= 0:
            return fd
        if number != errno.EAGAIN:
            break
    raise OSError(number, os.strerror(number), path)
