"""The memory-bound kernels of MXFP8, as a share of what a plain copy reaches on the same GPU in the same run.

Shapes are those of DeepSeek-V3, Qwen3-30B-A3B and Kimi K2 with 16,384 tokens, whose pairs of token and expert are the
rows; the format's own kernels take as many rows. Routing is even (random) or skewed (an expert's share falls as 1 over
its rank). A rate is the bytes that have to move, by the formula in the row, over the median time of 20 calls, each
behind a flush of the second-level cache. The copy is of 1 GiB in bf16, reads and writes counted.

Bytes of an element: 2 in bf16, 1 + 1/32 in MXFP8. For what reads tokens by a plan, each pair counts as one read of its
token, though some come from the cache, and padding as what is written of it.

Where no GPU is, the plain torch reference is measured on few rows, nothing is written, and nothing is promised.

    python benchmarks/mxfp8.py [--shape NAME]
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch
from attrs import frozen
from results import Results, Row, parser

from composer_plugin_mxfp8 import reference
from composer_plugin_mxfp8.support import why_not

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MX = 1 + 1 / 32
"""Bytes of an element in MXFP8."""


@frozen
class Shape:
    """A layer of experts."""

    name: str
    width: int
    expert_width: int
    experts: int
    chosen: int = 8


SHAPES = (
    Shape("DeepSeek-V3", 7168, 2048, 256),
    Shape("Qwen3-30B-A3B", 2048, 768, 128),
    Shape("Kimi K2", 7168, 2048, 384),
)
SMALL = Shape("small, plain torch", 256, 128, 8, 2)
"""What is measured where no GPU is."""
ROUTINGS = ("even", "skewed")


@frozen
class Case:
    """One call that is timed."""

    name: str
    call: Callable[[], Any]
    size: float = 0
    """Bytes that have to move; 0 for a call whose time is told instead."""
    formula: str = ""
    target: str = ""


def implementation() -> Any:
    """The kernels where a GPU runs them, else the reference.

    Raises:
        RuntimeError: there is a GPU and the kernels cannot run on it.
    """
    if DEVICE.type == "cpu":
        return reference
    if reason := why_not(DEVICE):
        raise RuntimeError(reason)
    from composer_plugin_mxfp8 import kernels  # needs Triton

    return kernels


def seconds(call: Callable[[], Any], repeats: int) -> float:
    """Median time of one call on the device, its inputs not in the second-level cache."""
    call(), call()
    if DEVICE.type == "cpu":
        return median(_wall(call) for _ in range(repeats))
    flush = torch.empty(1 << 28, dtype=torch.uint8, device=DEVICE)
    found = []
    for _ in range(repeats):
        flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) / 1e3)
    return median(found)


def _wall(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def copy_rate(repeats: int) -> float:
    """Bytes a second, read and written."""
    x = torch.empty(1 << (29 if DEVICE.type == "cuda" else 22), dtype=torch.bfloat16, device=DEVICE)
    y = torch.empty_like(x)
    return 2 * x.nbytes / seconds(lambda: y.copy_(x), repeats)


def format_cases(ops: Any, shape: Shape, rows: int) -> Iterator[Case]:
    """Quantize, dequantize, and rows to columns, for activations and for weights of experts."""
    x = torch.randn(rows, shape.width, dtype=torch.bfloat16, device=DEVICE)
    count = x.numel()
    one = count * (2 + MX)
    yield Case("quantize 1x32", lambda: ops.quantize_rows(x), one, "2 + 33/32", "ratio >= 0.85")
    yield Case("quantize 32x1", lambda: ops.quantize_columns(x), one, "2 + 33/32", "ratio >= 0.75")
    yield Case("quantize both", lambda: ops.quantize_both(x), count * (2 + 2 * MX), "2 + 66/32")
    rowwise = ops.quantize_rows(x)
    yield Case("dequantize", lambda: ops.dequantize(rowwise, (1, 32)), one, "33/32 + 2", "ratio >= 0.8")
    yield Case("1x32 to 32x1", lambda: ops.requantize_columns(rowwise), count * 2 * MX, "66/32", "ratio >= 0.65")
    yield Case("swizzle scales", lambda: ops.swizzle(rowwise.scale), rowwise.scale.numel() * 2, "2/32")
    experts = max(1, rows // (2 * shape.expert_width))
    w = x[: experts * 2 * shape.expert_width].view(experts, -1, shape.width)
    if w.shape[1] % 32 == 0:
        size = w.numel() * (2 + 1 + 1 / 1024)
        yield Case("quantize weights 32x32", lambda: ops.quantize_weights(w, (32, 32)), size, "2 + 1 + 1/1024")


def swiglu_cases(ops: Any, shape: Shape, rows: int) -> Iterator[Case]:
    """SwiGLU forward and backward; an element is one of act."""
    h = torch.randn(rows, 2 * shape.expert_width, dtype=torch.bfloat16, device=DEVICE)
    dact = torch.randn(rows, shape.expert_width, dtype=torch.bfloat16, device=DEVICE)
    count = dact.numel()
    yield Case("SwiGLU + quantize", lambda: ops.swiglu_quantize(h), count * (4 + MX), "4 + 33/32", "ratio >= 0.75")
    both = count * (4 + 2 * MX)
    yield Case("SwiGLU + quantize both", lambda: ops.swiglu_quantize_both(h), both, "4 + 66/32")
    size = count * (6 + 4 * MX)
    yield Case("SwiGLU backward + quantize both", lambda: ops.swiglu_backward(dact, h), size, "6 + 132/32")


def routing_cases(ops: Any, shape: Shape, tokens: int, routing: str) -> Iterator[Case]:
    """The router, the plan, and what moves rows by it; an element is one of a pair's row."""
    logits = torch.randn(tokens, shape.experts, device=DEVICE)
    if routing == "skewed":
        logits = 0.5 * logits - torch.arange(1, shape.experts + 1, device=DEVICE).log()
    yield Case(f"route, {routing}", lambda: ops.route(logits, shape.chosen, score="sigmoid"))
    routes = ops.route(logits, shape.chosen, score="sigmoid")
    yield Case(f"plan, {routing}", lambda: ops.plan(routes.ids_NK, shape.experts))
    plan = ops.plan(routes.ids_NK, shape.experts)
    weights = routes.weights_NK
    x = torch.randn(tokens, shape.width, dtype=torch.bfloat16, device=DEVICE)
    out = torch.randn(len(plan.pairs_R), shape.width, dtype=torch.bfloat16, device=DEVICE)
    read, written, token = routes.ids_NK.numel() * shape.width, out.numel(), x.numel()
    yield Case(
        f"gather + quantize, {routing}",
        lambda: ops.gather_quantize(x, plan),
        2 * read + MX * written,
        "2 + 33/32",
        "ratio >= 0.75",
    )
    size = 2 * read + 2 * MX * written
    yield Case(f"gather + quantize both, {routing}", lambda: ops.gather_quantize_both(x, plan), size, "2 + 66/32")
    rows = ops.quantize_rows(x)
    yield Case(f"gather MXFP8, {routing}", lambda: ops.gather_rows(rows, plan), MX * (read + written), "66/32")
    size = MX * (read + 2 * written)
    yield Case(f"gather MXFP8, both, {routing}", lambda: ops.gather_both(rows, plan), size, "99/32")
    yield Case(f"combine, {routing}", lambda: ops.combine(out, plan, weights), 2 * (read + token), "2 + 2/K")
    size = 4 * read + 2 * written
    yield Case(f"combine backward, {routing}", lambda: ops.combine_backward(x, out, plan, weights), size, "4 + 2")


