"""The kernel in the policies of `hf`, as a run builds them: they keep the contracts, and a run file chooses it."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config, Glm4MoeConfig, Qwen3MoeConfig

from composer_core import BuildContext
from composer_plugin_hf.policy import HFPolicy
from composer_plugin_mxfp8 import MXFP8Config
from composer_plugin_mxfp8.factory import build
from composer_plugin_policy.config import PolicyTrainerConfig, StageSettings
from composer_plugin_policy.trainer import PolicyTrainer
from composer_testing.contracts.models import RoutedModelContract
from composer_testing.contracts.trainers import TrainerContract

COMMON = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "initializer_range": 0.2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 16}
SHARED = {"n_routed_experts": 8, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
LATENT = {"q_lora_rank": 24, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 24}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """The models here are smaller than the cost of waking a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def policy(config, deterministic):
    kernel = build(MXFP8Config(), BuildContext(Path(), deterministic=deterministic))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        return HFPolicy(AutoModelForCausalLM.from_config(config), kernel, deterministic)


class TestQwen3Moe(RoutedModelContract):
    """Deterministic, since only then does a hidden state not round to the other side of a tie in other company."""

    def build(self):
        return policy(Qwen3MoeConfig(**COMMON, **GROUPED, num_experts=8), deterministic=True)


class TestGlm4Moe(RoutedModelContract):
    def build(self):
        return policy(Glm4MoeConfig(**COMMON, **GROUPED, **SHARED, use_qk_norm=True), deterministic=True)


class TestDeepseekV3(RoutedModelContract):
    def build(self):
        config = DeepseekV3Config(**COMMON, **SHARED, **LATENT, num_key_value_heads=4)
        return policy(config, deterministic=True)


class TestTrains(TrainerContract):
    """A step of the optimizer is seen by what is quantized once for each version of the weights."""

    objective = "nll"

    @pytest.fixture
    def context(self, tmp_path):
        def get(kind):
            return policy(Qwen3MoeConfig(**COMMON, **GROUPED, num_experts=8), True) if kind == "policy" else None

        return BuildContext(tmp_path / "run", seed=5, deterministic=True, get=get)

    def build(self, context):
        return PolicyTrainer(PolicyTrainerConfig(), context)

    def settings(self):
        return StageSettings(learning_rate=1e-2)


SETS = ("--set", 'plugins=["local","code","drills","hidden-tests","hf","torch-sampler","policy","report","mxfp8"]')
KERNEL = ("--set", "model.experts.kernel='mxfp8/experts'", "--set", "model.experts.settings.recipe='floor'")


def test_a_run_file_chooses_kernel_and_recipe(root, composer_run):
    process = composer_run("check", root / "examples/quickstart/run.toml", *SETS, *KERNEL, "--json")
    assert process.returncode == 0, process.stderr
    (row,) = [row for row in json.loads(process.stdout)["components"] if row["key"] == "kernels"]
    assert (row["id"], row["settings"]) == ("mxfp8/experts", {"recipe": "floor"})
    assert "experts' weights as MXFP8's values" in process.stdout


def test_check_refuses_triton_where_it_cannot_run(root, composer_run):
    triton = ("--set", "model.experts.settings.implementation='triton'")
    process = composer_run(
        "check", root / "examples/quickstart/run.toml", *SETS, *KERNEL, *triton, TRITON_INTERPRET="0"
    )
    assert process.returncode == 2
    assert "model.experts.settings.implementation" in process.stderr and "Triton needs a CUDA device" in process.stderr


def test_a_recipe_that_is_none_is_refused_with_those_there_are(root, composer_run):
    wrong = ("--set", "model.experts.settings.recipe='fp8'")
    process = composer_run("check", root / "examples/quickstart/run.toml", *SETS, *KERNEL[:2], *wrong)
    assert process.returncode == 2 and "rceil_hp_wgrad" in process.stderr
