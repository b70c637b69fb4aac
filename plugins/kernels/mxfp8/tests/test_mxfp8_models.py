"""Models of transformers: converted where their experts' layout allows, refused with the reason where not; checkpoints,
exports, and the report that names the layer that drifts."""

import copy

import pytest
import torch
from mxfp8_cases import decibels
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Glm4MoeConfig,
    GptOssConfig,
    LlamaConfig,
    Qwen3MoeConfig,
)

from composer_plugin_mxfp8 import (
    MXFP8Config,
    export_mxfp8,
    layer_drift,
    load_mxfp8,
    quantize_,
    reference,
)

COMMON = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "initializer_range": 0.2,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 16}
SHARED = {"n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 24,
}
MODELS = {
    "qwen3-moe": Qwen3MoeConfig(**COMMON, **GROUPED, num_experts=8),
    "deepseek-v3": DeepseekV3Config(**COMMON, **SHARED, **LATENT, n_group=2, topk_group=1),
    "kimi-k2": DeepseekV3Config(
        **COMMON | {"num_hidden_layers": 2},
        **SHARED | {"n_routed_experts": 12, "routed_scaling_factor": 2.827},
        **LATENT,
        n_group=1,
        topk_group=1,
    ),
    "glm-4.5": Glm4MoeConfig(**COMMON, **GROUPED, **SHARED, n_group=1, topk_group=1, use_qk_norm=True),
}
IDS = torch.arange(48).view(2, 24) * 7 % 96


def build(config):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return AutoModelForCausalLM.from_config(config)


def losses(model):
    """The loss of a fixed batch and the gradient of every parameter."""
    loss = torch.nn.functional.cross_entropy(model(input_ids=IDS).logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())
    model.zero_grad()
    loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", MODELS)
def test_a_converted_model_trains_near_the_one_it_was(name):
    exact, converted = build(MODELS[name]), quantize_(build(MODELS[name]))
    loss, gradients = losses(exact)
    ours, found = losses(converted)
    assert ours != loss and abs(float(ours - loss)) < 0.05 * float(loss)
    experts = [key for key in gradients if ".experts." in key]
    assert len(experts) == 2 * sum(hasattr(module, "mxfp8") for module in converted.modules()) > 0
    assert all(decibels(gradients[key], found[key]) > 3 for key in experts), "of the whole model, not of one layer"
    assert gradients.keys() == found.keys() and all(value is not None for value in found.values())