def cases(ops: Any, shape: Shape, tokens: int) -> Iterator[Case]:
    """All of a shape, one after the other: inputs of the former are freed."""
    rows = tokens * shape.chosen
    yield from format_cases(ops, shape, rows)
    yield from swiglu_cases(ops, shape, rows)
    for routing in ROUTINGS:
        yield from routing_cases(ops, shape, tokens, routing)


def rows_of(shape: Shape, tokens: int, copy: float | None, repeats: int) -> Iterator[Row]:
    """A row for each case, and that reading once pays; `copy` in bytes a second, None where it is left out."""
    gpu = DEVICE.type == "cuda"
    taken: dict[str, float] = {}
    for case in cases(implementation(), shape, tokens):
        taken[case.name] = took = seconds(case.call, repeats)
        name = f"{shape.name}: {case.name}"
        if case.size:
            rate, unit = (case.size / 1e12, "TB/s") if gpu else (case.size / 1e9, "GB/s")
            peer = copy and copy / (1e12 if gpu else 1e9)
            what = f"{name} ({case.formula} bytes)"
            yield Row(what, rate / took, unit, peer, "copy" if copy else "", case.target if gpu else "")
        else:
            yield Row(name, took * 1e6, "us")
    apart = taken["quantize 1x32"] + taken["quantize 32x1"]
    what = f"{shape.name}: quantize both, time of the two apart"
    yield Row(what, taken["quantize both"] / apart, "", target="ours <= 0.8" if gpu else "")


def machine() -> str:
    """What the figures hold for."""
    if DEVICE.type == "cpu":
        return f"plain torch on {platform.machine()}; no GPU here, so nothing is promised"
    return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"


def versions() -> dict[str, str]:
    found = {"torch": torch.__version__}
    if triton := sys.modules.get("triton"):
        found["triton"] = triton.__version__
    return found


def main() -> int:
    options_of: argparse.ArgumentParser = parser(__doc__)
    options_of.add_argument("--shape", choices=[shape.name for shape in SHAPES], help="one shape alone")
    options = options_of.parse_args()
    gpu = DEVICE.type == "cuda"
    tokens, repeats = (16384, 20) if gpu and not options.quick else (64, 2)
    options.quick |= not gpu
    copy = copy_rate(repeats)
    rows: list[Row] = []
    for shape in SHAPES if gpu else (SMALL,):
        if not gpu or options.shape in {None, shape.name}:
            rows += rows_of(shape, tokens, None if options.no_peer else copy, repeats)
    remarks = [machine(), f"the copy reached {copy / 1e12:.3f} TB/s"]
    return Results("mxfp8", "MXFP8 kernels that move memory", rows, remarks, versions()).finish(options)


if __name__ == "__main__":
    sys.exit(main())
