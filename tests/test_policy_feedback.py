"""The whole loop with stale tokens, a clipped objective, behavior rewards and text feedback, on a real mixture.

Tasks and sandbox are fakes. A policy with random weights makes no calls, so the renderer reads one of a tool that does
not exist into every turn: `behavior/broken_calls` says so, and the trainer makes lessons of it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from composer_core import RendererSpec, RewardSpec, hookimpl
from composer_core.commands.train import train
from composer_core.config import structure
from composer_core.plugins import Candidate, Plugins, select
from composer_core.rundir import RunDir
from composer_core.tracking import read_events
from composer_core.types import Call, ParsedTurn
from composer_plugin_hf.renderers.config import XML_TOKENS, XmlConfig
from composer_plugin_hf.renderers.xml import build_xml

COMPOSER_API = 1
RUN: dict[str, Any] = {
    "name": "feedback",
    "seed": 3,
    "threads": 1,
    "plugins": ["hf", "torch-sampler", "policy", "fakes", "behavior"],
    "tasks": {"use": "fakes/sums", "count": 6},
    "sandbox": "fakes/memory",
    "tools": {"use": ["fakes/read"]},
    "model": {"use": "hf/tiny-moe", "vocab_size": 320, "width": 32, "heads": 2, "kv_heads": 1, "expert_count": 16}
    | {"expert_width": 32, "init_std": 0.2},
    "renderer": "feedback/misspelling",
    "sampler": {"use": "torch-sampler/continuous", "slots": 6, "context_tokens": 160},
    "trainer": "policy/policy",
    "algorithm": "policy/gspo",
    "rewards": [{"use": "feedback/every_other"}, {"use": "behavior/broken_calls"}, {"use": "behavior/effort"}],
    "trackers": ["core/jsonl"],
    "limits": {"turns": 2, "tokens": 40, "turn_tokens": 12, "context_tokens": 160},
    "stages": [
        {
            "kind": "rl",
            "steps": 3,
            "groups_per_step": 2,
            "group_size": 4,
            "max_staleness": 1,
            "router_replay": True,
            "learning_rate": 3e-3,
            "loss_scale_tokens": 60.0,
            "feedback": 0.5,
        }
    ],
}


def misspelling(config: XmlConfig, build: Any) -> Any:
    made = build_xml(config, build)
    made.parse = lambda ids: ParsedTurn("", (Call("c0", "raed", {"path": "question.txt"}),), ended=False)
    return made


@hookimpl
def composer_renderers() -> Iterator[RendererSpec]:
    yield RendererSpec(name="misspelling", factory=misspelling, config=XmlConfig, special_tokens=XML_TOKENS)


@hookimpl
def composer_rewards() -> Iterator[RewardSpec]:
    yield RewardSpec(name="every_other", function="composer_testing.fakes.tasks:every_other", outcome=True)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    folder: Path = tmp_path_factory.mktemp("feedback")
    config = structure(RUN)
    plugins = Plugins().load(select(config.plugins))
    plugins.register(Candidate("feedback", "feedback", "tests", "0"), sys.modules[__name__])
    asyncio.run(train(config, plugins, RunDir(folder)))
    return [event["metrics"] for event in read_events(folder) if event["event"] == "StepEnded"]


def test_every_turn_is_a_lesson_and_the_told_and_the_untold_policy_come_closer(steps):
    assert all(step["feedback_turns"] == 16 and not step["skipped"] for step in steps)
    assert 0 < steps[-1]["feedback_kl"] < steps[0]["feedback_kl"]


def test_stale_sequences_are_clipped_and_fresh_ones_are_not(steps):
    assert steps[0]["clipped_share"] == 0.0, "the first step trains what the weights of before it sampled"
    assert max(step["clipped_share"] for step in steps[1:]) > 0


def test_the_parts_of_the_reward_add_up(steps):
    for step in steps:
        parts = {name: value for name, value in step.items() if name.startswith("reward/")}
        assert set(parts) == {"reward/feedback/every_other", "reward/behavior/broken_calls", "reward/behavior/effort"}
        assert sum(parts.values()) == pytest.approx(step["reward_mean"])
