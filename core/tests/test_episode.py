"""One episode: exact ids, masks, stops, barriers, void causes. On fakes; the only place that samples."""

import asyncio
from pathlib import Path
from typing import ClassVar

import pytest
from attrs import evolve

from composer_core import ToolContext, ToolSpec
from composer_core.columns import Column
from composer_core.context import Plain
from composer_core.episode import run_episode
from composer_core.errors import GradingError, ToolError
from composer_core.executor import result_of
from composer_core.parts import EpisodeParts
from composer_core.protocols import Ask, BuildContext, Continue, NewBranch
from composer_core.records import NoConfig, RewardSpec
from composer_core.sandbox import Sandboxes
from composer_core.scoring import Reward
from composer_core.toolbox import Tool, Toolbox
from composer_core.traces import decode, encode, readable
from composer_core.trees import SCRATCH
from composer_core.types import (
    Call,
    Completion,
    EpisodeRequest,
    GradingRef,
    Limits,
    Message,
    Outcome,
    ParsedTurn,
    Sampling,
    SlotKey,
    Stop,
    ToolResult,
)
from composer_testing.fakes import tools
from composer_testing.fakes.config import TasksConfig
from composer_testing.fakes.sandbox import MemorySandbox
from composer_testing.fakes.tasks import Sums, checked, sandboxes
from composer_testing.fakes.text import END, ByteTokenizer, LineRenderer

RENDERER = LineRenderer(ByteTokenizer())
TASKS = Sums(TasksConfig())
WRITE = Call("c0", "write", {"path": "answer.txt", "text": "0"})
DONE = Call("c0", "done", {})
REFUSED = Call("c0", "read", {"path": "no/such/file"})


class Script:
    """Emits given turns (calls, text, or raw ids) in order and remembers what it was asked."""

    def __init__(self, *turns):
        self.turns, self.asked, self.released = list(turns), [], []

    async def generate(self, ids, settings, request):
        self.asked.append((list(ids), settings, request))
        turn = self.turns[len(self.asked) - 1]
        if isinstance(turn, Exception):
            raise turn
        if isinstance(turn, Call):
            turn = ParsedTurn("", (turn,))
        emitted = RENDERER.render(turn) if isinstance(turn, ParsedTurn) else list(turn)
        emitted = emitted[: settings.max_tokens]
        stop = "stop" if emitted[-1] == END else "length"
        size = len(emitted)
        return Completion(Column.of("I32", emitted), Column.of("F32", [-0.25] * size), ((3, size),), stop, 3)

    async def release(self, session):
        self.released.append(session)


def toolbox(*specs):
    specs = specs or (
        ToolSpec.of(tools.read),
        ToolSpec.of(tools.write, effect="write"),
        ToolSpec.of(tools.done, ends=True),
    )
    return Toolbox({spec.name: Tool.of(f"fakes/{spec.name}", spec, spec.function, None) for spec in specs})


def run(script, *, limits=None, context=None, box=None, reward=checked, request=None, renderer=RENDERER, boxes=None):
    task = TASKS.tasks("train")[0]
    spec = RewardSpec(name="checked", function=reward, outcome=True)
    parts = EpisodeParts(
        samplers={"policy": script, "teacher": script},
        renderer=renderer,
        toolbox=box or toolbox(),
        sandboxes=boxes or Sandboxes(sandboxes(None, BuildContext(Path())), "fakes/memory", TASKS.tree),
        context=context or Plain(NoConfig(), BuildContext(Path())),
        rewards=(Reward("fakes/checked", "1", spec, reward, None, 1.0),),
        resolve_grading=TASKS.grading,
        ids={"samplers/policy": "good/sampler", "samplers/teacher": "third/teacher", "renderers": "third/renderer"},
    )
    view = evolve(task.view, limits=limits or Limits())
    order = EpisodeRequest(SlotKey(task.id, 0), "g", view, GradingRef("fakes/sums", task.id), **(request or {}))
    return asyncio.run(run_episode(order, parts))


