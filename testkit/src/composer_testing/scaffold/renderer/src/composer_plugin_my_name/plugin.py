"""Hook module: imported by every listing of plugins, so it imports nothing heavy."""

from collections.abc import Iterable

from composer_core import RendererSpec, hookimpl

COMPOSER_API = 1
CALL, END = "<|call|>", "<|end|>"


@hookimpl
def composer_renderers() -> Iterable[RendererSpec]:
    """Each of `special_tokens` must be one control token of the tokenizer; one that the run trains is given them."""
    yield RendererSpec(
        name="my-name",
        factory="composer_plugin_my_name.renderer:MyNameRenderer",
        special_tokens=(CALL, END),
        summary="plain text, calls as JSON behind one control token",
    )
