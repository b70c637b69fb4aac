"""The files that commands work on: laid out once, then read, written, listed and compared with what was laid out.

Everything goes through descriptors that no link leads out of the workspace, whatever commands have made of it.
"""

from __future__ import annotations

import json
import os
from typing import Any

from composer_envkit.agent import files
from composer_plugin_microvm.guest import changes, system
from composer_plugin_microvm.guest.commands import PATH

Reply = tuple[dict[str, Any], bytes]


class Workspace:
    """A machine's; methods that begin with `do_` are requests, as those of the agent are."""

    def __init__(self) -> None:
        self.root = os.open(system.WORKSPACE, os.O_RDONLY | os.O_DIRECTORY)
        self.known: dict[str, changes.Known] = {}
        self.limits: dict[str, Any] = {}
        """Of every command, and of what is written."""

    def do_settle(self, header: dict[str, Any], body: bytes) -> Reply:
        """The machine becomes a template: files of the workspace, limits, environment."""
        start = 0
        with system.as_owner():
            for path, length, executable in header["files"]:
                files.write(self.root, path, body[start : start + length], length, executable)
                start += length
        self.limits = header["limits"]
        self.known = changes.notes(self.root)
        system.limit_disk(self.limits["disk_bytes"])
        return {"missing": [need for need in header["needs"] if not _installed(need)]}, b""

    def do_read(self, header: dict[str, Any], body: bytes) -> Reply:
        return {}, files.read(self.root, header["path"], header["most"])[0]

    def do_write(self, header: dict[str, Any], body: bytes) -> Reply:
        with system.as_owner():
            files.write(self.root, header["path"], body, self.limits["file_bytes"])
        return {}, b""

    def do_list(self, header: dict[str, Any], body: bytes) -> Reply:
        return {}, json.dumps(files.listing(self.root, header["path"])).encode()

    def do_changes(self, header: dict[str, Any], body: bytes) -> Reply:
        """The table of what changed stands before the bytes, with its length: it may be longer than a header."""
        found = changes.changes(self.root, self.known, header["most"])
        rows = [(path, len(data), mode) for path, data, mode in found.writes]
        table = json.dumps([rows, found.deletes, found.skipped]).encode()
        return {"table": len(table)}, b"".join([table, *(data for _, data, _ in found.writes)])


def _installed(need: str) -> bool:
    return any(os.access(f"{folder}/{need}", os.X_OK) for folder in PATH.split(":"))