def test_the_branch_is_exactly_prompt_samples_and_results():
    script = Script(WRITE, DONE)
    trace = run(script)
    (branch,) = trace.branches
    ids = list(branch.ids.values())
    sampled = list(branch.sampled.values())
    assert [i for i, flag in zip(ids, sampled, strict=True) if flag] == [
        *RENDERER.render(ParsedTurn("", (WRITE,))),
        *RENDERER.render(ParsedTurn("", (DONE,))),
    ]
    second_prompt = script.asked[1][0]
    assert ids[: len(second_prompt)] == second_prompt, "history is appended to, never rendered again"
    assert trace.stop is Stop.FINISHED
    assert [value for value, _ in branch.versions if value >= 0] == [3, 3]
    (session,) = script.released
    assert {asked.session for _, _, asked in script.asked} == {session}


def test_an_attempt_that_is_made_again_never_shares_a_session_with_one_that_was_lost():
    lost, again = Script(WRITE, DONE), Script(WRITE, DONE)
    for script in (lost, again):
        run(script)
    assert lost.asked[0][2].noise == again.asked[0][2].noise
    assert lost.asked[0][2].session != again.asked[0][2].session


class Routed(Script):
    """Returns for each forwarded token two layers of three experts; `extra` tokens too many."""

    def __init__(self, *turns, extra=0):
        super().__init__(*turns)
        self.extra = extra

    async def generate(self, ids, settings, request):
        completion = await super().generate(ids, settings, request)
        if request.routes_from is None:
            return completion
        asked = range(request.routes_from, len(ids) + len(completion.ids) - 1 + self.extra)
        data = bytes(token % 251 for token in asked for _ in range(6))
        return evolve(completion, routes=Column("U8", (len(asked), 2, 3), data))


def test_expert_ids_are_asked_for_once_and_stand_at_their_tokens():
    script = Routed(WRITE, DONE)
    (branch,) = run(script, request={"sampling": Sampling(routes=True)}).branches
    first, second = (asked.routes_from for _, _, asked in script.asked)
    assert first == 0
    assert second == len(script.asked[0][0]) + len(RENDERER.render(ParsedTurn("", (WRITE,)))) - 1
    assert branch.routes.shape == (len(branch) - 1, 2, 3), "the last sampled id was never forwarded"
    assert branch.routes.data == bytes(token % 251 for token in range(len(branch) - 1) for _ in range(6))


def test_expert_ids_are_not_asked_for_unless_the_request_says_so():
    script = Routed(WRITE, DONE)
    (branch,) = run(script).branches
    assert branch.routes is None and script.asked[0][2].routes_from is None


@pytest.mark.parametrize("extra", [-1, 1])
def test_expert_ids_of_too_few_or_too_many_tokens_make_the_episode_void(extra):
    trace = run(Routed(WRITE, DONE, extra=extra), request={"sampling": Sampling(routes=True)})
    assert (trace.verdict.outcome, trace.verdict.cause) == (Outcome.VOID, "sampler")
    assert "expert ids" in trace.faults[0].error


def test_a_sampler_that_cannot_let_go_is_a_fault_on_a_trace_that_counts():
    class Stuck(Script):
        async def release(self, session):
            raise RuntimeError("cache is gone")

    trace = run(Stuck(WRITE, DONE))
    assert trace.verdict.valid and trace.branches
    (fault,) = trace.faults
    assert fault.plugin == "good/sampler" and "cache is gone" in fault.error


def test_positions_and_noise_go_on_over_turns():
    script = Script(WRITE, DONE)
    run(script)
    first, second = (request for _, _, request in script.asked)
    assert first.noise == second.noise
    assert second.position == len(RENDERER.render(ParsedTurn("", (WRITE,))))


def test_the_verdict_comes_from_a_fresh_fork():
    assert run(Script(WRITE, DONE)).verdict.outcome is Outcome.SOLVED
    wrong = evolve(WRITE, arguments={"path": "answer.txt", "text": "5"})
    assert run(Script(wrong, DONE)).verdict.outcome is Outcome.FAILED


