"""What `check` is told of the sampler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from composer_core import ModelSize
from composer_plugin_torch_sampler.config import ContinuousConfig
from composer_plugin_torch_sampler.footprint import footprint

SIZE = ModelSize(
    parameters=10,
    weight_bytes=40,
    kv_bytes=8,
    trained_bytes=0,
    forward_bytes=100,
    pair_bytes=4,
    decode_pair_bytes=50,
    vocabulary=16,
)


def parts(**settings: Any) -> dict[str, int]:
    told = footprint(ContinuousConfig(**settings), SimpleNamespace(model_size=SIZE))  # type: ignore[arg-type]
    assert told is not None
    return dict(told.parts)


def test_keys_and_values_grow_with_slots_and_window() -> None:
    assert parts(slots=4, context_tokens=96)["keys and values"] == 4 * 128 * 8
    assert parts(slots=8, context_tokens=96)["keys and values"] == 8 * 128 * 8


def test_two_models_are_held_and_a_third_set_of_weights_while_it_is_read() -> None:
    found = parts()
    assert (found["two copies of the weights"], found["new weights as they are read"]) == (80, 40)


def test_a_forward_pass_is_the_larger_of_prefill_and_decode() -> None:
    prefill = parts(slots=1, context_tokens=96, prefill_tokens=1000)["one forward pass"]
    decode = parts(slots=1000, context_tokens=96, prefill_tokens=8)["one forward pass"]
    assert prefill == 1000 * (100 + 128 * 4)
    assert decode == 1000 * (100 + 128 * 50 + 16 * 24)


def test_nothing_is_guessed_where_the_model_does_not_tell() -> None:
    assert footprint(ContinuousConfig(), SimpleNamespace(model_size=None)) is None  # type: ignore[arg-type]
