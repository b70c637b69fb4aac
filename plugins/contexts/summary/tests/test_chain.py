"""Episodes of several windows: a tree of exact ids, summaries on summaries, kept state, masks where asked for."""

from __future__ import annotations

from itertools import pairwise

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from composer_core import ToolContext, ToolSpec
from composer_core.batches import sequences_of
from composer_core.types import Call, Stop
from composer_plugin_summary.check import needs
from composer_plugin_summary.config import SummaryConfig, TruncateConfig
from composer_plugin_summary.summarize import Summarizing
from composer_plugin_summary.truncate import Truncating
from composer_testing import episodes
from composer_testing.episodes import RENDERER, TOOLS, Script, Situation, build_context, rendered

CONFIG = SummaryConfig(trigger_tokens=300, summary_tokens=60, think_tokens=40, state=())
LIMITS = Situation().limits
READ, DONE = Call("c0", "read", {"path": "answer.txt"}), Call("c0", "done", {})


def write(text):
    return Call("c0", "write", {"path": "answer.txt", "text": text})


@pytest.fixture
def play(tmp_path):
    """`play(turns, config, **situation)`: the trace of an episode, and its script."""

    def run(turns, config=CONFIG, **situation):
        script = Script(turns)
        kind = Truncating if isinstance(config, TruncateConfig) else Summarizing
        return episodes.play(script, kind(config, build_context(tmp_path)), Situation(**situation)), script

    return run


PROMPT = "do it"
LOOK = write("x" * 250)
"""A turn that fills a branch to its trigger."""
ONE, TWO = "hm</think>first", "hm</think>second"


def flat(trace, name):
    return [list(getattr(branch, name).values()) for branch in trace.branches]


@pytest.fixture
def chain(play):
    return play([LOOK, ONE, LOOK, TWO, DONE])


def test_a_summary_opens_a_branch_and_summaries_build_on_summaries(chain):
    trace, _ = chain
    assert trace.stop is Stop.FINISHED
    assert [branch.parent for branch in trace.branches] == [None, 0, 1]
    assert [(turn.branch, turn.purpose) for turn in trace.turns] == [
        (0, "act"), (0, "summary"), (1, "act"), (1, "summary"), (2, "act")
    ]  # fmt: skip
    assert [turn.index for turn in trace.turns] == [0, 1, 2, 3, 4]


def test_each_row_is_what_the_policy_was_asked_with_and_what_it_sampled(chain):
    trace, script = chain
    for turn, (asked, _), said in zip(trace.turns, script.asked, script.turns, strict=True):
        ids = trace.branches[turn.branch].ids.values().tolist()
        assert ids[: turn.start] == asked
        assert ids[turn.start : turn.stop] == rendered(said)


def test_the_request_follows_the_whole_row_and_a_branch_begins_with_the_openings_prefix(chain):
    trace, script = chain
    rows = [asked for asked, _ in script.asked]
    assert rows[1][: len(rows[0])] == rows[0], "what is cached stays valid"
    prompt = RENDERER.open(trace.opening, [])[:-1]
    assert all(rows[at][: len(prompt)] == prompt for at in (0, 2, 4))
    sessions = [request.session for _, request in script.asked]
    assert sessions[0] == sessions[1] != sessions[2] == sessions[3] != sessions[4]


def test_every_branch_opens_with_the_schemas_of_the_tools(play, monkeypatch):
    opened = []
    plain = type(RENDERER).open
    monkeypatch.setattr(
        type(RENDERER),
        "open",
        lambda renderer, messages, tools: opened.append(tools) or plain(renderer, messages, tools),
    )
    play([LOOK, ONE, LOOK, TWO, DONE])
    assert [[schema.name for schema in tools] for tools in opened] == [["read", "write", "done"]] * 3


