"""What `check` is told of the trainer."""

from __future__ import annotations

from itertools import accumulate
from types import SimpleNamespace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from composer_core import ModelSize
from composer_core.config import PretrainStage, RlStage, SftStage, StageChoice
from composer_core.tensors import token_logprobs
from composer_plugin_policy.config import PolicyTrainerConfig
from composer_plugin_policy.feedback import divergence
from composer_plugin_policy.footprint import KEPT_SHARE, LESSON_BYTES, LOGIT_BYTES, footprint

SIZE = ModelSize(
    parameters=25,
    weight_bytes=100,
    kv_bytes=8,
    trained_bytes=1000,
    forward_bytes=100,
    pair_bytes=4,
    decode_pair_bytes=50,
    vocabulary=10,
)


def told(*choices, limits=None, size=SIZE):
    config = SimpleNamespace(stages=choices, limits=limits or {})
    return footprint(PolicyTrainerConfig(), SimpleNamespace(config=config, model_size=size))


def activations(*choices, limits=None):
    return told(*choices, limits=limits).parts["activations of a micro-batch"]


def expected(tokens, trained=1.0):
    return int(KEPT_SHARE * tokens * (1000 + trained * 10 * LOGIT_BYTES))


def test_weights_gradients_and_moments_are_counted_once_each():
    found = told()
    assert (found.parts["weights"], found.parts["gradients"], found.parts["moments of AdamW"]) == (100, 100, 200)
    assert found.checkpoint_bytes == 300


def test_reference_weights_are_held_and_saved_when_the_reward_has_a_kl_term():
    found = told(StageChoice(RlStage("rl", 1), {"beta": 0.1}))
    assert found.parts["reference weights"] == 100
    assert found.checkpoint_bytes == 400


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"window_tokens": 256, "batch_windows": 8}, 7 * 256),
        ({"window_tokens": 64, "batch_windows": 4}, 4 * 64),
        ({"window_tokens": 4096, "batch_windows": 4}, 4096),
    ],
    ids=["as many rows as the budget holds", "no more rows than a batch has", "a row above the budget stands alone"],
)
def test_a_micro_batch_is_what_the_trainer_would_cut(fields, tokens):
    assert activations(StageChoice(PretrainStage("text", 1, **fields))) == expected(tokens)


def test_the_largest_stage_counts_and_logits_only_of_sampled_tokens():
    limits = {"context_tokens": 400, "tokens": 100}
    small = StageChoice(PretrainStage("text", 1, window_tokens=64, batch_windows=1))
    large = StageChoice(SftStage("sft", 1, "demo"), {"micro_batch_tokens": 4000})
    assert activations(small, large, limits=limits) == expected(4000, trained=0.25)


def test_text_feedback_holds_the_teachers_logits_beside_the_students():
    limits = {"context_tokens": 400, "tokens": 100}
    settings = [{"feedback": weight, "micro_batch_tokens": 1600} for weight in (0.0, 0.1)]
    found = [activations(StageChoice(RlStage("rl", 1), each), limits=limits) for each in settings]
    plain, taught = (KEPT_SHARE * 1600 * (1000 + 0.25 * 10 * each) for each in (LOGIT_BYTES, LESSON_BYTES))
    assert found == [int(plain), int(taught)]


def test_the_logits_of_a_lesson_take_as_much_as_is_counted():
    """Of one logit of a trained token, at the peak of a lesson and of a row without one; torch counts its own bytes."""
    assert peak_bytes(lesson) == pytest.approx(LESSON_BYTES, rel=0.15)
    assert peak_bytes(plain_row) == pytest.approx(LOGIT_BYTES, rel=0.15)


TOKENS, VOCABULARY = 400, 500


def lesson(head_DV, hidden_ND):
    def distance():
        with torch.no_grad():
            teacher_NV = hidden_ND @ head_DV
        return divergence(teacher_NV, hidden_ND @ head_DV, 1.0)

    distance().sum().backward()


def plain_row(head_DV, hidden_ND):
    token_logprobs(hidden_ND @ head_DV, torch.zeros(TOKENS, dtype=torch.int64), 1.0).sum().backward()


def peak_bytes(work):
    head_DV, hidden_ND = torch.randn(4, VOCABULARY, requires_grad=True), torch.randn(TOKENS, 4)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        work(head_DV, hidden_ND)
    sizes = [event.nbytes() for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(sizes)) / (TOKENS * VOCABULARY)


def test_nothing_is_guessed_where_the_model_does_not_tell():
    assert told(size=None) is None
