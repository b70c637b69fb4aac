"""The sampler `chores/quantized`: `torch-sampler/continuous` whose experts compute in MXFP8, whatever the trainer's do.

A run's kernel is one for trainer and sampler alike, which is what training and sampling in one format means. This is
the other way, to compare with: weights are trained in the trainer's own format, and quantized where they are sampled.
The trainer's is the kernel `chores/bf16`, so that the arms differ in the experts and in nothing else.
"""

from __future__ import annotations

from typing import Any

import torch

from composer_core import BuildContext
from composer_core.errors import ConfigError
from composer_core.tensors import Experts
from composer_plugin_hf.experts import grouped, install
from composer_plugin_mxfp8.config import MXFP8Config
from composer_plugin_mxfp8.factory import build as build_kernel
from composer_plugin_torch_sampler.config import ContinuousConfig
from composer_plugin_torch_sampler.sampler import ContinuousSampler


def build(config: ContinuousConfig, build: BuildContext) -> ContinuousSampler:
    """Factory: two fresh policy models, both with experts in MXFP8.

    Raises:
        ConfigError: the policy has no experts that `hf` computes.
    """
    routes = bool(build.settings.get("router_replay", False))
    return ContinuousSampler(config, in_mxfp8(build), in_mxfp8(build), routes=routes)


def in_mxfp8(build: BuildContext) -> Any:
    """A fresh policy, its experts computed by `mxfp8/experts`."""
    policy, kernel = build.get("policy"), build_kernel(MXFP8Config(), build)
    experts = [module for module in policy.modules() if hasattr(module, "composer_kernel")]
    if not experts:
        raise ConfigError("the policy has no experts to quantize", who="chores/quantized", fix="use a mixture of hf")
    for module in experts:
        install(module, kernel)
    return policy


def bf16(
    x_ND: torch.Tensor,
    ids_NK: torch.Tensor,
    weights_NK: torch.Tensor,
    gate_up_E2FD: torch.Tensor,
    down_EDF: torch.Tensor,
) -> torch.Tensor:
    """The op `experts` with every product in bf16; gradients come back in the dtypes that were given."""
    given = (x_ND, gate_up_E2FD, down_EDF)
    x, gate_up, down = (tensor.to(torch.bfloat16) for tensor in given)
    return grouped(x, ids_NK, weights_NK, gate_up, down).to(x_ND.dtype)


def build_bf16(config: object, build: BuildContext) -> Experts:
    """Factory of kernel `chores/bf16`."""
    return bf16
