"""What a run builds: the layer, with its settings of the run file. It, `fp8_experts` and `plugin` know core."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from attrs import evolve

from composer_core import BuildContext, Problem
from composer_core.errors import ConfigError
from composer_core.tensors import Experts
from composer_plugin_mxfp8 import reference, support
from composer_plugin_mxfp8.config import MXFP8Config
from composer_plugin_mxfp8.experts import mxfp8_experts, with_ops

WHERE = "model.experts.settings.implementation"


def build(config: MXFP8Config, build: BuildContext) -> Experts:
    """Factory of kernel `mxfp8/experts`.

    Raises:
        ConfigError: Triton was asked for and cannot run here.
    """
    for problem in triton_problem() if config.implementation == "triton" else ():
        raise ConfigError(problem.message, who="mxfp8/experts", where=problem.where, fix=problem.fix)
    return partial(mxfp8_experts, config=config, deterministic=build.deterministic)


def build_reference(config: MXFP8Config, build: BuildContext) -> Experts:
    """The same numbers over bytes and scales in plain torch, on any device."""
    return partial(with_ops, ops=reference, config=evolve(config, implementation="reference"), deterministic=True)


def triton_problem() -> Iterator[Problem]:
    """Why `implementation = "triton"` cannot be kept on this machine, if it cannot."""
    if reason := support.why_not_here():
        yield Problem(WHERE, f"the Triton kernels cannot run here: {reason}", 'choose "auto" or "reference"')
