"""What `check` refuses, and what settings refuse themselves."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from attrs import evolve

from composer_core import AlgorithmSpec, RewardSpec, RunView
from composer_plugin_policy import plugin
from composer_plugin_policy.config import DapoConfig, GrpoConfig, PolicyGradientConfig, StageSettings


def _view(kind="rl", settings=None, clips=None, trainer="policy/policy", **fields):
    own = {"max_staleness": 0} | fields if kind == "rl" else fields
    stage = SimpleNamespace(stage=SimpleNamespace(name="s", kind=kind, **own), settings=settings or {})
    config = SimpleNamespace(trainer=SimpleNamespace(use=trainer), stages=(stage,))
    spec = AlgorithmSpec(name="ppo", advantage=list, objective=list, clips=clips)
    return RunView(config, {}, {"algorithms": (("other/ppo", spec),)})


def test_clipping_to_the_trainers_own_recomputation_is_refused():
    (problem,) = plugin.composer_check(_view(clips="old"))
    assert problem.where == "algorithm.use"
    assert "other/ppo" in problem.message and "1 by construction" in problem.message
    assert list(plugin.composer_check(_view(clips="old", trainer="other/trainer"))) == []


def test_clipping_to_the_sampler_is_refused_where_no_token_can_be_stale():
    (problem,) = plugin.composer_check(_view(clips="behavior"))
    assert problem.where == "stages.s.max_staleness"
    assert "other/ppo" in problem.message and "1 by construction" in problem.message
    assert list(plugin.composer_check(_view(clips="behavior", max_staleness=1))) == []
    assert list(plugin.composer_check(_view(clips="behavior", kind="sft"))) == []


@pytest.mark.parametrize("name", ["ppo_clip", "dapo", "gspo", "cispo"])
def test_every_algorithm_of_ours_that_clips_says_so(name):
    (spec,) = (spec for spec in plugin.composer_algorithms() if spec.name == name)
    assert (spec.clips, spec.needs) == ("behavior", {"behavior"})


@pytest.mark.parametrize("key", ["beta", "credit", "kl", "loss_scale_tokens", "mask_ratio", "mask_delta"])
def test_settings_of_rl_are_refused_in_other_stages(key):
    given = {"credit": "last", "kl": "k1"}.get(key, 5.0)
    (problem,) = plugin.composer_check(_view(kind="sft", settings={key: given}))
    assert problem.where == f"stages.s.{key}"
    assert list(plugin.composer_check(_view(kind="rl", settings={key: given}))) == []


def test_settings_without_effect_are_refused():
    (problem,) = plugin.composer_check(_view(settings={"kl": "k1_mean"}))
    assert problem.where == "stages.s.kl"
    assert list(plugin.composer_check(_view(settings={"kl": "k1_mean", "beta": 0.1}))) == []
    (problem,) = plugin.composer_check(_view(settings={"final_learning_rate_share": 0.5}))
    assert problem.where == "stages.s.final_learning_rate_share"
    (problem,) = plugin.composer_check(_view(settings={"replay_tau": 0.5}))
    assert problem.where == "stages.s.replay_tau"
    assert list(plugin.composer_check(_view(settings={"replay_tau": 0.5}, router_replay=True))) == []


def test_feedback_without_a_reward_that_says_anything_is_refused():
    (problem,) = plugin.composer_check(_view(settings={"feedback": 0.1}))
    assert problem.where == "stages.s.feedback"
    hinting = RewardSpec(name="says", function=list, capabilities={"reward.hints"})
    view = _view(settings={"feedback": 0.1})
    assert list(plugin.composer_check(evolve(view, records={**view.records, "rewards": (("x/says", hinting),)}))) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"loss_scale_tokens": 0.0},
        {"loss_scale_tokens": -1.0},
        {"loss_scale_tokens": float("inf")},
        {"learning_rate": float("nan")},
        {"micro_batch_tokens": 0},
        {"max_nonfinite_in_a_row": 0},
        {"beta": -0.1},
        {"schedule": "step"},
        {"credit": "first"},
        {"kl": "k3"},
        {"adam_beta1": 1.0},
        {"final_learning_rate_share": 1.5},
        {"mask_ratio": 0.9},
        {"mask_ratio": 1.0},
        {"mask_delta": -1.0},
        {"feedback": -0.1},
        {"replay_tau": -0.1},
    ],
)
def test_values_out_of_range_are_refused_when_settings_are_made(fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        StageSettings(**fields)


def test_a_cap_that_would_silence_every_token_is_refused():
    with pytest.raises(ValueError, match="cap"):
        PolicyGradientConfig(cap=0.0)
    with pytest.raises(ValueError, match="cap"):
        GrpoConfig(cap=-1.0)
    with pytest.raises(ValueError, match="clip_low"):
        DapoConfig(clip_low=1.0)


def test_the_hook_module_loads_no_torch():
    code = "import composer_plugin_policy.plugin, sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
