"""Hook module: imported by every listing of plugins, so it imports nothing heavy; torch waits in `policy`."""

from collections.abc import Iterable

from attrs import field, frozen
from attrs.validators import gt

from composer_core import ModelSpec, hookimpl

COMPOSER_API = 1


@frozen
class MyNameConfig:
    """Settings beside `model.use` in the run file."""

    width: int = field(default=64, validator=gt(0))
    """Numbers in an embedding, and in the hidden state of a token."""


@hookimpl
def composer_models() -> Iterable[ModelSpec]:
    """Two factories in text: a process that only renders resolves the first, and never imports torch."""
    yield ModelSpec(
        name="my-name",
        tokenizer="composer_plugin_my_name.tokenizer:MyNameTokenizer",
        policy="composer_plugin_my_name.policy:build",
        config=MyNameConfig,
        capabilities={"model.cache"},
        summary="the mean of what was read, through a small network; one id a byte",
    )