def test_what_is_carried_over_is_the_summary_without_its_thought(chain):
    trace, _ = chain
    for branch, words in ((1, "first"), (2, "second")):
        first = min(turn.start for turn in trace.turns if turn.branch == branch)
        opening = trace.branches[branch].ids.values()[:first].tolist()
        assert opening == [*RENDERER.open(trace.opening, [])[:-1], *RENDERER.open((), [])[:-1], *rendered(words), 257]


def test_every_sampled_token_is_trained_once_summaries_and_thoughts_included(chain):
    trace, script = chain
    trained = [
        token
        for ids, flags in zip(flat(trace, "ids"), flat(trace, "sampled"), strict=True)
        for token, flag in zip(ids, flags, strict=True)
        if flag
    ]
    assert trained == [token for said in script.turns for token in rendered(said)]
    assert [row.segment for row in sequences_of(trace, 0, 1.0)] == [0, 1, 2]


def test_a_stage_can_leave_summaries_untrained(play):
    config = evolve(CONFIG, untrained_in=("rl",))
    masked, _ = play([LOOK, ONE, DONE], config)
    acts = [turn for turn in masked.turns if turn.purpose == "act"]
    assert sum(map(sum, flat(masked, "sampled"))) == sum(turn.stop - turn.start for turn in acts)
    imitated, _ = play([LOOK, ONE, DONE], config, stage="sft")
    assert sum(map(sum, flat(imitated, "sampled"))) == imitated.sampled_tokens()


def test_there_is_no_limit_to_windows_but_those_of_the_task(play):
    trace, _ = play([LOOK, ONE] * 40, limits=evolve(LIMITS, turns=80))
    assert trace.stop is Stop.TURNS
    assert [turn.purpose for turn in trace.turns] == ["act", "summary"] * 40


def test_a_summary_that_nothing_came_of_leaves_prompt_and_state(play):
    trace, _ = play([LOOK, "hm</think>", DONE], evolve(CONFIG, state=("count",)))
    opening = trace.branches[1].ids.values()[: trace.turns[2].start].tolist()
    assert RENDERER.parse(opening).text == f"{PROMPT}Windows filled so far: 1"


def test_a_branch_that_begins_at_its_trigger_takes_a_turn_all_the_same(play):
    trace, _ = play([LOOK, "y" * 60, READ, "z", DONE], evolve(CONFIG, trigger_tokens=40, summary_tokens=100))
    assert [turn.purpose for turn in trace.turns] == ["act", "summary", "act", "summary", "act"]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(-60, 180), max_size=12),
    trigger=st.integers(120, 250),
    summary_tokens=st.integers(1, 60),
    think_tokens=st.integers(0, 40),
    mark=st.sampled_from(["x", "</think>"]),
)
def test_whatever_a_policy_says_it_fits_and_each_of_its_tokens_is_in_one_branch_and_trained_once(
    play, lengths, trigger, summary_tokens, think_tokens, mark
):
    config = SummaryConfig(
        trigger_tokens=trigger,
        summary_tokens=summary_tokens,
        think_tokens=think_tokens,
        tokens_per_char=1,
        frame_tokens=3,
        state=(),
    )
    limits = evolve(LIMITS, turn_tokens=300, output_chars=50)
    limits = evolve(limits, context_tokens=sum(needs(config, limits).values()))
    says = [write((mark * length)[:length]) if length >= 0 else READ for length in lengths]
    trace, script = play([*says, DONE, DONE], config, limits=limits)
    assert trace.stop is Stop.FINISHED, "in the smallest window that `check` lets pass"
    for turn, (asked, _) in zip(trace.turns, script.asked, strict=True):
        ids, flags = (getattr(trace.branches[turn.branch], name).values() for name in ("ids", "sampled"))
        assert ids[: turn.start].tolist() == asked
        assert set(flags[turn.start : turn.stop]) == {1}
    assert sum(map(sum, flat(trace, "sampled"))) == trace.sampled_tokens()
    assert [branch.parent for branch in trace.branches] == [None, *range(len(trace.branches) - 1)]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=st.lists(st.integers(0, 200), max_size=12), trigger=st.integers(160, 250))
