"""The adapter over each supported architecture, the kernels, refusals and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DeepseekV3Config,
    Gemma2Config,
    Glm4MoeConfig,
    GptOssConfig,
    LlamaConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from composer_core import BuildContext, RunView
from composer_core.errors import ConfigError
from composer_core.tensors import Experts, PolicyModel, to_column, to_tensor
from composer_plugin_hf import experts, plugin, routing
from composer_plugin_hf.checkpoints import check_tokenizer, save_checkpoint
from composer_plugin_hf.config import CausalLMConfig, ExpertsConfig, TinyMoeConfig
from composer_plugin_hf.policy import HFPolicy
from composer_plugin_hf.presets import build_causal_lm, build_tiny_moe
from composer_plugin_hf.tokenizer import train
from composer_testing.contracts.kernels import ExpertsContract
from composer_testing.contracts.models import ModelContract, RoutedModelContract, padded, sequences

COMMON = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "initializer_range": 0.2,
    "max_position_embeddings": 256,
}
GQA = {"num_key_value_heads": 2, "head_dim": 16}
ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The models here are smaller than the cost of waking a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def from_config(config: Any, **fields: Any) -> HFPolicy:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        causal_lm = AutoModelForCausalLM.from_config(config)
        for name, buffer in causal_lm.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.uniform_(-0.3, 0.3)
    return HFPolicy(causal_lm, **fields)


def qwen3_moe(**changes: Any) -> Qwen3MoeConfig:
    return Qwen3MoeConfig(**{**COMMON, **GQA, **ROUTED, "num_experts": 8, "tie_word_embeddings": True, **changes})


def deepseek_v3() -> DeepseekV3Config:
    return DeepseekV3Config(
        **COMMON,
        **ROUTED,
        num_key_value_heads=4,
        q_lora_rank=24,
        kv_lora_rank=32,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=24,
        n_routed_experts=8,
        n_shared_experts=1,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        routed_scaling_factor=1.5,
    )


def glm4_moe() -> Glm4MoeConfig:
    return Glm4MoeConfig(
        **COMMON,
        **GQA,
        **ROUTED,
        n_routed_experts=8,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        routed_scaling_factor=1.5,
        use_qk_norm=True,
    )


class TestQwen3Moe(RoutedModelContract):
    def build(self) -> PolicyModel:
        return from_config(qwen3_moe())


class TestQwen3MoeWithoutRenormalization(RoutedModelContract):
    def build(self) -> PolicyModel:
        return from_config(qwen3_moe(norm_topk_prob=False, tie_word_embeddings=False, num_key_value_heads=1))


class TestDeterministicQwen3Moe(RoutedModelContract):
    def build(self) -> PolicyModel:
        return from_config(qwen3_moe(), deterministic=True)


class TestQwen3(ModelContract):
    def build(self) -> PolicyModel:
        return from_config(Qwen3Config(**COMMON, **GQA))


class TestLlama(ModelContract):
    def build(self) -> PolicyModel:
        return from_config(LlamaConfig(**COMMON, num_key_value_heads=4, tie_word_embeddings=True))


class TestDeepseekV3(RoutedModelContract):
    def build(self) -> PolicyModel:
        return from_config(deepseek_v3())


class TestGlm4Moe(RoutedModelContract):
    def build(self) -> PolicyModel:
        return from_config(glm4_moe())


class TestGroupedExperts(ExpertsContract):
    def build(self) -> Experts:
        return experts.build_grouped(None, None)

    def reference(self) -> Experts:
        return experts.build_dense(None, None)


class TestPaddedExperts(TestGroupedExperts):
    def build(self) -> Experts:
        return experts.build_padded(None, None)

    def test_a_row_is_the_same_bytes_in_any_company(self) -> None:
        source = torch.Generator().manual_seed(0)
        x_ND = torch.randn(75, 64, generator=source)
        ids_NK = torch.rand(75, 8, generator=source).topk(2).indices
        weights_NK = torch.rand(75, 2, generator=source)
        gate_up, down = torch.randn(8, 64, 64, generator=source), torch.randn(8, 64, 32, generator=source)
        whole = self.build()(x_ND, ids_NK, weights_NK, gate_up, down)
        for rows in ([0], [3, 9, 4], list(range(40))):
            part = self.build()(x_ND[rows], ids_NK[rows], weights_NK[rows], gate_up, down)
            assert torch.equal(part, whole[rows])


@pytest.mark.parametrize("threads", [1, 2])
def test_deterministic_values_depend_on_the_prefix_alone(threads: int) -> None:
    """Bit for bit: alone or in company, in one chunk or token by token, in any slot."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        policy = from_config(qwen3_moe(), deterministic=True).eval()
        rows = sequences(policy.vocab_size)
        alone, together = policy.new_cache(1, 48), policy.new_cache(9, 48)
        with torch.inference_mode():
            ids_BT, lengths_B = padded(rows)
            place = {"slots_B": torch.tensor([7, 1, 4]), "past_B": torch.zeros(3, dtype=torch.int64)}
            hidden_BTD = policy.trunk(ids_BT, lengths_B, cache=together, **place).hidden_BTD
            for position, token in enumerate(rows[1]):
                place = {"slots_B": torch.tensor([0]), "past_B": torch.tensor([position])}
                step = policy.trunk(token.view(1, 1), torch.ones(1, dtype=torch.int64), cache=alone, **place)
                assert torch.equal(step.hidden_BTD[0, 0], hidden_BTD[1, position])
                logits = policy.logits(hidden_BTD[1])
                assert torch.equal(policy.logits(step.hidden_BTD[0])[0], logits[position])
    finally:
        torch.set_num_threads(before)


