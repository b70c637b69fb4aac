"""The matrix products of MXFP8 beside those of bf16: a section of `mxfp8.py`, and a script of its own.

Experts are those of one GPU of several (expert parallel), with so many rows each that training sees; routing is even,
or skewed (an expert's share falls as 1 over its rank). Times include all that a product of quantized operands needs, so
also what it dequantizes; TFLOP/s count 2 R N K. The peer is torch's grouped product of bf16 operands. With many rows an
expert ours dequantizes both and takes that same product; with few it must beat that, which is the peer there. Decoding
is replayed from CUDA graphs and counts the bytes of the weights that the tokens' experts have, each read once. The
recipe of 128s is measured on operands already quantized. What is compared is measured in turns, since a GPU slows down
while it is warm.

    python benchmarks/mxfp8_mm.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import Any

import torch
from attrs import frozen
from results import Results, Row, parser
from torch.nn.functional import grouped_mm

from composer_plugin_mxfp8 import fp8_1x128_pow2
from composer_plugin_mxfp8.formats import COLUMNWISE, ROWWISE

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PEER = "torch grouped_mm in bf16"
SLOW_PEER = "dequantize, then torch grouped_mm"
Seconds = Callable[[Callable[[], Any]], float]


@frozen
class Layer:
    """A projection of the experts that one GPU holds."""

    name: str
    experts: int
    outputs: int
    inputs: int


LAYERS = (
    Layer("DeepSeek-V3 gate and up", 8, 4096, 7168),
    Layer("DeepSeek-V3 down", 8, 7168, 2048),
    Layer("Qwen3-30B-A3B gate and up", 64, 1536, 2048),
    Layer("Qwen3-30B-A3B down", 64, 2048, 768),
    Layer("Kimi K2 gate and up", 12, 4096, 7168),
)
SMALL = Layer("small, plain torch", 4, 256, 128)
ROWS = 4096
"""Rows an expert on average."""
FEW = (128, 256, 512)
TURNS = 3
DECODED = (
    (Layer("DeepSeek-V3 gate and up", 64, 4096, 7168), 16),
    (Layer("DeepSeek-V3 down", 64, 7168, 2048), 64),
    (Layer("Qwen3-30B-A3B gate and up", 128, 1536, 2048), 1),
    (Layer("Qwen3-30B-A3B gate and up", 128, 1536, 2048), 64),
)
"""A layer and so many tokens, of 8 experts each."""
CHOSEN = 8


class Inputs:
    """bf16 and quantized operands of one layer and routing."""

    def __init__(self, ops: Any, layer: Layer, rows: int, *, skewed: bool = False):
        counts = torch.full((layer.experts,), float(rows))
        if skewed:
            share = 1 / torch.arange(1.0, layer.experts + 1)
            counts = share * rows * layer.experts / share.sum()
        counts = (counts / 128).ceil() * 128
        self.ends = counts.cumsum(0).int().to(DEVICE)
        self.rows, self.layer, self.ops = int(counts.sum()), layer, ops
        self.x, self.dy = self.normal(self.rows, layer.inputs), self.normal(self.rows, layer.outputs)
        self.w = self.normal(layer.experts, layer.outputs, layer.inputs)

    @staticmethod
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.bfloat16, device=DEVICE)

    @property
    def flops(self) -> float:
        return 2.0 * self.rows * self.layer.outputs * self.layer.inputs

    def forward(self) -> Iterator[Callable[[], Any]]:
        """Ours, and the peer."""
        ops, x, w = self.ops, self.ops.quantize_rows(self.x), self.ops.quantize_weights(self.w, ROWWISE)
        yield lambda: ops.grouped_mm(x, w, self.ends)
        yield lambda: grouped_mm(self.x, self.w.transpose(1, 2), offs=self.ends)

    def few(self) -> Iterator[Callable[[], Any]]:
        """Ours, and the product after both are dequantized."""
        ops, x, w = self.ops, self.ops.quantize_rows(self.x), self.ops.quantize_weights(self.w, ROWWISE)
        yield lambda: ops.grouped_mm(x, w, self.ends)
        yield lambda: grouped_mm(ops.dequantize(x, ROWWISE), ops.dequantize(w, ROWWISE).transpose(1, 2), offs=self.ends)

    def dgrad(self) -> Iterator[Callable[[], Any]]:
        ops, dy, w = self.ops, self.ops.quantize_rows(self.dy), self.ops.quantize_weights(self.w, COLUMNWISE)
        yield lambda: ops.grouped_dgrad(dy, w, self.ends)
        yield lambda: grouped_mm(self.dy, self.w, offs=self.ends)

    def wgrad(self) -> Iterator[Callable[[], Any]]:
        ops, dy, x = self.ops, self.ops.quantize_columns(self.dy), self.ops.quantize_columns(self.x)
        yield lambda: ops.grouped_wgrad(dy, x, self.ends, torch.bfloat16)
        yield lambda: grouped_mm(self.dy.T, self.x, offs=self.ends)

    def coarse(self) -> Iterator[Callable[[], Any]]:
        """The recipe of 128s, and the peer."""
        x, w = fp8_1x128_pow2.quantize_rows(self.x), fp8_1x128_pow2.quantize_weights(self.w)
        yield lambda: fp8_1x128_pow2.product(x, w, self.ends)
        yield lambda: grouped_mm(self.x, self.w.transpose(1, 2), offs=self.ends)


def in_turns(calls: Iterable[Callable[[], Any]], seconds: Seconds) -> list[float]:
    """Each call's time: the median of its turns."""
    calls = list(calls)
    found = [[seconds(call) for call in calls] for _ in range(TURNS)]
    return [median(times) for times in zip(*found, strict=True)]


