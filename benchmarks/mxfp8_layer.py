"""A layer of experts in MXFP8 beside the same layer in bf16: time of forward and backward, and what it saves between.

The layer in bf16 is torch's own grouped product (`torch.nn.functional.grouped_mm`) on tokens sorted by expert, as users
run it today. MXFP8's time includes quantizing the weights, as after every step of an optimizer. Saved bytes are those of
all tensors that autograd keeps, parameters and routing apart. DeepSeek-V3 and Kimi K2 have 64 of their experts here, which
is what one GPU of several holds. Without a GPU nothing is timed but the plain torch reference on a small shape.

    python benchmarks/mxfp8_layer.py [--profile]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen
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
    """Weights and inputs of one shape; routing is even (random) or skewed (an expert's share falls as 1 over its rank)."""

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
    ends_E = torch.bincount(flat_P, minlength=len(down)).cumsum(0).to(torch.int32)
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
    """After two calls to warm up."""
    for _ in range(2):
        call()
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


def report(shape: Shape, routing: str) -> None:
    """One line for each recipe."""
    torch.manual_seed(0)
    layer = Layer(shape, routing)
    exact, kept = median_ms(lambda: layer.step(plain)), saved_bytes(layer, plain)
    flops = 18 * shape.tokens * shape.chosen * shape.width * shape.expert_width
    print(f"{shape.name}, {routing}: plain {exact:.2f} ms, {flops / exact / 1e9:.0f} TFLOP/s, {kept / 1e6:.0f} MB saved")
    for config in (MXFP8Config(), MXFP8Config("rceil_hp_wgrad"), MXFP8Config(weight_block="1x32")):
        def kernel(*inputs: torch.Tensor, config: MXFP8Config = config) -> torch.Tensor:
            return mxfp8_experts(*inputs, config=config)

        ms, bytes_ = median_ms(lambda kernel=kernel: layer.step(kernel)), saved_bytes(layer, kernel)
        name = f"{config.recipe}, weights {config.weight_block}"
        print(f"  {name}: {ms:.2f} ms, {ms / exact:.2f} of plain; {bytes_ / 1e6:.0f} MB saved, {bytes_ / kept:.2f} of plain")
        sys.stdout.flush()


def profiled(shape: Shape) -> None:
    """The kernels of one step, by time."""
    layer = Layer(shape, "even")
    layer.step(mxfp8_experts)
    with torch.profiler.profile() as profile:
        for _ in range(3):
            layer.step(mxfp8_experts)
    print(profile.key_averages().table(sort_by="self_cuda_time_total", row_limit=30, max_name_column_width=60))


def main() -> None:
    """Every shape and routing."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--profile", action="store_true", help="list the kernels of a step by time")
    given = arguments.parse_args()
    print(torch.cuda.get_device_name() if DEVICE.type == "cuda" else "no GPU: plain torch on a CPU", torch.__version__)
    for shape in SHAPES if DEVICE.type == "cuda" else SMALL:
        for routing in ("even", "skewed"):
            report(shape, routing)
        if given.profile and DEVICE.type == "cuda":
            profiled(shape)


if __name__ == "__main__":
    main()