def test_a_replayed_id_is_kept_at_tau_times_the_smallest_own_gate_and_refilled_below() -> None:
    gates_NE = torch.tensor([[0.4, 0.3, 0.15, 0.1, 0.05]]).expand(4, 5)
    own_NK = torch.tensor([[1, 0]]).expand(4, 2)  # the smallest own gate is 0.3
    replay_NK = torch.tensor([[2, 0], [3, 2], [3, 4], [1, 2]])
    expected = {
        0.0: [[2, 0], [3, 2], [3, 4], [1, 2]],
        0.5: [[2, 0], [2, 0], [0, 1], [1, 2]],  # 0.15 >= 0.5 x 0.3 stays, 0.1 goes, the best own one first
        0.6: [[0, 1], [0, 1], [0, 1], [1, 0]],
    }
    for tau, ids in expected.items():
        assert routing.refilled(gates_NE, own_NK, replay_NK, tau).tolist() == ids


@given(st.integers(0, 2**31), st.floats(0.01, 3.0))
def test_refilled_ids_are_those_that_the_rule_gives_token_by_token(seed: int, tau: float) -> None:
    source = torch.Generator().manual_seed(seed)
    gates_NE = torch.rand(5, 9, generator=source)
    own_NK, replay_NK = (torch.rand(5, 9, generator=source).topk(3).indices for _ in range(2))
    for n, found in enumerate(routing.refilled(gates_NE, own_NK, replay_NK, tau).tolist()):
        gate, own = gates_NE[n], own_NK[n].tolist()
        kept = [one for one in replay_NK[n].tolist() if gate[one] >= tau * gate[own].min()]
        best = sorted((one for one in own if one not in kept), key=lambda one: -float(gate[one]))
        assert found == [*kept, *best][:3]
        assert len(set(found)) == 3


def test_more_than_256_experts_are_recorded_and_replayed_in_16_bits() -> None:
    policy = from_config(qwen3_moe(num_experts=300, moe_intermediate_size=32)).eval()
    ids_BT, lengths_B = padded(sequences(policy.vocab_size))
    with torch.no_grad():
        own = policy.trunk(ids_BT, lengths_B, want_routes=True)
        assert own.routes_BTLK.dtype == torch.uint16 and own.routes_BTLK.long().max() > 255
        carried = to_tensor(to_column(own.routes_BTLK))
        replayed = policy.trunk(ids_BT, lengths_B, replay_BTLK=carried, want_routes=True)
    assert torch.equal(replayed.routes_BTLK.long(), own.routes_BTLK.long())
    torch.testing.assert_close(replayed.hidden_BTD, own.hidden_BTD)


@pytest.mark.parametrize(("config", "refused"), [(Qwen3Config(**COMMON, **GQA), True), (qwen3_moe(), False)])
def test_router_replay_is_refused_where_the_folder_holds_a_dense_model(
    config: Any, refused: bool, tmp_path: Path
) -> None:
    config.save_pretrained(tmp_path)
    stage = SimpleNamespace(stage=SimpleNamespace(name="rl", router_replay=True))
    model = SimpleNamespace(use="hf/causal-lm", settings={"path": str(tmp_path)})
    run = RunView(SimpleNamespace(model=model, stages=(stage,)), {}, {})
    problems = list(plugin.composer_check(run))
    assert [problem.where for problem in problems] == ["stages.rl.router_replay"] * refused
    stage.stage.router_replay = False
    assert not list(plugin.composer_check(run))