def test_a_missing_end_token_is_appended_with_mask_zero():
    cut = RENDERER.render(ParsedTurn("", (WRITE,)))[:-1]
    script = Script(cut, DONE)
    trace = run(script, limits=Limits(turn_tokens=len(cut)))
    start = trace.turns[0].stop
    branch = trace.branches[0]
    assert branch.ids.values()[start] == END
    assert branch.sampled.values()[start] == 0


@pytest.mark.parametrize(
    ("turns", "limits", "stop"),
    [
        ([ParsedTurn("no call")], Limits(), Stop.NO_CALL),
        ([WRITE, WRITE, WRITE], Limits(turns=2), Stop.TURNS),
        ([b"words without end"], Limits(turn_tokens=5), Stop.TOKENS),
        ([WRITE, WRITE, WRITE], Limits(tokens=80), Stop.TOKENS),
        ([WRITE, WRITE, WRITE], Limits(context_tokens=110), Stop.CONTEXT),
    ],
)
def test_every_limit_has_its_stop_and_is_graded_as_it_stands(turns, limits, stop):
    trace = run(Script(*turns), limits=limits)
    assert trace.stop is stop
    assert trace.verdict.valid
    assert len(trace.branches[0]) <= limits.context_tokens
    assert trace.sampled_tokens() <= limits.tokens


def test_the_wall_clock_limit_ends_the_episode_gradable():
    class Slow(Script):
        async def generate(self, ids, settings, request):
            if self.asked:
                await asyncio.sleep(60)
            return await super().generate(ids, settings, request)

    trace = run(Slow(WRITE), limits=Limits(wall_s=0.05))
    assert trace.stop is Stop.TIME
    assert trace.verdict.outcome is Outcome.SOLVED


@pytest.mark.parametrize(
    ("call", "problem", "words"),
    [
        (Call("c0", "raed", {}), "unknown_tool", "did you mean 'read'"),
        (Call("c0", "read", {"pth": "x"}), "bad_arguments", "pth"),
        (Call("c0", "read", {"path": "none.txt"}), "tool", "none.txt"),
    ],
)
def test_a_bad_call_is_answered_and_never_dropped(call, problem, words):
    trace = run(Script(call, DONE))
    result = trace.turns[0].results[0]
    assert (result.ok, result.problem) == (False, problem)
    assert words in result.text


def test_reads_run_together_and_writes_are_barriers():
    running, widest, order = set(), [], []

    async def look(name: str) -> str:
        """Read."""
        running.add(name)
        await asyncio.sleep(0.01)
        widest.append(len(running))
        running.discard(name)
        order.append(name)
        return name

    async def change(name: str) -> str:
        """Write."""
        assert not running, "a write waits for the reads before it"
        order.append(name)
        return name

    box = toolbox(ToolSpec.of(look), ToolSpec.of(change, effect="write"), ToolSpec.of(tools.done, ends=True))
    calls = [
        Call("", "look", {"name": "a"}),
        Call("", "look", {"name": "b"}),
        Call("", "change", {"name": "c"}),
        Call("", "look", {"name": "d"}),
    ]
    trace = run(Script(ParsedTurn("", tuple(calls)), DONE), box=box)
    assert max(widest) == 2
    assert order[2:] == ["c", "d"]
    assert [result.text for result in trace.turns[0].results] == ["a", "b", "c", "d"], "results come in call order"


def test_a_tool_that_breaks_is_a_fault_and_the_episode_goes_on():
    def broken() -> str:
        """Break."""
        raise ZeroDivisionError("inside")

    def picky() -> str:
        """Refuse."""
        raise ToolError("not like this")

    box = toolbox(ToolSpec.of(broken), ToolSpec.of(picky), ToolSpec.of(tools.done, ends=True))
    trace = run(Script(Call("", "broken", {}), Call("", "picky", {}), DONE), box=box)
    assert trace.stop is Stop.FINISHED
    assert [result.problem for result in trace.results()] == ["fault", "tool", None]
    assert [fault.plugin for fault in trace.faults] == ["fakes/broken"]
    assert trace.results()[1].text == "not like this"


