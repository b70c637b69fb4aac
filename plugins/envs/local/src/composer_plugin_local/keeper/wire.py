"""Files on the way between the provider and its keeper, beside the rows that name them."""

from __future__ import annotations

from typing import Any

MAX_HEADER = 1 << 30
"""Of a frame between them: whatever words a command is given."""


def pack_files(files: list[tuple[str, bytes, bool]]) -> tuple[list[list[Any]], bytes]:
    """Files as rows [path, length, executable] beside their bytes in one piece."""
    return [[path, len(data), mode] for path, data, mode in files], b"".join(data for _, data, _ in files)


def unpack_files(rows: list[list[Any]], data: bytes) -> list[tuple[str, bytes, bool]]:
    found, start = [], 0
    for path, length, mode in rows:
        found.append((path, data[start : start + length], mode))
        start += length
    return found
