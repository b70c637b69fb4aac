"""Closed branches on disk: an attempt that was lost goes on where it was, and nothing stays of one that has ended."""

from __future__ import annotations

import json

import pytest
from attrs import evolve

from composer_core.columns import Column
from composer_core.errors import WorkLost
from composer_core.protocols import BuildContext
from composer_core.stores import FolderConfig, FolderStore
from composer_core.types import Branch, Call, SlotKey, Stop, Trace
from composer_plugin_summary.config import SummaryConfig
from composer_plugin_summary.segments import StoredSegments
from composer_plugin_summary.summarize import Summarizing
from composer_testing.episodes import Script, build_context, play

CONFIG = SummaryConfig(trigger_tokens=300, summary_tokens=60, think_tokens=0, state=("history",))
LOOK, DONE = Call("c0", "write", {"path": "answer.txt", "text": "x" * 250}), Call("c0", "done", {})
GONE = WorkLost("the process is gone")
WHOLE = [LOOK, "first", LOOK, "second", DONE]


@pytest.fixture
def attempt(tmp_path):
    """`attempt(turns, **script)`: the trace of the same attempt, made again and again in one run folder."""

    def run(turns, **script):
        made = Script(turns, **script)
        return play(made, Summarizing(CONFIG, build_context(tmp_path))), made

    return run


@pytest.fixture
def left(tmp_path):
    return lambda: sorted(path.name for path in (tmp_path / "segments").glob("*"))


def without_times(trace):
    turns = [
        evolve(turn, generate_s=0.0, results=tuple(evolve(result, wall_s=0.0) for result in turn.results))
        for turn in trace.turns
    ]
    return evolve(trace, turns=tuple(turns), stats={})


def test_nothing_stays_of_an_episode_that_has_ended(attempt, left):
    trace, _ = attempt(WHOLE)
    assert (trace.stop, len(trace.branches), left()) == (Stop.FINISHED, 3, [])


def test_a_lost_attempt_leaves_its_closed_branches_and_goes_on_behind_them(attempt, left):
    lost, _ = attempt([*WHOLE[:4], GONE])
    assert lost.verdict.lost
    assert left() == ["rl-task-0#0.trace", "rl-task-0#1.trace"]
    again, script = attempt([DONE])
    assert [request.position for _, request in script.asked] == [lost.sampled_tokens()]
    whole, _ = attempt(WHOLE)
    assert without_times(again) == without_times(whole), "as if nothing had happened, patch and all"


def test_a_void_attempt_begins_again_from_nothing(attempt, left, tmp_path):
    void, _ = attempt([*WHOLE[:4], RuntimeError("down")])
    assert (void.verdict.cause, len(void.branches), left()) == ("sampler", 3, [])
    attempt([*WHOLE[:4], GONE])
    (tmp_path / "segments" / "rl-task-0#1.trace").write_bytes(b"damaged")
    damaged, _ = attempt([])
    assert (damaged.verdict.cause, left()) == ("host", [])
    whole, script = attempt(WHOLE)
    assert (whole.stop, len(script.asked)) == (Stop.FINISHED, 5)


def test_what_was_sampled_in_a_branch_that_was_open_is_sampled_again(attempt):
    attempt([*WHOLE[:3], GONE])
    _, script = attempt(WHOLE[2:])
    assert len(script.asked) == 3


def test_only_what_came_after_the_very_same_ids_is_taken(attempt, tmp_path):
    attempt([*WHOLE[:4], GONE])
    other = Script(["first", "second", DONE])
    trace = play(other, Summarizing(evolve(CONFIG, request="another request"), build_context(tmp_path)))
    assert trace.stop is Stop.FINISHED
    assert [turn.purpose for turn in trace.turns] == ["act", "summary", "act", "summary", "act"]
    assert len(other.asked) == 3, "both answers to the other request, and what came after them"


@pytest.mark.parametrize(("committed", "sampled"), [(None, 5), (2, 5), (3, 1), (4, 1)])
def test_only_tokens_of_committed_weights_are_taken(attempt, tmp_path, committed, sampled):
    attempt([*WHOLE[:4], GONE], version=3)
    if committed is not None:
        (tmp_path / "commit.json").write_text(json.dumps({"weights": {"version": committed}}))
    _, script = attempt(WHOLE[-sampled:], version=3)
    assert len(script.asked) == sampled


def _segment(number: int) -> Trace:
    ids = Column.of("I32", [number])
    flags, logprobs = Column("U8", (1,), b"\0"), Column.of("F32", [0.0])
    return Trace(SlotKey("t", 0), "g", (), (Branch(ids, flags, logprobs, ((-1, 1),)),), (), Stop.CANCELLED)


def test_segments_are_a_mapping_whose_keys_are_numbers_of_branches(tmp_path):
    store = FolderStore(FolderConfig(), BuildContext(tmp_path))
    ours, others = StoredSegments(store, tmp_path, "a-1"), StoredSegments(store, tmp_path, "a-11")
    for number in range(11):
        ours[number] = _segment(number)
    others[0] = _segment(7)
    assert list(ours) == list(range(11)) and len(ours) == 11 and ours[10] == _segment(10)
    assert ours.get(11) is None
    del ours[3]
    assert 3 not in ours
    ours.clear()
    assert (list(ours), list(StoredSegments(store, tmp_path, "a-11"))) == ([], [0])


class Broken(FolderStore):
    """A store that fails at what it is told to."""

    fails: str = ""

    def _fail(self, what: str) -> None:
        if self.fails == what:
            raise OSError("the disk is gone")

    def list(self, prefix: str = "") -> list[str]:
        self._fail("list")
        return super().list(prefix)

    def get(self, uri: str) -> bytes:
        self._fail("get")
        return super().get(uri)

    def delete(self, uri: str) -> None:
        self._fail("delete")
        super().delete(uri)


@pytest.mark.parametrize(("fails", "cause", "branches"), [("list", "host", 0), ("get", "host", 1), ("delete", None, 3)])
def test_a_store_that_fails_is_told_on_the_trace_and_never_raised(tmp_path, fails, cause, branches):
    store = Broken(FolderConfig(), BuildContext(tmp_path))
    store.fails = fails
    plain = build_context(tmp_path)
    build = evolve(plain, get=lambda kind: store if kind == "stores" else plain.get(kind))
    trace = play(Script(WHOLE), Summarizing(CONFIG, build))
    assert (trace.verdict.cause, len(trace.branches)) == (cause, branches)
    assert any("the disk is gone" in fault.error for fault in trace.faults)