def test_mixtures_are_the_architectures_that_have_routers() -> None:
    assert {name for name, router in routing.ROUTERS.items() if router} == set(plugin.MIXTURES)


@pytest.mark.parametrize("config", [deepseek_v3, glm4_moe])
def test_the_correction_bias_is_among_the_weights_that_samplers_load_and_is_replayed_over(config: Any) -> None:
    first, other = from_config(config()).eval(), from_config(config()).eval()
    names = [name for name in first.state_dict() if name.endswith("e_score_correction_bias")]
    assert names
    for name in names:
        other.state_dict()[name].neg_()
    ids_BT, lengths_B = padded(sequences(first.vocab_size))
    with torch.no_grad():
        ours, theirs = (each.trunk(ids_BT, lengths_B, want_routes=True) for each in (first, other))
        assert not torch.equal(ours.routes_BTLK, theirs.routes_BTLK)
        replayed = other.trunk(ids_BT, lengths_B, replay_BTLK=ours.routes_BTLK)
        torch.testing.assert_close(replayed.hidden_BTD, ours.hidden_BTD, msg="a bias chooses and weighs nothing")
        other.load_state_dict(first.state_dict())
        assert torch.equal(other.trunk(ids_BT, lengths_B, want_routes=True).routes_BTLK, ours.routes_BTLK)


def test_the_chosen_kernel_computes_the_experts() -> None:
    calls = []

    def counting(*inputs: torch.Tensor) -> torch.Tensor:
        calls.append(inputs[0].shape)
        return experts.dense(*inputs)

    build = BuildContext(run_dir=Path(), get=lambda kind: {"kernels": counting}[kind])
    chosen = build_tiny_moe(TinyMoeConfig(experts=ExpertsConfig("other/experts")), build)
    own = build_tiny_moe(TinyMoeConfig(), build)
    rows = sequences(1024)
    with torch.no_grad():
        ours, theirs = (policy.trunk(*padded(rows[:1])).hidden_BTD for policy in (own, chosen))
    assert len(calls) == 2
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_a_dense_model_refuses_a_kernel_for_experts() -> None:
    with pytest.raises(ConfigError, match="no experts"):
        from_config(LlamaConfig(**COMMON), kernel=experts.dense)


def test_experts_of_another_layout_are_refused_with_every_reason() -> None:
    theirs = (
        AutoModelForCausalLM.from_config(GptOssConfig(**COMMON, **GQA, num_local_experts=4, num_experts_per_tok=2))
        .model.layers[0]
        .mlp.experts
    )
    with pytest.raises(ConfigError, match=r"biases; their weights lie transposed.*interleaved.*function of their own"):
        experts.install(theirs, experts.dense)
    assert not hasattr(theirs, "composer_kernel")


def test_settings_without_a_kernel_are_refused() -> None:
    with pytest.raises(ValueError, match="no effect where none is chosen"):
        ExpertsConfig(settings={"recipe": "floor"})


def test_the_seed_alone_decides_the_preset_s_weights() -> None:
    torch.manual_seed(1)
    first = build_tiny_moe(TinyMoeConfig(), BuildContext(run_dir=Path(), seed=4)).state_dict()
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1))
    again = build_tiny_moe(TinyMoeConfig(), BuildContext(run_dir=Path(), seed=4)).state_dict()
    other = build_tiny_moe(TinyMoeConfig(), BuildContext(run_dir=Path(), seed=5)).state_dict()
    name = "model.layers.0.mlp.experts.gate_up_proj"
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first[name], other[name])


def test_a_checkpoint_opens_in_plain_transformers_with_the_same_logits(tmp_path: Path) -> None:
    policy = build_tiny_moe(TinyMoeConfig(vocab_size=320, expert_count=4), BuildContext(run_dir=tmp_path))
    tokenizer = train(["def f(x):\n    return x + 1\n"] * 3, 320, ("<call>", "</call>"))
    save_checkpoint(policy, tokenizer, tmp_path / "out")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    ids_BT, lengths_B = padded(sequences(320)[1:2])
    with torch.no_grad():
        ours = policy.logits(policy.trunk(ids_BT, lengths_B).hidden_BTD)
        assert torch.allclose(plain(ids_BT).logits, ours, atol=1e-5)
    text = "def f(x):\n    return x"
    loaded = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert loaded.encode(text, add_special_tokens=False) == tokenizer.encode(text)
    again = build_causal_lm(CausalLMConfig(path=str(tmp_path / "out")), BuildContext(run_dir=tmp_path))
    assert all(torch.equal(again.state_dict()[name], value) for name, value in policy.state_dict().items())


