"""Policy and tokenizer keep their contracts, and the policy learns."""

from pathlib import Path

import torch

from composer_core import BuildContext
from composer_core.tensors import token_logprobs
from composer_plugin_my_name.plugin import MyNameConfig
from composer_plugin_my_name.policy import build
from composer_plugin_my_name.tokenizer import MyNameTokenizer
from composer_testing.contracts.hook_modules import HookModuleContract
from composer_testing.contracts.models import ModelContract
from composer_testing.contracts.tokenizers import TokenizerContract


def tokenizer(special_tokens=("<end>", "<turn>")):
    return MyNameTokenizer(MyNameConfig(), BuildContext(Path(), settings={"special_tokens": special_tokens}))


def policy(seed=3):
    return build(MyNameConfig(width=16), BuildContext(Path(), seed, get={"tokenizer": tokenizer()}.__getitem__))


class TestHookModule(HookModuleContract):
    module = "composer_plugin_my_name.plugin"


class TestPolicy(ModelContract):
    def build(self):
        return policy()


class TestTokenizer(TokenizerContract):
    def build(self, tmp_path, special_tokens):
        return tokenizer(special_tokens)


def test_weights_are_the_seed_s_and_nothing_else_s():
    before = torch.get_rng_state()
    first, again, other = (policy(seed).embed.weight for seed in (3, 3, 4))
    assert first.equal(again) and not first.equal(other)
    assert torch.get_rng_state().equal(before)


def test_the_policy_learns_what_its_past_decides():
    """After "b" comes whichever of "c" and "d" was seen less: only the past tells."""
    model, ids_T = policy(), torch.tensor(list(b"abcabdabcabdabcabd"))
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.01), []
    for _ in range(80):
        hidden_BTD = model.trunk(ids_T[None, :-1], torch.tensor([len(ids_T) - 1])).hidden_BTD
        loss = -token_logprobs(model.logits(hidden_BTD[0]), ids_T[1:]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 3 and losses[-1] < 0.1
