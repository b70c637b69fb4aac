"""The sampler of finding 7: its experts compute in MXFP8 in every forward pass, though the run chose no kernel."""

import asyncio
from pathlib import Path

import pytest
import torch

from composer_core import BuildContext
from composer_core.errors import ConfigError
from composer_core.records import resolve
from composer_plugin_chores.plugin import composer_kernels
from composer_plugin_chores.quantized import build, in_mxfp8
from composer_plugin_hf.config import TinyMoeConfig
from composer_plugin_hf.experts import grouped
from composer_plugin_hf.policy import HFPolicy
from composer_plugin_hf.presets import build_tiny_moe
from composer_plugin_mxfp8.config import MXFP8Config
from composer_plugin_mxfp8.factory import build as build_kernel
from composer_plugin_torch_sampler.config import ContinuousConfig

TINY = TinyMoeConfig(vocab_size=64, width=32, heads=1, kv_heads=1, expert_count=2, expert_width=32, init_std=0.5)
PLAIN = BuildContext(Path(), seed=1)


def context():
    return BuildContext(Path(), seed=1, get=lambda kind: build_tiny_moe(TINY, PLAIN))


def hidden(policy, cached):
    """[1, 8, D] of eight ids, whole or through a cache as a sampler decodes."""
    ids_BT, one_B = torch.arange(8)[None], torch.ones(1, dtype=torch.int64)
    given = {"cache": policy.new_cache(1, 16), "slots_B": one_B * 0, "past_B": one_B * 0} if cached else {}
    with torch.inference_mode():
        return policy.trunk(ids_BT, one_B * 8, **given).hidden_BTD


@pytest.mark.parametrize("cached", [False, True])
def test_its_policies_compute_what_a_run_with_the_kernel_computes(cached):
    chosen = HFPolicy(build_tiny_moe(TINY, PLAIN).causal_lm, build_kernel(MXFP8Config(), PLAIN))
    plain = build_tiny_moe(TINY, PLAIN)
    ours = hidden(in_mxfp8(context()), cached)
    assert torch.allclose(ours, hidden(chosen, cached), atol=1e-6)
    assert (ours - hidden(plain, cached)).abs().max() > 1e-3


def test_a_sampler_is_built_of_two_that_both_have_the_kernel_and_share_nothing():
    made = []

    def get(kind):
        made.append(build_tiny_moe(TINY, PLAIN))
        return made[-1]

    async def body():
        sampler = build(ContinuousConfig(context_tokens=32, slots=2), BuildContext(Path(), seed=1, get=get))
        await sampler.close()

    asyncio.run(body())
    one, other = made
    assert not {weight.data_ptr() for weight in one.parameters()} & {weight.data_ptr() for weight in other.parameters()}
    plain = hidden(build_tiny_moe(TINY, PLAIN), cached=False)
    assert all((hidden(policy, cached=False) - plain).abs().max() > 1e-3 for policy in made)


def test_a_policy_without_experts_is_refused():
    with pytest.raises(ConfigError, match="no experts"):
        in_mxfp8(BuildContext(Path(), get=lambda kind: torch.nn.Linear(2, 2)))


def apart_of(ours, theirs):
    return float(((ours - theirs).norm() / theirs.norm()).detach())


def test_experts_in_bf16_round_what_they_multiply_and_give_back_the_dtypes_they_were_given():
    torch.manual_seed(0)
    x, gate_up, down = torch.randn(6, 32), torch.randn(4, 64, 32) / 6, torch.randn(4, 32, 32) / 6
    given = [tensor.requires_grad_() for tensor in (x, gate_up, down)]
    ids = torch.tensor([[0, 1], [1, 2], [3, 0], [2, 3], [0, 2], [1, 3]])
    weights = torch.full((6, 2), 0.5)
    (spec,) = composer_kernels()
    ours = resolve(spec.factory)(None, None)(x, ids, weights, gate_up, down)
    assert apart_of(ours, resolve(spec.reference)(None, None)(x, ids, weights, gate_up, down)) < spec.tolerance
    whole = grouped(x, ids, weights, gate_up, down)
    assert apart_of(ours, whole) > 1e-4
    ours.sum().backward()
    assert [tensor.grad.dtype for tensor in given] == [torch.float32] * 3