def test_turns_that_are_told_again_fit_into_the_smallest_window_that_check_lets_pass(play, lengths, trigger):
    config = TruncateConfig(trigger_tokens=trigger, keep_turns=1, tokens_per_char=1, frame_tokens=3, state=())
    limits = evolve(LIMITS, turn_tokens=300, output_chars=50)
    limits = evolve(limits, context_tokens=sum(needs(config, limits).values()))
    says = [write("x" * min(length, trigger - 120)) if length else READ for length in lengths]
    trace, _ = play([*says, DONE], config, limits=limits)
    assert trace.stop is Stop.FINISHED


# --- kept state -----------------------------------------------------------------------------------------------------


def note(context: ToolContext, text: str) -> str:
    """Write a to-do.

    Args:
        text: what is to be done
    """
    done = {"id": "1", "content": "look", "status": "completed"}
    context.state["todos"] = [done, {"id": "2", "content": text, "status": "pending"}]
    return "noted"


def test_a_branch_is_told_how_many_were_filled_what_is_open_and_where_the_rest_is(play):
    config = evolve(CONFIG, state=("count", "todos", "history"))
    do = Call("c0", "note", {"text": "x" * 250})
    trace, _ = play([do, ONE, LOOK, TWO, DONE], config, tools=(*TOOLS, ToolSpec.of(note, effect="write")))
    text = RENDERER.parse(trace.branches[2].ids.values()[: trace.turns[4].start]).text
    told = f"Windows filled so far: 2Open to-dos:\n- 2 {'x' * 250} (pending)\nEarlier work can be searched: .agent"
    assert told in text.replace("2\nOpen", "2Open")
    assert "look" not in text


def test_closed_branches_can_be_read_and_are_no_part_of_the_patch(play):
    config = evolve(CONFIG, state=("history",))
    past = Call("c0", "read", {"path": ".agent/history/0001.txt"})
    trace, _ = play([LOOK, ONE, LOOK, TWO, past, DONE], config, limits=evolve(LIMITS, output_chars=80))
    assert trace.turns[4].results[0].text.startswith('> write {"path": "answer.t')
    assert trace.patch.touched() == ["answer.txt"]


def test_what_the_agent_put_in_the_way_of_the_history_is_its_own_doing(play):
    config = evolve(CONFIG, state=("history",))
    block = Call("c0", "write", {"path": ".agent", "text": "x" * 250})
    trace, _ = play([block, ONE, DONE], config)
    assert (trace.stop, trace.verdict.cause) == (Stop.FINISHED, None)


# --- truncation -----------------------------------------------------------------------------------------------------


def test_truncation_keeps_the_prompt_and_the_latest_turns_and_asks_nobody(play):
    config = TruncateConfig(trigger_tokens=300, keep_turns=1, state=())
    trace, _ = play([READ, write("x" * 200), DONE], config)
    assert {turn.purpose for turn in trace.turns} == {"act"}
    assert len(trace.branches) == 2
    start = next(turn.start for turn in trace.turns if turn.branch == 1)
    text = RENDERER.parse(trace.branches[1].ids.values()[:start]).text
    assert text.startswith(PROMPT)
    assert f'> write {{"path": "answer.txt", "text": "{"x" * 200}"}}\nwritten' in text
    assert "> read" not in text


def test_limits_meet_a_chain_like_any_episode(play):
    trace, _ = play([LOOK, ONE, LOOK, TWO], limits=evolve(LIMITS, tokens=320))
    assert (trace.stop, trace.sampled_tokens()) == (Stop.TOKENS, 320)
    trace, _ = play([LOOK, ONE], limits=evolve(LIMITS, context_tokens=410))
    assert (trace.stop, trace.turns[-1].purpose) == (Stop.CONTEXT, "act")


def test_turns_lie_in_their_branches_in_order(chain):
    trace, _ = chain
    for before, after in pairwise(trace.turns):
        assert (before.branch, before.stop) < (after.branch, after.start) or before.branch < after.branch
