"""A real mixture of experts through the real sampler, loop and trainer: what sampler and trainer agree on.

Tasks and sandbox are fakes; the renderer is the `xml` one, but for a call after every turn, since a policy with random
weights makes none, and the reward is a coin that the sampled ids toss.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from safetensors.torch import load_file

from composer_core import RendererSpec, RewardSpec, hookimpl
from composer_core.assembly import Assembly
from composer_core.batches import sequences_of
from composer_core.columns import Blob
from composer_core.commands.train import train
from composer_core.config import structure
from composer_core.plugins import Candidate, Plugins, select
from composer_core.rundir import RunDir
from composer_core.tensors import to_column, to_tensor
from composer_core.traces import decode
from composer_core.tracking import read_events
from composer_core.types import Call, ParsedTurn, Trace, TrainBatch
from composer_plugin_hf.renderers.config import XML_TOKENS, XmlConfig
from composer_plugin_hf.renderers.xml import build_xml

COMPOSER_API = 1


def chatty(config: XmlConfig, build: Any) -> Any:
    made = build_xml(config, build)
    made.parse = lambda ids: ParsedTurn("", (Call("c0", "read", {"path": "question.txt"}),), ended=False)
    return made


def coin(trace: Trace) -> float:
    """1 for half of the episodes."""
    return float(sum(sum(branch.ids.values()) for branch in trace.branches) % 2)


@hookimpl
def composer_renderers() -> Iterator[RendererSpec]:
    yield RendererSpec(name="chatty", factory=chatty, config=XmlConfig, special_tokens=XML_TOKENS)


@hookimpl
def composer_rewards() -> Iterator[RewardSpec]:
    yield RewardSpec(name="coin", function=coin, outcome=True)


def run_file(**stage: Any) -> dict[str, Any]:
    """A run of a minute at most; `stage` adds to its rl stage."""
    return {
        "name": "loop",
        "seed": 3,
        "threads": 1,
        "plugins": ["hf", "torch-sampler", "policy", "fakes"],
        "tasks": {"use": "fakes/sums", "count": 6},
        "sandbox": "fakes/memory",
        "tools": {"use": ["fakes/read"]},
        "model": {
            "use": "hf/tiny-moe",
            "vocab_size": 320,
            "width": 32,
            "heads": 2,
            "kv_heads": 1,
            "expert_count": 16,
            "expert_width": 32,
            "init_std": 0.2,
        },
        "renderer": "loop/chatty",
        "sampler": {"use": "torch-sampler/continuous", "slots": 6, "context_tokens": 256},
        "trainer": "policy/policy",
        "algorithm": "policy/dr_grpo",
        "rewards": [{"use": "loop/coin"}],
        "trackers": ["core/jsonl"],
        "limits": {"turns": 4, "tokens": 80, "turn_tokens": 16, "context_tokens": 256},
        "stages": [
            {
                "kind": "rl",
                "steps": 5,
                "groups_per_step": 2,
                "group_size": 4,
                "learning_rate": 3e-3,
                "loss_scale_tokens": 60.0,
                **stage,
            }
        ],
    }


def plugins_of(config: Any) -> Plugins:
    found = Plugins().load(select(config.plugins))
    found.register(Candidate("loop", "loop", "tests", "0"), sys.modules[__name__])
    return found


class Ran:
    """A finished run: the metrics of its steps and its traces."""

    def __init__(self, folder: Path, data: dict[str, Any]) -> None:
        config = structure(data)
        self.folder = folder
        self.summary = asyncio.run(train(config, plugins_of(config), RunDir(folder)))
        self.steps = [event["metrics"] for event in read_events(folder) if event["event"] == "StepEnded"]
        self.traces = [decode(path.read_bytes()) for path in sorted((folder / "traces").glob("*.trace"))]


# --- router replay ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def replayed(tmp_path_factory) -> Ran:
    return Ran(tmp_path_factory.mktemp("replayed") / "run", run_file(router_replay=True, mask_ratio=1.5))


def test_with_router_replay_every_forwarded_token_of_every_branch_has_its_experts(replayed):
    (branches,) = {len(trace.branches) for trace in replayed.traces}
    assert branches == 1 and len(replayed.traces) == 5 * 2 * 4
    for trace in replayed.traces:
        (branch,) = trace.branches
        assert len(trace.turns) == 4
        assert isinstance(branch.routes, Blob) and branch.routes.dtype == "U8"
        assert branch.routes.shape == (trace.turns[-1].stop - 1, 2, 2)
        assert (replayed.folder / branch.routes.uri).stat().st_size == branch.routes.shape[0] * 4


def test_the_trainer_replays_them_and_agrees_with_the_sampler(replayed):
    for step in replayed.steps:
        assert step["rerouted_share"] == 0.0
        assert step["route_disagreement_share"] <= 1e-3, "of equal weights; near ties flip"
        assert step["parity_p999"] <= 1e-5
        assert step["masked_sequences"] == 0
    assert any(step["parity_tokens"] for step in replayed.steps)
    assert replayed.summary["masked_sequences"] == 0
    assert replayed.summary["route_disagreement_share"] <= 1e-3


def test_without_router_replay_no_experts_are_recorded(tmp_path):
    ran = Ran(tmp_path / "run", run_file(steps=1))
    assert all(trace.branches[0].routes is None for trace in ran.traces)
    assert "rerouted_share" not in ran.steps[0]
    assert not list((ran.folder / "traces").glob("*.routes"))


def test_experts_shifted_by_one_token_are_seen_at_once(replayed, tmp_path):
    """From the traces of the first step: the trainer's own log-probabilities against the sampler's."""
    config = structure(run_file(router_replay=True))

    async def score(shift: int) -> float:
        assembly = Assembly(config, plugins_of(config).registry, replayed.folder)
        first = [trace for trace in replayed.traces if trace.oldest_version() == 0]
        assert len(first) == 8
        rows = [row for number, trace in enumerate(first) for row in sequences_of(trace, number, 1.0)]
        if shift:
            store = assembly.get("stores")
            moved = [to_tensor(row.routes.get(store)).roll(shift, 0) for row in rows]
            rows = [evolve(row, routes=to_column(routes)) for row, routes in zip(rows, moved, strict=True)]
        batch = TrainBatch("rl", "policy/dr_grpo", tuple(rows), len(first))
        trainer = assembly.get("trainers")
        own = [to_tensor(column) for column in await trainer.logprobs(batch)]
        await assembly.close()
        deltas = [logp_T - to_tensor(row.behavior) for logp_T, row in zip(own, rows, strict=True)]
        return float(torch.cat(deltas).abs().max())

    assert asyncio.run(score(0)) <= 1e-4
    assert asyncio.run(score(1)) > 1e-2
    assert asyncio.run(score(-1)) > 1e-2


# --- weights in 16 bits -------------------------------------------------------------------------------------------


def test_a_sampler_given_16_bits_of_each_weight_agrees_with_a_trainer_that_keeps_fp32_masters(tmp_path):
    data = run_file(router_replay=True)
    data["trainer"] = {"use": "policy/policy", "published": "bf16"}
    ran = Ran(tmp_path / "run", data)
    told = [step for step in ran.steps if step["parity_tokens"]]
    assert told and all(step["parity_p999"] <= 1e-5 for step in ran.steps if "parity_p999" in step)
    assert all(step["route_disagreement_share"] <= 1e-3 for step in told)
    commit = RunDir(ran.folder).last_commit()
    published = load_file(ran.folder / commit.weights.uri)
    masters = load_file(ran.folder / f"checkpoints/{commit.number}/weights.safetensors")
    assert all(tensor.dtype is torch.bfloat16 for tensor in published.values())
    assert all(tensor.bfloat16().equal(published[name]) for name, tensor in masters.items())
    assert any(not tensor.equal(published[name].float()) for name, tensor in masters.items()), "rounding took something"


# --- swaps in flight ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_on_swap", ["keep", "recompute"])
def test_weights_swap_in_flight_and_parity_is_told_of_untouched_tokens_only(kv_on_swap, tmp_path):
    data = run_file(max_staleness=2, router_replay=True, steps=8)
    data["sampler"]["kv_on_swap"] = kv_on_swap
    data["executor"] = {"use": "core/inprocess", "max_concurrent": 6}
    ran = Ran(tmp_path / "run", data)
    versions = [{value for value, _ in trace.branches[0].versions if value >= 0} for trace in ran.traces]
    assert any(len(found) > 1 for found in versions), "no episode saw a swap"
    assert 0 < max(step["staleness_max"] for step in ran.steps) <= 2
    for trace in ran.traces:
        for turn in trace.turns:
            mine = _versions(trace, turn.start, turn.stop)
            assert turn.cache_version <= min(mine)
    assert all(step["parity_tokens"] and step["parity_p999"] <= 1e-5 for step in ran.steps), "of their own or a probe's"
    own = [step for step in ran.steps if "parity_probe_rows" not in step]
    assert 0 < len(own) < len(ran.steps)
    assert sum(step["parity_tokens"] for step in own) < sum(step["trained_tokens"] for step in ran.steps)
    assert ran.summary["episodes"] == len([trace for trace in ran.traces if trace.key.stage != "parity"])


def _versions(trace: Trace, start: int, stop: int) -> list[int]:
    """Of each id in [start, stop)."""
    return [value for value, count in trace.branches[0].versions for _ in range(count)][start:stop]
