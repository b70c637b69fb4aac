"""What a server has made, on disk, so that the next one knows what a killed one left.

A state folder belongs to one server at a time: the kernel holds its lock and frees it when the server is no more,
however that came. The ledger is a line for every beginning and every end, written before a provider is asked; it is
written anew when most of it is history. `kill -9` loses nothing of it; a crash of the machine may, but leaves no
sandbox either.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from composer_core.errors import ConfigError

log = logging.getLogger(__name__)
LINES = 4096
"""Lines of history after which the ledger is written anew."""


@frozen
class Past:
    """What an earlier server left: its scratch folder, and sandboxes that had not ended."""

    scratch: Path
    provider: str
    sandboxes: dict[str, str]
    """Our id -> the provider's, "" where the server died while the sandbox was made."""


@define(eq=False)
class Ledger:
    """An open state folder; `past` is what stood there when it was opened."""

    folder: Path
    scratch: Path
    node: str
    past: Past | None
    _lock: int
    _header: dict[str, Any]
    _file: int = -1
    _live: dict[str, str] = field(factory=dict)
    _lines: int = 0

    @classmethod
    def open(cls, folder: Path, provider: str, node: str = "") -> Ledger:
        """Raises ConfigError when another server has it."""
        folder = folder.expanduser()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            fix = "give each server its own: --set server.state=FOLDER"
            raise ConfigError("another server uses this state folder", where=str(folder), fix=fix) from error
        past = _read(folder / "ledger.jsonl")
        scratch = Path(tempfile.gettempdir()) / f"composer-envd-{secrets.token_hex(8)}"
        scratch.mkdir(mode=0o711)  # commands of other users must be able to pass, not to list
        header = {"scratch": str(scratch), "provider": provider, "pid": os.getpid()}
        return cls(folder, scratch, node or _name(folder / "node"), past, lock, header)

    def begin(self) -> None:
        """What the past left is dealt with: start a ledger of our own."""
        self.past = None
        self._rewrite()

    def starting(self, id: str) -> None:
        self._live[id] = ""
        self._write({"starting": id})

    def made(self, id: str, backend: str) -> None:
        self._live[id] = backend
        self._write({"made": id, "backend": backend})

    def ended(self, id: str) -> None:
        if self._live.pop(id, None) is not None:
            self._write({"ended": id})
            if self._lines > LINES + 4 * len(self._live):
                self._rewrite()

    def _write(self, row: dict[str, str]) -> None:
        os.write(self._file, json.dumps(row).encode() + b"\n")
        self._lines += 1

    def _rewrite(self) -> None:
        part = self.folder / ".part-ledger.jsonl"
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        rows: list[dict[str, Any]] = [self._header]
        rows += [{"made": id, "backend": backend} for id, backend in self._live.items()]
        os.write(file, "".join(json.dumps(row) + "\n" for row in rows).encode())
        part.replace(self.folder / "ledger.jsonl")
        if self._file >= 0:
            os.close(self._file)
        self._file, self._lines = file, 0

    def close(self) -> None:
        """Everything that the ledger tells of has ended: there is nothing to tell the next server."""
        if not self._live:
            (self.folder / "ledger.jsonl").unlink(missing_ok=True)
        self.abandon()

    def abandon(self) -> None:
        """Let go of the folder as it is; safe twice."""
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1


def _name(path: Path) -> str:
    """The node's name, made once."""
    if not path.exists():
        path.write_text(secrets.token_hex(3))
    return path.read_text().strip()


def _read(path: Path) -> Past | None:
    """A line that cannot be read (the last one may have been cut off) costs what it said and no more."""
    scratch, provider, live = "", "", dict[str, str]()
    for row in _rows(path):
        match row:
            case {"scratch": str(scratch), "provider": str(provider)}:
                pass
            case {"ended": str(id)}:
                live.pop(id, None)
            case {"made": str(id), "backend": str(backend)}:
                live[id] = backend
            case {"starting": str(id)}:
                live[id] = ""
    return Past(Path(scratch), provider, live) if scratch else None


def _rows(path: Path) -> Iterator[Any]:
    """What can be read; how much cannot is logged."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    damaged = 0
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            damaged += 1
    if damaged:
        log.warning("%d of %d lines of %s cannot be read; what they told may have been left", damaged, len(lines), path)