def test_a_checkpoint_knows_its_tokenizer(tmp_path: Path) -> None:
    policy = build_tiny_moe(TinyMoeConfig(vocab_size=320, expert_count=4), BuildContext(run_dir=tmp_path))
    tokenizer = train(["one text"], 320, ("<call>",))
    save_checkpoint(policy, tokenizer, tmp_path / "out")
    check_tokenizer(tmp_path / "out", tokenizer)
    with pytest.raises(ConfigError, match="another tokenizer"):
        check_tokenizer(tmp_path / "out", train(["other words entirely"], 320, ("<call>", "</call>")))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (Gemma2Config(vocab_size=64, hidden_size=32, num_hidden_layers=1), "gemma2.*not known here"),
        (Qwen3Config(**COMMON, **GQA, use_sliding_window=True, sliding_window=8, max_window_layers=0), "sliding"),
        (LlamaConfig(**COMMON, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}), "dynamic"),
        (LlamaConfig(**COMMON, hidden_act="gelu"), "gelu"),
    ],
    ids=["unknown", "sliding", "rope", "activation"],
)
def test_unsupported_architectures_are_refused_by_name_with_the_reason(
    config: Any, reason: str, tmp_path: Path
) -> None:
    config.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=reason):
        build_causal_lm(CausalLMConfig(path=str(tmp_path), random_weights=True), BuildContext(run_dir=tmp_path))


def test_a_missing_folder_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        build_causal_lm(CausalLMConfig(path=str(tmp_path / "none")), BuildContext(run_dir=tmp_path))


@pytest.mark.parametrize("changes", [{"width": 100}, {"layers": 0}, {"vocab_size": True}])
def test_sizes_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="positive multiple"):
        TinyMoeConfig(**changes)


def test_numbers_that_contradict_each_other_are_config_errors() -> None:
    for changes in ({"heads": 3}, {"top_k": 9, "expert_count": 8}):
        with pytest.raises(ConfigError):
            build_tiny_moe(TinyMoeConfig(**changes), BuildContext(run_dir=Path()))


@pytest.mark.parametrize("name", ["qwen3_moe", "qwen3", "llama", "deepseek_v3"])
def test_decoding_with_few_calls_is_what_the_modules_compute(name: str) -> None:
    configs = {"qwen3": Qwen3Config(**COMMON, **GQA), "llama": LlamaConfig(**COMMON, num_key_value_heads=4)}
    config = configs.get(name) or {"qwen3_moe": qwen3_moe, "deepseek_v3": deepseek_v3}[name]()
    policy = from_config(config).eval()
    caches = [policy.new_cache(4, 40) for _ in range(2)]
    assert (policy._decoder is not None) == (name != "deepseek_v3")
    few, rows = policy._decoder, [row[:9] for row in sequences(policy.vocab_size)]
    found: list[torch.Tensor] = []
    for cache, decoder in zip(caches, (few, None), strict=True):
        policy._decoder = decoder
        with torch.no_grad():
            ids_BT, lengths_B = padded(rows)
            places = {"slots_B": torch.tensor([0, 1, 2]), "cache": cache}
            policy.trunk(ids_BT, lengths_B, past_B=torch.tensor([0, 0, 0]), **places)
            found.append(
                policy.trunk(ids_BT[:, :1], torch.ones(3), past_B=torch.tensor([9, 9, 9]), **places).hidden_BTD
            )
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)


def test_a_policy_decodes_with_few_calls_over_a_cache_that_another_has_made() -> None:
    # As a sampler does: it swaps between two policies and keeps the cache. The spare one went through the modules.
    first, spare = (from_config(qwen3_moe()).eval() for _ in range(2))
    cache, called = first.new_cache(1, 8), []
    spare.model.register_forward_pre_hook(lambda *_: called.append("modules"))
    with torch.no_grad():
        one = torch.ones(1, 1, dtype=torch.int64)
        spare.trunk(one, torch.ones(1), cache=cache, slots_B=torch.tensor([0]), past_B=torch.tensor([0]))
        assert not called
        spare.trunk(one, torch.ones(1))
    assert called == ["modules"], "the hook sees nothing"