def test_gpt_oss_is_refused_with_every_reason_and_left_as_it_was():
    model = build(GptOssConfig(**COMMON, **GROUPED, num_local_experts=4))
    before = dict(vars(model.model.layers[0].mlp.experts))
    with pytest.raises(ValueError, match=r"layers\.0\.mlp\.experts: weights lie transposed.*biases.*gate is not silu"):
        quantize_(model)
    assert vars(model.model.layers[0].mlp.experts).keys() == before.keys()


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"moe_intermediate_size": 40}, "a width of 40 is no multiple of 32"),
        ({"hidden_act": "gelu"}, "gate is not silu"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused_with_the_reason(changes, reason):
    with pytest.raises(ValueError, match=reason):
        quantize_(build(Qwen3MoeConfig(**COMMON | changes, **GROUPED, num_experts=8)))


def test_a_model_without_experts_is_refused():
    kept = ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size")
    with pytest.raises(ValueError, match="no module of experts to quantize in LlamaForCausalLM"):
        quantize_(build(LlamaConfig(num_hidden_layers=1, **{key: COMMON[key] for key in kept})))


def test_triton_is_refused_where_no_device_runs_it_before_anything_is_changed(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    model = build(MODELS["qwen3-moe"])
    with pytest.raises(RuntimeError, match=r'"triton" cannot run here.*choose "auto" or "reference"'):
        quantize_(model, MXFP8Config(implementation="triton"))
    assert not [module for module in model.modules() if hasattr(module, "mxfp8")]


def test_a_setting_that_is_none_of_its_options_is_told_in_a_sentence():
    with pytest.raises(ValueError) as refused:
        MXFP8Config(recipe="round")
    assert str(refused.value) == "recipe is one of 'rceil', 'rceil_hp_wgrad', 'floor', found 'round'"


def test_a_filter_says_which_layers_are_converted():
    model = quantize_(build(MODELS["qwen3-moe"]), filter_fn=lambda _, name: ".1." in name)
    assert [name for name, module in model.named_modules() if hasattr(module, "mxfp8")] == [
        "model.layers.1.mlp.experts"
    ]


def test_a_copy_of_a_converted_model_computes_with_its_own_weights():
    model = quantize_(build(MODELS["qwen3-moe"]))
    twin = copy.deepcopy(model)
    with torch.no_grad():
        before = model(input_ids=IDS).logits
        twin.model.layers[0].mlp.experts.down_proj.zero_()
        assert torch.equal(model(input_ids=IDS).logits, before)
        assert not torch.equal(twin(input_ids=IDS).logits, before)


def test_a_checkpoint_of_a_converted_model_opens_in_plain_transformers(tmp_path):
    model = quantize_(build(MODELS["qwen3-moe"]))
    model.save_pretrained(tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not any(hasattr(module, "mxfp8") for module in plain.modules())
    state = plain.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    with torch.no_grad():
        assert torch.equal(quantize_(plain)(input_ids=IDS).logits, model(input_ids=IDS).logits)


@pytest.mark.parametrize("config", [MXFP8Config(), MXFP8Config(weight_block="1x32")], ids=str)
def test_an_export_holds_the_weights_that_the_forward_reads(config, tmp_path):
    model = quantize_(build(MODELS["deepseek-v3"]), config)
    export_mxfp8(model.state_dict(), tmp_path / "model.safetensors", config)
    state = load_mxfp8(tmp_path / "model.safetensors", torch.float32)
    assert state.keys() == model.state_dict().keys()
    exported = build(MODELS["deepseek-v3"])
    exported.load_state_dict(state)
    with torch.no_grad():
        assert torch.equal(quantize_(exported, config)(input_ids=IDS).logits, model(input_ids=IDS).logits)


def test_a_model_with_tied_embeddings_is_exported_and_comes_back(tmp_path):
    tied = Qwen3MoeConfig(**COMMON, **GROUPED, num_experts=8, tie_word_embeddings=True)
    model = build(tied)
    export_mxfp8(model.state_dict(), tmp_path / "tied.safetensors")
    model.load_state_dict(load_mxfp8(tmp_path / "tied.safetensors"))
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_an_export_is_laid_out_as_its_page_says(tmp_path):
    from safetensors import safe_open

    path = tmp_path / "model.safetensors"
    weight = torch.randn(2, 64, 96, generator=torch.Generator().manual_seed(0))
    export_mxfp8({"a.gate_up_proj": weight, "b.weight": torch.ones(3)}, path)
    with safe_open(path, "pt") as file:
        assert sorted(file.keys()) == ["a.gate_up_proj", "a.gate_up_proj_scale", "b.weight"]
        assert file.metadata() == {"format": "mxfp8", "version": "1", "recipe": "rceil"}
        data, scale = file.get_tensor("a.gate_up_proj"), file.get_tensor("a.gate_up_proj_scale")
    assert (data.dtype, scale.dtype, scale.shape) == (torch.float8_e4m3fn, torch.float8_e8m0fnu, (2, 64, 3))
    value = data.float() * scale.float().repeat_interleave(32, -1)
    assert torch.equal(
        value, reference.dequantize(reference.quantize_weights(weight, (32, 32)), (32, 32), torch.float32)
    )
    with pytest.raises(ValueError, match="nothing to export"):
        export_mxfp8({"b.weight": torch.ones(3)}, path)


def test_the_report_names_the_layer_that_drifts():
    model = quantize_(build(MODELS["qwen3-moe"]))
    rows = layer_drift(model, lambda: model(input_ids=IDS))
    assert [row.name for row in rows] == [f"model.layers.{layer}.mlp.experts" for layer in range(3)]
    assert not any(row.drifts for row in rows) and rows[0].own == rows[0].total and rows[2].total < rows[2].own
    with torch.no_grad():  # outliers in one column of each block, as training at too high a rate leaves them
        model.model.layers[1].mlp.experts.down_proj[..., ::32] *= 2.0**14
        model.model.layers[1].mlp.experts.gate_up_proj[:, ::32] = 0
    assert [row.name for row in layer_drift(model, lambda: model(input_ids=IDS)) if row.drifts] == [rows[1].name]


def test_a_report_without_a_converted_layer_is_refused():
    model = build(MODELS["qwen3-moe"])
    with pytest.raises(ValueError, match="`quantize_` the model first"):
        layer_drift(model, lambda: model(input_ids=IDS))
