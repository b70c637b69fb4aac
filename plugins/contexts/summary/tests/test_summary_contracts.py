"""The hook module, the three contexts and the probe keep the contracts of their kinds."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from attrs import evolve

from composer_core import BuildContext, RewardSpec
from composer_core.columns import Column
from composer_core.types import Branch, SlotKey, Stop, ToolResult, Trace, Turn
from composer_plugin_summary.config import ProbeConfig, PromptedConfig, SummaryConfig, TruncateConfig
from composer_plugin_summary.metrics import kept_shares, segments
from composer_plugin_summary.plugin import composer_rewards
from composer_plugin_summary.probe import kept
from composer_plugin_summary.summarize import Summarizing
from composer_plugin_summary.truncate import Truncating
from composer_testing.contracts.contexts import ContextContract, view
from composer_testing.contracts.hook_modules import HookModuleContract
from composer_testing.contracts.rewards import RewardContract, Situation

NOWHERE = BuildContext(None)  # type: ignore[arg-type]


class TestHookModule(HookModuleContract):
    module = "composer_plugin_summary.plugin"


class TestSelf(ContextContract):
    def build(self):
        return Summarizing(SummaryConfig(trigger_tokens=600), NOWHERE)


class TestPrompted(ContextContract):
    def build(self):
        return Summarizing(PromptedConfig(trigger_tokens=600), NOWHERE)


class TestTruncate(ContextContract):
    def build(self):
        return Truncating(TruncateConfig(trigger_tokens=600), NOWHERE)


def test_the_baselines_request_has_a_dozen_sections_and_asks_for_the_same_thought():
    lines = PromptedConfig(trigger_tokens=1).asked.splitlines()
    assert [line.partition(".")[0] for line in lines if line[0].isdigit()] == [str(n) for n in range(1, 13)]
    assert lines[-1].endswith("</think>")
    assert len(SummaryConfig(trigger_tokens=1).asked.splitlines()) == 1


@pytest.mark.parametrize("path", ["/tmp/x", "history", ".agent", ".agent/../x", ".agent//x", ""])
def test_a_history_that_a_patch_would_hold_is_refused(path):
    with pytest.raises(ValueError, match=r"history must be a folder below \.agent"):
        SummaryConfig(trigger_tokens=1, history=path)


def _branch(size: int) -> Branch:
    zeros = Column("U8", (size,), bytes(size))
    return Branch(Column.of("I32", range(size)), zeros, Column.of("F32", [0.0] * size), ((-1, size),))


def _turn(index: int, branch: int, start: int, stop: int, text: str = "", read: str = "", **fields: str) -> Turn:
    results = (ToolResult("c0", "read", read),) if read else ()
    return Turn(index, branch, start, stop, text, (), results, **fields)


CHAIN = Trace(
    SlotKey("task", 0), "g", (), (_branch(100), _branch(80), _branch(40)),
    (
        _turn(0, 0, 10, 20, read="port is 4711"),
        _turn(1, 0, 60, 90, "hm, host? </think> port is 4711", purpose="summary"),
        _turn(2, 1, 30, 40, read="host is ada"),
        _turn(3, 1, 60, 80, "host is ada </think> something else", purpose="summary", sampler_stop="length"),
        _turn(4, 2, 25, 30),
    ),
    Stop.FINISHED,
)  # fmt: skip
FACTS = ("port is 4711", "host is ada", "never read")


def test_each_closed_branch_tells_its_tokens_before_and_after():
    first, second = segments(CHAIN)
    assert (first.tokens_before, first.tokens_after, first.summary_tokens, first.cut) == (100, 30, 30, False)
    assert (second.tokens_before, second.tokens_after, second.summary_tokens, second.cut) == (80, 25, 20, True)


def test_facts_are_kept_if_they_stand_behind_the_thought_and_only_those_that_were_read_count():
    assert kept_shares(segments(CHAIN), FACTS, "</think>") == [1.0, 0.0]
    assert kept_shares(segments(CHAIN), FACTS, "none") == [1.0, 0.5]


def test_the_probe_tells_each_summary_and_which_were_cut_or_empty():
    task = evolve(view(1).task, labels={"facts": "\n".join(FACTS)})
    found = kept(CHAIN, task, ProbeConfig())
    assert (found.note, found.parts["cut_share"], found.parts["empty_share"]) == ("1.00 0.00", 0.5, 0.0)
    thought = next(turn for turn in CHAIN.turns if turn.purpose == "summary")
    said = {thought.index: evolve(thought, text="hm </think> ")}
    empty = evolve(CHAIN, turns=tuple(said.get(turn.index, turn) for turn in CHAIN.turns))
    assert kept(empty, task, ProbeConfig()).parts["empty_share"] == 0.5
    truncated = evolve(CHAIN, turns=tuple(turn for turn in CHAIN.turns if turn.purpose == "act"))
    assert kept(truncated, task, ProbeConfig()).parts["empty_share"] == 0.0


class TestKept(RewardContract):
    def build(self) -> RewardSpec:
        (spec,) = composer_rewards()
        return spec

    def situations(self) -> Mapping[str, Situation]:
        task = view(1).task
        labelled = evolve(task, labels={"facts": "\n".join(FACTS)})
        short = Trace(SlotKey("task", 0), "g", (), (_branch(5),), (), Stop.FINISHED)
        return {
            "a chain": Situation({"trace": CHAIN, "task": labelled, "config": ProbeConfig()}, 0.5),
            "a task without facts": Situation({"trace": CHAIN, "task": task, "config": ProbeConfig()}, 1.0),
            "one window": Situation({"trace": short, "task": labelled, "config": ProbeConfig()}, 1.0),
        }
