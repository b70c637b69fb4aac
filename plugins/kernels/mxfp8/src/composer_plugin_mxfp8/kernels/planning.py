"""The counting sort of pairs by expert, in three kernels and without an atomic: the same ids give the same plan.

Each program of `count` and `place` owns CHUNK pairs. `count` writes how many of them each expert gets, `scan` turns
these into how many stand before the chunk, `place` finds each pair's rank among its own chunk's and writes both
directions of the plan. All sizes follow from shapes. Legend: see `ops`; P = N x K pairs, C chunks, E2 the power of two
above E.
"""

import torch
import triton
import triton.language as tl

from composer_plugin_mxfp8.kernels.launch import launch, op
from composer_plugin_mxfp8.ops import ALIGN, Plan, padded_rows

CHUNK = 1024
STEP = 128
"""Pairs that are compared with each other at once."""


@triton.jit
def count(ids, counts, pairs, EXPERTS: tl.constexpr, E2: tl.constexpr, CHUNK: tl.constexpr):
    """counts_CE of this chunk."""
    at = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    each = tl.load(ids + at, mask=at < pairs, other=0).to(tl.int32)
    expert = tl.arange(0, E2)
    found = tl.histogram(each, E2)
    missing = tl.maximum(tl.program_id(0) * CHUNK + CHUNK - pairs, 0)  # lanes past the end counted as expert 0
    found -= tl.where(expert == 0, missing, 0)
    tl.store(counts + tl.program_id(0) * EXPERTS + expert, found, mask=expert < EXPERTS)


@triton.jit
def scan(counts, totals, chunks, EXPERTS: tl.constexpr, BLOCK: tl.constexpr):
    """counts_CE to how many pairs of an expert stand in earlier chunks, in place; one program for each expert."""
    expert = tl.program_id(0)
    before = 0
    for first in range(0, chunks, BLOCK):
        chunk = first + tl.arange(0, BLOCK)
        at = counts + chunk * EXPERTS + expert
        found = tl.load(at, mask=chunk < chunks, other=0)
        tl.store(at, before + tl.cumsum(found, 0) - found, mask=chunk < chunks)
        before += tl.sum(found, 0)
    tl.store(totals + expert, before)


@triton.jit
def place(
    ids, counts, totals, pairs_of, rows_of, ends, pairs,
    ALIGN: tl.constexpr, EXPERTS: tl.constexpr, E2: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Row of each pair = the expert's first row + pairs in earlier chunks + equal ids before it in this chunk."""
    expert = tl.arange(0, E2)
    real = expert < EXPERTS
    padded = (tl.load(totals + expert, mask=real, other=0) + ALIGN - 1) // ALIGN * ALIGN
    end = tl.cumsum(padded, 0)
    if tl.program_id(0) == 0:
        tl.store(ends + expert, end, mask=real)
    following = end - padded + tl.load(counts + tl.program_id(0) * EXPERTS + expert, mask=real, other=0)
    lane = tl.arange(0, STEP)
    for step in range(CHUNK // STEP):
        at = tl.program_id(0) * CHUNK + step * STEP + lane
        each = tl.load(ids + at, mask=at < pairs, other=0).to(tl.int32)
        exists = at < pairs
        same = (each[:, None] == each[None, :]) & (lane[None, :] < lane[:, None])
        row = tl.gather(following, each, 0) + tl.sum(same.to(tl.int32), 1)
        tl.store(rows_of + at, row, mask=exists)
        tl.store(pairs_of + row, at, mask=exists)
        following += tl.histogram(each, E2)


@op
def _plan(ids: torch.Tensor, experts: int, align: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    pairs, e2 = ids.numel(), max(STEP, triton.next_power_of_2(experts))
    chunks = triton.cdiv(pairs, CHUNK)
    new = ids.new_empty
    counts_CE, totals_E = new((chunks, experts), dtype=torch.int32), new(experts, dtype=torch.int32)
    pairs_R = ids.new_full((padded_rows(pairs, experts, align),), -1, dtype=torch.int32)
    rows_NK, ends_E = new(ids.shape, dtype=torch.int32), ids.new_zeros(experts, dtype=torch.int32)
    ids = ids.contiguous()
    launch(count, (chunks,), ids, counts_CE, pairs, experts, e2, CHUNK)
    launch(scan, (experts if chunks else 0,), counts_CE, totals_E, chunks, experts, CHUNK)
    launch(place, (chunks,), ids, counts_CE, totals_E, pairs_R, rows_NK, ends_E, pairs, align, experts, e2, CHUNK, STEP)
    return pairs_R, rows_NK, ends_E


def plan(ids_NK: torch.Tensor, experts: int, align: int = ALIGN) -> Plan:
    """See `Ops.plan`."""
    return Plan(*_plan(ids_NK, experts, align))