def test_a_sandbox_that_breaks_below_a_tool_makes_the_episode_void_and_is_blamed(monkeypatch):
    async def broken(self, path, limit_bytes):
        raise ValueError("inside")

    monkeypatch.setattr(MemorySandbox, "read", broken)
    trace = run(Script(Call("", "read", {"path": "answer.txt"}), DONE))
    assert (trace.verdict.outcome, trace.verdict.cause) == (Outcome.VOID, "sandbox")
    assert [(fault.plugin, "ValueError: inside" in fault.error) for fault in trace.faults] == [("fakes/memory", True)]


def test_long_results_are_cut_and_say_so():
    def flood() -> str:
        """Print."""
        return "x" * 500

    box = toolbox(ToolSpec.of(flood), ToolSpec.of(tools.done, ends=True))
    (result, _) = run(Script(Call("", "flood", {}), DONE), box=box, limits=Limits(output_chars=100)).results()
    assert len(result.text) <= 100
    assert result.cut_chars == 500 - result.text.count("x")
    assert f"\n... {result.cut_chars} characters cut ...\n" in result.text


def test_the_context_tool_argument_reaches_the_sandbox_and_state():
    seen = []

    async def peek(context: ToolContext) -> str:
        """Look."""
        context.state["count"] = context.state.get("count", 0) + 1
        seen.append((context.state["count"], await context.sandbox.read("answer.txt")))
        return ""

    box = toolbox(ToolSpec.of(peek), ToolSpec.of(tools.done, ends=True))
    run(Script(Call("", "peek", {}), Call("", "peek", {}), DONE), box=box)
    assert seen == [(1, b"?"), (2, b"?")]


def test_a_broken_sampler_makes_the_episode_void():
    trace = run(Script(WRITE, OSError("gone")))
    assert (trace.verdict.outcome, trace.verdict.cause) == (Outcome.VOID, "sampler")
    assert "OSError: gone" in trace.faults[0].error
    assert trace.sampled_tokens() > 0, "what happened before is kept"


def test_a_log_probability_that_is_no_number_makes_the_episode_void():
    class Bad(Script):
        async def generate(self, ids, settings, request):
            found = await super().generate(ids, settings, request)
            return evolve(found, logprobs=Column.of("F32", [float("nan")] * len(found.ids)))

    assert run(Bad(WRITE)).verdict.cause == "sampler"


def test_columns_of_another_type_are_the_samplers_fault_and_never_reinterpreted():
    class Wide(Script):
        async def generate(self, *args):
            completion = await super().generate(*args)
            return evolve(completion, logprobs=Column.of("F64", completion.logprobs.values()))

    trace = run(Wide(WRITE))
    assert trace.verdict.cause == "sampler"
    assert len(trace.branches[0].ids) == len(trace.branches[0].logprobs)


def test_a_grader_that_fails_makes_the_episode_void_and_never_failed():
    async def broken(patch, grading):
        raise GradingError("no disk")

    trace = run(Script(WRITE, DONE), reward=broken)
    assert (trace.verdict.outcome, trace.verdict.cause) == (Outcome.VOID, "grader")


def test_blank_observations_hide_every_result():
    trace = run(Script(Call("", "read", {"path": "answer.txt"}), DONE), request={"observations": "blank"})
    assert trace.turns[0].results[0].text == "."


class Asking:
    """Never has enough."""

    def next(self, view):
        return Ask(Message("user", "and?"), turn_tokens=20)


@pytest.mark.parametrize(
    ("limits", "stop"),
    [
        (Limits(turns=3), Stop.TURNS),
        (Limits(turns=99, tokens=30), Stop.TOKENS),
        (Limits(turns=99, context_tokens=120), Stop.CONTEXT),
    ],
)
def test_a_context_that_never_stops_asking_meets_the_limits(limits, stop):
    script = Script(*[ParsedTurn("more and more")] * 99)
    trace = run(script, context=Asking(), limits=limits)
    assert trace.stop is stop
    assert trace.verdict.outcome is Outcome.FAILED
    assert {turn.purpose for turn in trace.turns} == {"summary"}
    assert all(settings.max_tokens > 0 for _, settings, _ in script.asked)


class Unparsing(LineRenderer):
    def parse(self, ids):
        raise ZeroDivisionError("in a renderer")


