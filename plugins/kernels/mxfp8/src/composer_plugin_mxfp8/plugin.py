"""Hook module of `mxfp8`: the experts of a mixture in microscaled FP8."""

from __future__ import annotations

from collections.abc import Iterator

from composer_core import KernelSpec, Problem, RunView, hookimpl
from composer_plugin_mxfp8.config import MXFP8Config

COMPOSER_API = 1
NAME = "mxfp8/experts"


@hookimpl
def composer_kernels() -> Iterator[KernelSpec]:
    yield KernelSpec(
        name="experts",
        summary="SwiGLU experts in MXFP8, forward and backward: E4M3 values, one power-of-two scale for each 32.",
        op="experts",
        factory="composer_plugin_mxfp8.factory:build",
        reference="composer_plugin_mxfp8.factory:build_reference",
        config=MXFP8Config,
        footprint="composer_plugin_mxfp8.footprint:footprint",
        format="mxfp8",
        tolerance=0.02,
    )
    yield KernelSpec(
        name="fp8-1x128-pow2",
        summary="Opt-in, and not MXFP8: FP8 with a scale for each 128, which Hopper's tensor cores multiply as it is.",
        op="experts",
        factory="composer_plugin_mxfp8.fp8_experts:build",
        reference="composer_plugin_mxfp8.fp8_experts:build",
        format="fp8_1x128_pow2",
        tolerance=0.02,
    )


@hookimpl
def composer_check(run: RunView) -> Iterator[Problem]:
    """A run that asks for Triton does not start where Triton cannot run."""
    for id, config in run.settings.get("kernels", ()):
        if id == NAME and config.implementation == "triton":
            from composer_plugin_mxfp8.factory import triton_problem

            yield from triton_problem()
