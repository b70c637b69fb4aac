"""A piece of weights as its difference to another one: which words changed, and by how much. Bit-exact.

After a step at a small learning rate a few percent of 16-bit words differ, most of them by one unit in the last place.
So a piece is the gaps between changed words, one byte each (255 says that the gap goes on), and the differences of
words, wrapped around, with the sign in the lowest bit, as planes of bytes. Gaps are nearly geometric and differences
nearly 0 or 1, so a Huffman code is close to the entropy of both and a search for repeats only costs: deflate with
`Z_RLE`, which adds the runs that words which all changed leave in the gaps. Measured on a mixture of 191 million
16-bit weights after one step of Adam at 1e-6 (3.9 % of the words changed; entropy 1.9 % of the bytes): 2.0 %, beside
2.1 % of zstd and 2.2 % of deflate on the same streams, and 3.8 to 4.0 % of zstd on byte planes of the exclusive or.

    changed words, then the length of each stream, u32 little-endian; 0 is the length of a stream of zeros only
    streams: gaps, then a plane for each byte of a word
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[Any]
"""Unsigned words of 1, 2, 4 or 8 bytes, one axis."""

LEVEL = 1
LAST = 255
"""The gap byte that is followed by more of the same gap."""


def encode(new: Words, base: Words) -> bytes:
    """What makes `new` out of `base`; empty if they are equal."""
    places = np.flatnonzero(new != base)
    if not len(places):
        return b""
    differences = (new[places] - base[places]).view(f"i{new.itemsize}")
    folded = ((differences << 1) ^ (differences >> (8 * new.itemsize - 1))).view(np.uint8)
    planes = folded.reshape(-1, new.itemsize)
    streams = [_deflate(_gaps(places)), *(_deflate(planes[:, byte]) for byte in range(new.itemsize))]
    counts = (len(places), *map(len, streams))
    return b"".join([struct.pack(f"<{len(counts)}I", *counts), *streams])


def decode(piece: bytes, base: Words) -> Words:
    """The words that `piece` was made of, which are `base` itself where it is empty.

    Raises:
        ValueError: the piece was not made against words of this size and number, or is damaged.
    """
    if not piece:
        return base
    words = np.array(base)
    try:
        changed, *lengths = struct.unpack_from(f"<{2 + words.itemsize}I", piece)
        gaps, *planes = _split(piece[4 * (1 + len(lengths)) :], lengths)
        places = _places(_inflate(gaps, 2 * len(words)) if gaps else np.zeros(changed, np.uint8))
        folded = np.zeros((changed, words.itemsize), np.uint8)
        for byte, plane in enumerate(planes):
            if plane:
                folded[:, byte] = _exactly(changed, _inflate(plane, changed))
        unfolded = folded.reshape(-1).view(words.dtype)
        words[_exactly(changed, places)] += (unfolded >> 1) ^ (~(unfolded & 1) + 1)
    except (struct.error, zlib.error, IndexError) as error:
        raise ValueError(f"a damaged piece: {error}") from error
    return words


def _gaps(places: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """How many equal words stand before each changed one, as bytes."""
    gaps = np.diff(places, prepend=-1) - 1
    more = gaps // LAST
    if not more.any():
        return gaps.astype(np.uint8)
    ends = np.cumsum(more + 1)
    found = np.full(ends[-1], LAST, np.uint8)
    found[ends - 1] = gaps % LAST
    return found


def _places(gaps: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    ends = gaps != LAST
    places: npt.NDArray[np.int64] = np.cumsum(gaps + ends.astype(np.int64))[ends] - 1
    return places


def _deflate(stream: npt.NDArray[np.uint8]) -> bytes:
    if not stream.any():
        return b""
    deflater = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, zlib.Z_RLE)
    return deflater.compress(np.ascontiguousarray(stream).data) + deflater.flush()


def _inflate(data: bytes, limit_bytes: int) -> npt.NDArray[np.uint8]:
    """At most `limit_bytes`, so that a damaged piece takes no memory."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    found = inflater.decompress(data, limit_bytes + 1)
    if not inflater.eof or len(found) > limit_bytes:
        raise ValueError("a damaged piece: a stream is cut, or longer than its words")
    return np.frombuffer(found, np.uint8)


def _exactly(count: int, found: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if len(found) != count:
        raise ValueError(f"a damaged piece: {len(found)} entries in a stream of {count}")
    return found


def _split(data: bytes, lengths: list[int]) -> list[bytes]:
    if len(data) != sum(lengths):
        raise ValueError(f"a damaged piece: {len(data)} bytes of streams, {sum(lengths)} expected")
    ends = np.cumsum(lengths)
    return [data[end - length : end] for end, length in zip(ends.tolist(), lengths, strict=True)]
