"""Inputs of a layer of experts, and signal over noise. N tokens, D width, F expert width, E experts, K a token."""

import re
from pathlib import Path

import torch

import composer_plugin_mxfp8

KERNELS = Path(composer_plugin_mxfp8.__file__).with_name("kernels")

ROUTINGS = ("even", "ragged", "two experts", "one expert", "one token")


def layer(
    routing="even",
    tokens=384,
    width=128,
    expert_width=64,
    experts=8,
    chosen=2,
    dtype=torch.float32,
    seed=0,
    device="cpu",
):
    """x, ids, weights, gate_up, down: leaves that want gradients, drawn on the CPU."""
    source = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=source)

    tokens = 1 if routing == "one token" else tokens
    score_NE = torch.rand(tokens, experts, generator=source)
    if routing == "ragged":
        score_NE += torch.linspace(0, 1.5, experts)
    elif routing == "two experts":
        score_NE[:, :2] += 2
    elif routing == "one expert":
        score_NE[:, 3] += 2
    floats = (
        normal(tokens, width),
        torch.rand(tokens, chosen, generator=source) + 0.1,
        normal(experts, 2 * expert_width, width) / width**0.5,
        normal(experts, width, expert_width) / expert_width**0.5,
    )
    x, weights, gate_up, down = (t.to(device, dtype).requires_grad_() for t in floats)
    return x, score_NE.topk(chosen).indices.to(device), weights, gate_up, down


def gradients(kernel, inputs, seed=1):
    """Output, and gradients of x, weights, gate_up and down along a fixed direction."""
    x, _, weights, gate_up, down = inputs
    out = kernel(*inputs)
    toward = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).to(out)
    return [out.detach(), *torch.autograd.grad(out, (x, weights, gate_up, down), toward)]


def dense(x_ND, ids_NK, weights_NK, gate_up_E2FD, down_EDF):
    """The op in plain torch: every expert for every token, then the weighted sum."""
    gate_NEF, up_NEF = torch.einsum("nd,efd->nef", x_ND, gate_up_E2FD).chunk(2, dim=-1)
    each_NED = torch.einsum("nef,edf->ned", torch.nn.functional.silu(gate_NEF) * up_NEF, down_EDF)
    share_NE = weights_NK.new_zeros(each_NED.shape[:2]).scatter_add(1, ids_NK, weights_NK)
    return torch.einsum("ne,ned->nd", share_NE, each_NED)


def decibels(signal, noisy):
    """Signal over noise."""
    noise = (signal.double() - noisy.double()).square().sum()
    return float(10 * torch.log10(signal.double().square().sum() / noise)) if noise else float("inf")


def launched(pattern):
    """Names of the kernels whose launches in our sources look like `pattern`."""
    return {name for source in KERNELS.glob("*.py") for name in re.findall(pattern, source.read_text())}
