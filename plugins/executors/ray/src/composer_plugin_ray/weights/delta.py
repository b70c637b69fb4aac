"""A file of differences between two sets of weights of one layout, made and applied piece by piece.

What is held in memory is a few pieces for each thread, whatever the model's size. Several differences are applied in
one pass, so a sampler that missed ten versions reads and writes its weights once. The result is the later file byte for
byte, header included; whoever applies compares the checksum of all of it, so a base that was damaged is found as well.

    for each piece of `layout`, in order: its length, u32 little-endian, and `codec.encode` of it
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import IO, TypeVar

from composer_core.errors import StoreError
from composer_plugin_ray.weights.codec import Words, decode, encode
from composer_plugin_ray.weights.layout import Layout, open_layout

FORMAT = "composer-delta-1"
AHEAD = 4
"""Pieces for each thread that may be at work or wait to be written."""

In = TypeVar("In")
Out = TypeVar("Out")


def write_delta(new: Path, base: Path, target: Path, threads: int = 1) -> str | None:
    """Write what makes `new` out of `base`; returns its sha256, or None where it is not smaller than `new` itself.

    Raises:
        StoreError: one of the two is not a safetensors file.
    """
    after, before = open_layout(new), open_layout(base)
    if after.header != before.header or after.size_bytes != before.size_bytes:
        return None
    digest, written = hashlib.sha256(), 0
    with target.open("wb") as file:
        pairs = zip(after.words(), before.words(), strict=True)
        for piece in _in_order(lambda pair: encode(*pair), pairs, threads):
            frame = struct.pack("<I", len(piece)) + piece
            written += len(frame)
            if written >= after.size_bytes:
                return None
            digest.update(frame)
            file.write(frame)
    return digest.hexdigest()


def apply_deltas(base: Path, deltas: Sequence[Path], target: Path, threads: int = 1) -> str:
    """Write what `base` becomes by each of the differences in turn; returns its sha256.

    Raises:
        StoreError: a difference is damaged, or does not belong to this base.
    """
    before = open_layout(base)
    digest = hashlib.sha256()
    with ExitStack() as stack:
        file = stack.enter_context(target.open("wb"))
        files = [stack.enter_context(delta.open("rb")) for delta in deltas]
        try:
            digest.update(before.header)
            file.write(before.header)
            for words in _in_order(_applied, _work(before, files), threads):
                digest.update(words.data)
                file.write(words.data)
            if any(delta.read(1) for delta in files):
                raise ValueError("more pieces than the base has")
        except ValueError as error:
            raise StoreError("a difference of weights cannot be applied", where=str(base), found=str(error)) from error
    return digest.hexdigest()


def _work(before: Layout, files: Sequence[IO[bytes]]) -> Iterator[tuple[Words, list[bytes]]]:
    for words in before.words():
        yield words, [_frame(file) for file in files]


def _frame(file: IO[bytes]) -> bytes:
    head = file.read(4)
    length = int.from_bytes(head, "little")
    piece = file.read(length)
    if len(head) != 4 or len(piece) != length:
        raise ValueError("a difference is cut")
    return piece


def _applied(work: tuple[Words, list[bytes]]) -> Words:
    words, pieces = work
    for piece in pieces:
        words = decode(piece, words)
    return words


def _in_order(act: Callable[[In], Out], items: Iterable[In], threads: int) -> Iterator[Out]:
    """`map` on threads, a window at a time: numpy and zlib let go of the interpreter, and results do not pile up."""
    if threads == 1:
        yield from map(act, items)
        return
    rest = iter(items)
    with ThreadPoolExecutor(threads, "weights") as pool:
        while window := list(islice(rest, AHEAD * threads)):
            yield from pool.map(act, window)
