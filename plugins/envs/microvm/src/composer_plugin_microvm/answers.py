"""What a guest says of itself, read as data: a value of the contract, or one of few errors that call it nonsense."""

from __future__ import annotations

import json
from typing import Any

from composer_core.errors import ComposerError
from composer_core.protocols import Entry, ExecResult
from composer_core.trees import File, Patch
from composer_plugin_microvm.channel import Reply

Entries = list[Entry]
STATUSES = ("exited", "signaled", "timeout", "oom")
KINDS = ("file", "folder", "other")
NONSENSE = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, ComposerError)
"""What reading an answer raises that no agent would give."""


def result(header: dict[str, Any], reply: Reply, cap: int, wall_s: float) -> ExecResult:
    """Raises ValueError, TypeError or KeyError for what no agent says."""
    status, split, tail = header["status"], header["split"], reply.body()
    code, number = header.get("exit_code"), header.get("signal")
    totals = header["stdout_bytes"], header["stderr_bytes"]
    if status not in STATUSES or any(type(count) is not int or count < 0 for count in (split, *totals)):
        raise ValueError("no result")
    if (type(code) is int and 0 <= code <= 255) != (status == "exited") or (type(number) is int) != (
        status == "signaled"
    ):
        raise ValueError("no result")
    out, err = reply.body("out") + tail[:split], reply.body("err") + tail[split:]
    most = max(totals[0], len(out)), max(totals[1], len(err))
    return ExecResult(
        status, code, out[:cap], err[:cap], *most, wall_s, number, restarted=header.get("restarted") is True
    )


def entries(data: bytes) -> Entries:
    rows = [Entry(name, kind, size) for name, kind, size in json.loads(data)]
    if not all(
        type(row.name) is str and row.kind in KINDS and type(row.size_bytes) is int and "/" not in row.name
        for row in rows
    ):
        raise ValueError("no listing")
    return rows


def patch(header: dict[str, Any], data: bytes) -> Patch:
    """`File` refuses paths that lead out."""
    start = header["table"]
    rows, deletes, skipped = json.loads(data[:start])
    writes = []
    for path, length, executable in rows:
        if type(length) is not int or not 0 <= length <= len(data) - start:
            raise ValueError("no patch")
        writes.append(File(path, data[start : start + length], executable is True))
        start += length
    if not all(type(path) is str for path in (*deletes, *skipped)):
        raise ValueError("no patch")
    return Patch(tuple(writes), tuple(deletes), tuple(skipped))
