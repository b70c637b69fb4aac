"""Which layer drifts: each layer of experts is computed twice on the inputs that it really gets, in MXFP8 and exactly.

Two figures a layer, both signal over noise in dB: `own`, what this layer alone adds, on its input of the MXFP8 model;
and `total`, how far its output has come from that of a model without MXFP8, which all layers before it have moved too.
An `own` far below its neighbors' names a layer whose numbers do not fit E4M3 (outliers, a dead scale), a `total` that
falls while `own` does not, a layer that amplifies. Gaussian data give an `own` of about 23.6 dB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from attrs import frozen
from torch import nn

from composer_plugin_mxfp8 import reference
from composer_plugin_mxfp8.convert import experts_of

LIMIT_DB = 20.0
"""An `own` below this is called a drift: 10 % of the output's size is noise, where 7 % is what MXFP8 costs."""


@frozen
class Drift:
    """One layer of experts."""

    name: str
    """Of the module in the model."""
    own: float
    """dB, of this layer on its own input."""
    total: float
    """dB, of its output in the model against the model without MXFP8."""

    @property
    def drifts(self) -> bool:
        """Whether this layer alone loses more than the format does."""
        return not self.own >= LIMIT_DB


def layer_drift(model: nn.Module, run: Callable[[], object]) -> list[Drift]:
    """`run()` forwards `model`, whose experts `quantize_` has converted, over the tokens in question.

    Forwarded twice without gradients. Layers stand in the order of their first call.

    Raises:
        ValueError: the model has no converted experts, or `run` does not reach them.
    """
    layers = {module: name for name, module in experts_of(model) if hasattr(module, "mxfp8")}
    converted: dict[str, list[torch.Tensor]] = {}
    exact: dict[str, list[torch.Tensor]] = {}
    plain: dict[str, list[torch.Tensor]] = {}

    def beside(module: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        converted.setdefault(layers[module], []).append(output)
        exact.setdefault(layers[module], []).append(exactly(module, *inputs))

    def instead(module: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        plain.setdefault(layers[module], []).append(exactly(module, *inputs))
        return plain[layers[module]][-1].to(output.dtype)

    with torch.no_grad():
        for hook in (beside, instead):
            with _hooked(layers, hook):
                run()
    if not converted:
        raise ValueError("no layer to report: `quantize_` the model first, and let `run` forward it")
    return [Drift(name, _db(exact[name], converted[name]), _db(plain[name], converted[name])) for name in converted]


def exactly(module: Any, x_ND: torch.Tensor, ids_NK: torch.Tensor, weights_NK: torch.Tensor) -> torch.Tensor:
    """The op "experts" in fp32 [N, D], expert by expert; waits for the device."""
    out_ND = torch.zeros_like(x_ND, dtype=torch.float32)
    for expert in torch.unique(ids_NK).tolist():
        token_P, place_P = torch.where(ids_NK == expert)
        act_PF = reference.swiglu(x_ND[token_P].float() @ module.gate_up_proj[expert].float().T)
        out_PD = act_PF @ module.down_proj[expert].float().T
        out_ND.index_add_(0, token_P, out_PD * weights_NK[token_P, place_P, None].float())
    return out_ND


@contextmanager
def _hooked(layers: dict[nn.Module, str], hook: Any) -> Iterator[None]:
    handles = [module.register_forward_hook(hook) for module in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _db(signal: list[torch.Tensor], noisy: list[torch.Tensor]) -> float:
    clean, found = torch.cat(signal).double(), torch.cat(noisy).double()
    noise = (clean - found).square().sum()
    return float(10 * torch.log10(clean.square().sum() / noise)) if noise else torch.inf