def captured(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call as a CUDA graph: for one token, to launch from Python takes longer than to compute."""
    if DEVICE.type == "cpu":
        return call
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def training_rows(it: Inputs, name: str, seconds: Seconds, *, promised: bool) -> Iterator[Row]:
    """Forward and both gradients."""
    for product, bound in (("forward", 0.75), ("dgrad", 0.75), ("wgrad", 0.7)):
        ours, peer = (it.flops / took / 1e12 for took in in_turns(getattr(it, product)(), seconds))
        yield Row(f"{name}: {product}", ours, "TFLOP/s", peer, PEER, f"ratio >= {bound}" if promised else "")


def few_row(it: Inputs, name: str, seconds: Seconds, *, promised: bool) -> Row:
    """The forward where reading weights is most of the work."""
    ours, slow = (it.flops / took / 1e12 for took in in_turns(it.few(), seconds))
    return Row(f"{name}: forward", ours, "TFLOP/s", slow, SLOW_PEER, "ratio >= 1" if promised else "")


def coarse_row(it: Inputs, name: str, seconds: Seconds, *, promised: bool) -> Row:
    """The opt-in recipe."""
    ours, peer = (it.flops / took / 1e12 for took in in_turns(it.coarse(), seconds))
    target = "ratio >= 1.2" if promised else ""
    return Row(f"{name}: fp8_1x128_pow2 forward", ours, "TFLOP/s", peer, PEER, target)


def decoding_row(ops: Any, layer: Layer, tokens: int, seconds: Seconds, *, promised: bool) -> Row:
    """Few tokens; the peer gets its rows sorted by expert for nothing."""
    it = Inputs(ops, layer, 128)
    chosen = min(CHOSEN, layer.experts)
    scores = torch.rand(tokens, layer.experts, generator=torch.Generator().manual_seed(0))
    ids_P = scores.topk(chosen).indices.flatten().to(DEVICE)
    x_ND, w = it.normal(tokens, layer.inputs), ops.quantize_weights(it.w, ROWWISE)
    ends = torch.bincount(ids_P, minlength=layer.experts).cumsum(0).int()
    sorted_PD = x_ND[ids_P.argsort() // chosen]
    ours, peer = in_turns(
        (
            captured(lambda: ops.decode_mm(x_ND, ids_P, w)),
            captured(lambda: grouped_mm(sorted_PD, it.w.transpose(1, 2), offs=ends)),
        ),
        seconds,
    )
    used = len(ids_P.unique()) * layer.outputs * layer.inputs
    what = f"{layer.name}: decode {tokens} tokens, {33 / 32 * used / ours / 1e12:.2f} TB/s"
    return Row(what, ours * 1e6, "us", peer * 1e6, PEER, "ratio >= 1.5" if promised else "")


def product_rows(ops: Any, seconds: Seconds, *, quick: bool) -> Iterator[Row]:
    """All rows of this section; nothing is promised of plain torch or of a smoke test."""
    promised = DEVICE.type == "cuda" and not quick
    layers, rows = (LAYERS, ROWS) if promised else ((SMALL,), 128)
    for layer in layers:
        for routing in ("even", "skewed"):
            it = Inputs(ops, layer, rows, skewed=routing == "skewed")
            yield from training_rows(it, f"{layer.name}, {routing}", seconds, promised=promised)
            if routing == "even":
                yield coarse_row(it, layer.name, seconds, promised=promised)
    for few in FEW if promised else (128,):
        it = Inputs(ops, layers[0], few)
        yield few_row(it, f"{layers[0].name}, {few} rows an expert", seconds, promised=promised)
    for layer, tokens in DECODED if promised else ((SMALL, 2),):
        yield decoding_row(ops, layer, tokens, seconds, promised=promised)


def main() -> int:
    from mxfp8 import implementation, machine, seconds, versions  # the script that this is a section of

    options = parser(__doc__).parse_args()
    options.quick |= DEVICE.type == "cpu"
    repeats = 2 if options.quick else 7
    rows = list(product_rows(implementation(), lambda call: seconds(call, repeats), quick=options.quick))
    title = "MXFP8 products beside bf16"
    return Results("mxfp8_mm", title, rows, [machine()], versions()).finish(options)


if __name__ == "__main__":
    sys.exit(main())