def test_a_fault_names_the_component_that_raised():
    (fault,) = run(Script(DONE), renderer=Unparsing(ByteTokenizer())).faults
    assert (fault.plugin, "ZeroDivisionError" in fault.error) == ("third/renderer", True)
    (fault,) = run(Script(RuntimeError("down")), request={"sampler": "teacher"}).faults
    assert fault.plugin == "third/teacher"


class Summarizing:
    """Asks once for a summary, then opens a branch from it."""

    def __init__(self):
        self.asked = False

    def next(self, view):
        turns = view.trace().turns
        if len(turns) == 1:
            return Ask(Message("user", "sum up"), turn_tokens=20)
        if len(turns) == 2 and len(view.trace().branches) == 1:
            branch = view.trace().branches[0]
            ids = branch.ids.values()[turns[1].start : turns[1].stop]
            return NewBranch((Message("user", view.task.prompt), Message("summary", "", Column.of("I32", ids))))
        return Continue()


def test_a_summary_opens_a_branch_and_every_sampled_token_is_trained_once():
    script = Script(WRITE, ParsedTurn("wrote it"), DONE)
    trace = run(script, context=Summarizing())
    assert [turn.purpose for turn in trace.turns] == ["act", "summary", "act"]
    assert [branch.parent for branch in trace.branches] == [None, 0]
    assert sum(sum(branch.sampled.values()) for branch in trace.branches) == trace.sampled_tokens()
    summary = list(trace.branches[0].ids.values()[trace.turns[1].start : trace.turns[1].stop])
    ids = list(trace.branches[1].ids.values())
    start = next(i for i in range(len(ids)) if ids[i : i + len(summary)] == summary)
    assert not any(trace.branches[1].sampled.values()[start : start + len(summary)]), "spliced, as context"
    assert len(script.released) == 2


def test_what_the_run_allows_is_reached_from_the_episodes_sandbox_and_never_from_the_grading_room(monkeypatch):
    provider = sandboxes(None, BuildContext(Path()))
    boxes = Sandboxes(provider, "fakes/memory", TASKS.tree, allow=("example.com:443",))
    assert run(Script(WRITE, DONE), boxes=boxes).verdict.outcome is Outcome.VOID, "its sandboxes have no networks"
    allowed = {}

    async def set_network(self, allow):
        allowed[self.id] = tuple(allow)

    monkeypatch.setattr(MemorySandbox, "set_network", set_network, raising=False)
    before = boxes.created
    assert run(Script(WRITE, DONE), boxes=boxes).verdict.outcome is Outcome.SOLVED
    assert boxes.created - before == 2, "one to act in, one to grade in"
    assert list(allowed.values()) == [("example.com:443",)]


# --- calls that were repaired


class Repairing:
    """The lines of the fakes, whose calls a renderer had to mend."""

    def __init__(self, repair):
        self.repair = repair

    def __getattr__(self, name):
        return getattr(RENDERER, name)

    def parse(self, ids):
        turn = RENDERER.parse(ids)
        return evolve(turn, calls=tuple(evolve(call, repair=self.repair) for call in turn.calls))


def test_calls_that_a_tool_refused_are_counted_and_are_no_broken_ones():
    refused = result_of(run(Script(REFUSED, DONE))).stats
    assert (refused["refused_calls"], refused["bad_calls"]) == (1, 0)


def test_a_repaired_call_is_executed_trained_as_it_was_sampled_and_counted():
    plain, mended = (run(Script(WRITE, DONE), renderer=one) for one in (RENDERER, Repairing("a brace was missing")))
    assert mended.branches == plain.branches and mended.verdict.solved
    assert (result_of(plain).stats["repaired_calls"], result_of(mended).stats["repaired_calls"]) == (0, 2)
    assert result_of(mended).stats["bad_calls"] == 0
    assert decode(encode(mended)) == mended and "[repaired: a brace was missing]" in readable(mended)


