"""New lines of a file that somebody else appends to, a bounded piece at a time.

Only whole lines are given out: one that is being written, or was cut by a kill, waits for its end. A resumed run may
cut such a line away and write on from there, which leaves everything that was read as it was. A file that was replaced,
or is shorter than what was read, is read again from its start, and `restarts` says so.
"""

from __future__ import annotations

import os
from pathlib import Path

from attrs import define

PIECE_BYTES = 4 << 20
"""Read at once; a longer line is skipped."""


@define
class Tail:
    path: Path
    restarts: int = 0
    _offset: int = 0
    _size: int = 0
    _inode: int = 0
    _skipping: bool = False
    """Inside a line that is longer than a piece."""

    @property
    def share(self) -> float:
        """How much of the file has been read, 0 to 1, as it was when last looked at."""
        return self._offset / self._size if self._size else 1.0

    def read(self) -> list[bytes] | None:
        """The next whole lines, at most a piece of them; None where there is nothing more to read by now."""
        try:
            with self.path.open("rb") as file:
                self._look(file.fileno())
                file.seek(self._offset)
                return self._whole(file.read(PIECE_BYTES))
        except FileNotFoundError:
            return None

    def _look(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        if self._inode and (found.st_ino != self._inode or found.st_size < self._offset):
            self.restarts += 1
            self._offset, self._skipping = 0, False
        self._inode, self._size = found.st_ino, found.st_size

    def _whole(self, piece: bytes) -> list[bytes] | None:
        end = piece.rfind(b"\n") + 1
        if not end:
            self._skipping = self._skipping or len(piece) == PIECE_BYTES
            self._offset += len(piece) if self._skipping else 0
            return [] if piece and self._skipping else None
        self._offset += end
        lines = piece[:end].splitlines()
        if self._skipping and lines:
            self._skipping = False
            del lines[0]
        return lines
