"""Whether a process of this machine holds a run folder's lock, found out without touching the lock.

Trying to take it would make a `train` that starts in that moment believe that another one trains there. The kernel's
list of locks says it without side effects; it knows nothing of other machines, nor of processes outside this one's
namespace, so absence means "not here".
"""

from __future__ import annotations

from pathlib import Path

LOCKS = Path("/proc/locks")


def held_here(run_dir: Path, locks: Path = LOCKS) -> bool | None:
    """None where there is no lock file, or the machine does not tell."""
    try:
        inode = (run_dir / "lock").stat().st_ino
        lines = locks.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    # "1: FLOCK  ADVISORY  WRITE 20181 fe:00:2892749 0 EOF"; the device's number is not a file's on every file system
    fields = (line.split() for line in lines)
    return any(words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(inode) for words in fields if len(words) > 5)
