"""Hook module: imported by every listing of plugins, so it imports nothing heavy; torch waits in `experts`."""

from collections.abc import Iterable

from composer_core import KernelSpec, hookimpl

COMPOSER_API = 1


@hookimpl
def composer_kernels() -> Iterable[KernelSpec]:
    """`tolerance` is a promise: the largest error against the reference, relative to its largest value."""
    yield KernelSpec(
        name="my-name",
        op="experts",
        factory="composer_plugin_my_name.experts:build",
        reference="composer_plugin_my_name.experts:build_reference",
        tolerance=1e-5,
        summary="one product for each expert, over the tokens that chose it",
    )
