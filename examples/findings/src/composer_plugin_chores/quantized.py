"""The sampler `chores/quantized`: `torch-sampler/continuous` whose experts compute in MXFP8, whatever the trainer's do.

A run's kernel is one for trainer and sampler alike, which is what training and sampling in one format means. This is
the other way, to compare with: weights are trained in the trainer's own format, and quantized where they are sampled.
"""

from __future__ import annotations

from typing import Any

from composer_core import BuildContext
from composer_core.errors import ConfigError
from composer_plugin_hf.experts import install
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
