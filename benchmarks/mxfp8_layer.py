"""A layer of experts in MXFP8 beside the same layer in bf16: time of forward and backward, and what it saves between.

The layer in bf16 is torch's own grouped product (`torch.nn.functional.grouped_mm`) on tokens sorted by expert, as users
run it today. MXFP8's time includes quantizing the weights, as after every step of an optimizer. Saved bytes are those
of all tensors that autograd keeps, parameters and routing apart. DeepSeek-V3 and Kimi K2 have 64 of their experts here,
which is what one GPU of several holds. Forwards of few tokens, as decoding calls them, are replayed from CUDA graphs in
both. A ratio of 0.8 is 1.25 times the time. Without a GPU plain torch is measured on a small shape, nothing is written
and nothing promised.

    python benchmarks/mxfp8_layer.py [--profile]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from attrs import evolve, frozen
from results import Results, Row, parser
from torch.nn.functional import grouped_mm, silu

from composer_plugin_mxfp8.config import MXFP8Config
from composer_plugin_mxfp8.experts import mxfp8_experts
from composer_plugin_mxfp8.weights import forget

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@frozen
class Shape:
    """A layer of experts and its tokens."""

    name: str
    tokens: int
    width: int
    expert_width: int
    experts: int
    chosen: int


SHAPES = (
    Shape("Qwen3-30B-A3B", 16384, 2048, 768, 128, 8),
    Shape("DeepSeek-V3 / Kimi K2, 64 experts", 16384, 7168, 2048, 64, 8),
)
SMALL = (Shape("small, plain torch", 512, 256, 128, 8, 2),)


class Layer(torch.nn.Module):
    """Weights and inputs of one shape; routing is even (random), or skewed: an expert's share is 1 over its rank."""

    def __init__(self, shape: Shape, routing: str) -> None:
        super().__init__()
        self.x, self.toward = (_normal(1.0, shape.tokens, shape.width) for _ in range(2))
        self.x.requires_grad_()
        share = torch.rand(shape.tokens, shape.experts, device=DEVICE)
        if routing == "skewed":
            share = share.log() * torch.arange(1, shape.experts + 1, device=DEVICE)  # a race of exponentials
        self.ids = share.topk(shape.chosen).indices
        self.share = torch.rand(shape.tokens, shape.chosen, device=DEVICE).requires_grad_()
        width, inner = shape.width, shape.expert_width
        self.gate_up = torch.nn.Parameter(_normal(width**-0.5, shape.experts, 2 * inner, width))
        self.down = torch.nn.Parameter(_normal(inner**-0.5, shape.experts, width, inner))

    def forward(self, kernel: Callable[..., torch.Tensor]) -> torch.Tensor:
        """[N, D]."""
        return kernel(self.x, self.ids, self.share, self.gate_up, self.down)

    def step(self, kernel: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Forward and backward, weights new to the layer."""
        forget(self)
        leaves = (self.x, self.share, self.gate_up, self.down)
        return torch.autograd.grad(self(kernel), leaves, self.toward)


def plain(
    x_ND: torch.Tensor, ids_NK: torch.Tensor, weights_NK: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """The layer in the dtype of its weights: pairs sorted by expert, two grouped products, a weighted sum."""
    flat_P = ids_NK.reshape(-1)
    order_P = flat_P.argsort(stable=True)
    counts_E = flat_P.new_zeros(len(down)).index_add_(0, flat_P, torch.ones_like(flat_P))  # bincount waits for the GPU
    ends_E = counts_E.cumsum(0).to(torch.int32)
    gate, up = grouped_mm(x_ND[order_P // ids_NK.shape[1]], gate_up.transpose(1, 2), offs=ends_E).chunk(2, -1)
    out_PD = grouped_mm(silu(gate) * up, down.transpose(1, 2), offs=ends_E)
    back_P = torch.empty_like(order_P).index_copy_(0, order_P, torch.arange(len(order_P), device=order_P.device))
    out_NKD = out_PD[back_P].view(*weights_NK.shape, -1)
    return (out_NKD * weights_NK.to(out_PD.dtype).unsqueeze(-1)).sum(1)


def saved_bytes(layer: Layer, kernel: Callable[..., torch.Tensor]) -> int:
    """What autograd keeps from forward to backward."""
    kept: dict[int, int] = {}
    own = {tensor.untyped_storage().data_ptr() for tensor in (layer.gate_up, layer.down, layer.share, layer.ids)}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if (place := tensor.untyped_storage().data_ptr()) not in own:
            kept[place] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = layer(kernel)
    assert out.requires_grad
    return sum(kept.values())


def median_ms(call: Callable[[], Any], count: int = 7) -> float:
    """After two calls to warm up; three are enough where nothing is promised."""
    for _ in range(2):
        call()
    count = count if DEVICE.type == "cuda" else 3
    return statistics.median(_timed(call) for _ in range(count))


def _timed(call: Callable[[], Any]) -> float:
    if DEVICE.type == "cpu":
        begin = time.perf_counter()
        call()
        return (time.perf_counter() - begin) * 1e3
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))


def _normal(scale: float, *shape: int) -> torch.Tensor:
    dtype = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
    return torch.empty(shape, device=DEVICE, dtype=dtype).normal_(0, scale)


def rows_of(shape: Shape, routing: str, promised: bool) -> Iterator[Row]:
    """Time and saved bytes of each recipe; the default one has targets."""
    torch.manual_seed(0)
    layer = Layer(shape, routing)
    bf16, kept = median_ms(lambda: layer.step(plain)), saved_bytes(layer, plain) / 1e6
    for config in (MXFP8Config(), MXFP8Config("rceil_hp_wgrad"), MXFP8Config(weight_block="1x32")):
        kernel = partial(mxfp8_experts, config=config)
        what = f"{shape.name}, {routing}, {config.recipe} {config.weight_block}"
        targets = ("ratio >= 0.8", "ratio >= 1.667") if promised and config == MXFP8Config() else ("", "")
        ms = median_ms(partial(layer.step, kernel))
        yield Row(f"{what}: forward and backward", ms, "ms", bf16, "torch, bf16", targets[0])
        yield Row(f"{what}: saved", saved_bytes(layer, kernel) / 1e6, "MB", kept, "torch, bf16", targets[1])


def sampling_rows(shape: Shape) -> Iterator[Row]:
    """A forward without gradients for few tokens, as decoding calls it: replayed from a CUDA graph on a GPU."""
    for tokens in (1, 8, 32, 128):
        torch.manual_seed(0)
        layer = Layer(evolve(shape, tokens=tokens), "even")
        with torch.inference_mode():
            ours, bf16 = (median_ms(replayed(partial(layer, kernel)), 20) for kernel in (mxfp8_experts, plain))
        yield Row(f"{shape.name}: forward, {tokens} tokens", ours, "ms", bf16, "torch, bf16")


def replayed(call: Callable[[], Any]) -> Callable[[], Any]:
    """The same work without its launches; on a CPU the call itself."""
    if DEVICE.type == "cpu":
        return call
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def profiled(shape: Shape) -> None:
    """The kernels of one step, by time."""
    layer = Layer(shape, "even")
    layer.step(mxfp8_experts)
    with torch.profiler.profile() as profile:
        for _ in range(3):
            layer.step(mxfp8_experts)
    print(profile.key_averages().table(sort_by="self_cuda_time_total", row_limit=30, max_name_column_width=60))


def main() -> int:
    """Every shape and routing."""
    options = parser(__doc__)
    options.add_argument("--profile", action="store_true", help="list the kernels of a step by time")
    given = options.parse_args()
    gpu, rows = DEVICE.type == "cuda", []
    if not gpu:
        torch.set_num_threads(1)  # the small shape is less work than to wake a second thread on a machine that is busy
    for shape in SHAPES if gpu else SMALL:
        for routing in ("even", "skewed"):
            rows += rows_of(shape, routing, gpu)
        rows += sampling_rows(shape)
        if given.profile and gpu:
            profiled(shape)
    remarks = [torch.cuda.get_device_name() if gpu else "no GPU: plain torch on a CPU, nothing is promised"]
    given.quick |= not gpu
    title = "A layer of experts in MXFP8 beside bf16"
    return Results("mxfp8_layer", title, rows, remarks, {"torch": torch.__version__}).finish(given)


if __name__ == "__main__":
    sys.exit(main())