def test_a_strict_run_refuses_a_repaired_call_and_says_what_was_wrong():
    box = evolve(toolbox(), strict=True)
    trace = run(Script(WRITE, DONE), renderer=Repairing("a brace was missing"), box=box, limits=Limits(turns=2))
    assert [call.problem for call in trace.calls()] == ["malformed", "malformed"]
    assert trace.results()[0].text == "the call is not well-formed: a brace was missing"
    assert not trace.verdict.solved


def test_what_tools_leave_in_the_scratch_folder_is_no_part_of_the_patch():
    notes = evolve(WRITE, arguments={"path": ".agent/notes.txt", "text": "x"})
    trace = run(Script(notes, WRITE, DONE))
    assert trace.patch.touched() == run(Script(WRITE, DONE)).patch.touched()


class Turning:
    """Opens a branch after every turn, asks before the second; keeps what it saw and where closed branches go."""

    def __init__(self, trained=True):
        self.views, self.kept, self.trained = [], {}, trained

    def next(self, view):
        segment = view.segment()
        self.views.append((view.branch, segment, view.trace()))
        if not segment.turns:
            return Continue()
        if view.branch == 0 and segment.turns[-1].purpose == "act":
            return Ask(Message("user", "and?"), 20, self.trained)
        return NewBranch(segment.opening, {f"{SCRATCH}/past.txt": b"so far"})

    def segments(self, episode_id):
        return self.kept.setdefault(episode_id, {})


def test_a_context_can_look_at_the_open_branch_alone():
    context = Turning()
    trace = run(Script(WRITE, ParsedTurn("well"), WRITE, DONE), context=context)
    assert len(trace.branches) == 3
    for number, segment, whole in context.views:
        assert len(segment.branches) == 1 and len(whole.branches) == number + 1
        assert segment.branches[0] == whole.branches[-1]
        assert segment.turns == tuple(turn for turn in whole.turns if turn.branch == number)


def test_closed_branches_are_put_where_the_context_keeps_them_and_taken_away_at_the_end():
    class Seen(dict):
        put: ClassVar = []

        def __setitem__(self, number, segment):
            self.put.append((number, segment))
            super().__setitem__(number, segment)

    context = Turning()
    context.segments = lambda episode_id: context.kept.setdefault(episode_id, Seen())
    trace = run(Script(WRITE, ParsedTurn("well"), WRITE, DONE), context=context)
    assert [(number, segment.branches) for number, segment in Seen.put] == [
        (0, trace.branches[:1]), (1, trace.branches[1:2])
    ]  # fmt: skip
    assert context.kept == {f"rl-{trace.key.task_id}-0": {}}


def test_files_that_a_context_lays_are_read_by_the_agent_and_are_no_part_of_the_patch():
    look = Call("c0", "read", {"path": f"{SCRATCH}/past.txt"})
    trace = run(Script(WRITE, ParsedTurn("well"), look, DONE), context=Turning())
    assert trace.turns[2].results[0].text == "so far"
    assert trace.patch.touched() == ["answer.txt"], "the agent's own write"


def test_an_answer_can_be_asked_for_untrained():
    trace = run(Script(WRITE, ParsedTurn("well"), DONE), context=Turning(trained=False))
    acts = sum(turn.stop - turn.start for turn in trace.turns if turn.purpose == "act")
    assert sum(sum(branch.sampled.values()) for branch in trace.branches) == acts < trace.sampled_tokens()


def test_a_request_closes_the_turn_that_results_have_begun():
    script = Script(WRITE, ParsedTurn("well"), DONE)
    run(script, context=Turning())
    (acted, _, _), (asked, _, _) = script.asked[:2]
    after = asked[len(acted) + len(RENDERER.render(ParsedTurn("", (WRITE,)))) :]
    result, request = RENDERER.results([ToolResult("", "write", "written")], True), Message("user", "and?")
    assert after == [*result, END, *RENDERER.request(request, True)]


def test_what_is_said_of_a_call_that_cannot_be_executed_is_cut_like_any_result():
    unknown = Call("c0", "x" * 200, {})
    result = run(Script(unknown, DONE), limits=Limits(output_chars=60)).turns[0].results[0]
    assert result.problem == "unknown_tool"
    assert len(result.text) <= 60 < result.cut_chars
