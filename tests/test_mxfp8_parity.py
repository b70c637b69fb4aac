"""Sampler and trainer in MXFP8 (RL.md section 4): the bar of an 8-bit run, and that what is really broken fails it."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from composer_core import BuildContext
from composer_core.tensors import token_logprobs
from composer_plugin_hf.policy import HFPolicy
from composer_plugin_mxfp8 import MXFP8Config
from composer_plugin_mxfp8.factory import build
from composer_testing.contracts.models import padded

BAR = 1e-5
"""Of each token in fp32; in MXFP8 of the median."""
APART = 0.05
"""Most tokens beyond it: those with a number that fell to the other side of a tie of E4M3."""
LENGTHS = (31, 47, 60)
SHAPE = Qwen3MoeConfig(
    vocab_size=96,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=96,
    moe_intermediate_size=32,
    num_experts=8,
    num_experts_per_tok=2,
    initializer_range=0.2,
)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """The model here is smaller than the cost of waking a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def policy(config=None, deterministic=False):
    """The same weights whatever computes; without a config in fp32."""
    kernel = config and build(config, BuildContext(Path(), deterministic=deterministic))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        return HFPolicy(AutoModelForCausalLM.from_config(SHAPE), kernel, deterministic).eval()


def shaken():
    """As after an update that the sampler has not seen: each weight off by about 1e-5 of the weights' size."""
    model, source = policy(MXFP8Config()), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=source) * 1e-5 * SHAPE.initializer_range)
    return model


def told(model, row, *, cached):
    """Log-probabilities of a row's tokens: at once as a trainer forwards, or one after the other as a sampler does."""
    ids_BT, lengths_B = padded([row])
    if not cached:
        hidden_TD = model.trunk(ids_BT, lengths_B).hidden_BTD[0]
    else:
        cache, one_B, hidden = model.new_cache(1, len(row)), torch.ones(1, dtype=torch.int64), []
        for position in range(len(row)):
            place = {"cache": cache, "slots_B": one_B * 0, "past_B": one_B * position}
            hidden.append(model.trunk(ids_BT[:, position : position + 1], one_B, **place).hidden_BTD[0])
        hidden_TD = torch.cat(hidden)
    return token_logprobs(model.logits(hidden_TD[:-1]), row[1:])


@pytest.fixture(scope="module")
def trained():
    """Rows of ids, and what the trainer says of them."""
    model = policy(MXFP8Config())
    rows = [torch.randint(96, (length,), generator=torch.Generator().manual_seed(length)) for length in LENGTHS]
    with torch.no_grad():
        return [(row, told(model, row, cached=False)) for row in rows]


def parity(sampler, trained):
    """Median distance, and share of tokens beyond the bar."""
    with torch.no_grad():
        apart = torch.cat([(told(sampler, row, cached=True) - logp).abs() for row, logp in trained])
    return float(apart.median()), float((apart > BAR).float().mean())


@pytest.mark.parametrize("deterministic", [True, False])
def test_sampler_and_trainer_agree_but_for_a_few_roundings(deterministic, trained):
    median, share = parity(policy(MXFP8Config(), deterministic), trained)
    assert median <= BAR and share <= APART


@pytest.mark.parametrize(
    "broken",
    [lambda: policy(MXFP8Config("floor")), policy, shaken],
    ids=["another rounding", "another format", "weights of another version"],
)
def test_a_sampler_that_computes_something_else_moves_nearly_every_token(broken, trained):
    median, share = parity(broken(), trained)
    assert median > 100 * BAR and share > 0.9
