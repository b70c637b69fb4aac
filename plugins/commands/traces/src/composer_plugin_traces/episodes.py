"""What all formats have in common: an episode as messages, turns, calls and results, with or without token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import Factory, evolve, frozen

from composer_core.diffs import unified
from composer_core.types import Call, Trace, Turn

INVALID = "invalid"
"""Name that a call without one is given, since every format needs one; its arguments hold the problem."""


@frozen
class Said:
    """One message that is not the policy's."""

    role: str
    """system or user."""
    text: str


@frozen
class Tokens:
    """What a turn was sampled after, and what was sampled."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    logprobs: tuple[float, ...]


@frozen
class Act:
    """One turn of the policy and what came back."""

    text: str
    calls: tuple[Call, ...] = ()
    """Of a call only id, name, arguments and the problem of one that could not be read travel."""
    results: tuple[str, ...] = ()
    """Text for each call, as far as there is one."""
    tokens: Tokens | None = None


@frozen
class Episode:
    """An episode as it travels."""

    id: str
    task: str
    opening: tuple[Said, ...]
    acts: tuple[Act, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    """name, description and parameters of each."""
    outcome: str = ""
    """solved, failed, ungraded or void; "" if unknown."""
    stop: str = ""
    reward: float | None = None
    patch: str = ""
    """A unified diff."""

    @property
    def playable(self) -> bool:
        """Whether every call can be rendered again."""
        return not any(call.problem for act in self.acts for call in act.calls)


def episode_of(trace: Trace, tools: Sequence[Mapping[str, Any]] = ()) -> Episode:
    """A trace as it travels."""
    told = tuple({key: tool[key] for key in ("name", "description", "parameters")} for tool in tools)
    rewards = [score.value * score.weight for score in trace.scores]
    return Episode(
        id=trace.key.episode_id,
        task=trace.key.task_id,
        opening=tuple(Said("system" if one.role == "system" else "user", one.text) for one in trace.opening),
        acts=tuple(_act(turn, trace) for turn in trace.turns),
        tools=told,
        outcome=str(trace.verdict.outcome),
        stop=str(trace.stop),
        reward=sum(rewards) if rewards else None,
        patch=unified(trace.originals, trace.patch, trace.originals_whole),
    )


def _act(turn: Turn, trace: Trace) -> Act:
    branch = trace.branches[turn.branch]
    ids, logprobs = branch.ids.values(), branch.logprobs.values()
    at = slice(turn.start, turn.stop)
    tokens = Tokens(tuple(ids[: turn.start]), tuple(ids[at]), tuple(logprobs[at]))
    results = tuple(result.text for result in turn.results)
    return Act(turn.text, tuple(_unique(turn)), results, tokens)


def _unique(turn: Turn) -> list[Call]:
    """Calls with ids that are unique in the episode: those of a turn count from 0 in every turn."""
    return [evolve(named(call), id=f"t{turn.index}-{call.id}") for call in turn.calls]


def named(call: Call) -> Call:
    """A call that every format can hold: one that was not read is a call of INVALID; a wrong one is what it was."""
    if call.name:
        return Call(call.id, call.name, call.arguments)
    return read_call(call.id, INVALID, {"problem": str(call.problem), "detail": call.detail})


def read_call(id: str, name: str, arguments: Mapping[str, Any]) -> Call:
    """A call as it travels."""
    if name != INVALID or not isinstance(arguments.get("problem"), str):
        return Call(id, name, arguments)
    return Call(id, name, arguments, arguments["problem"], str(arguments.get("detail", "")))


def without_tokens(episode: Episode) -> Episode:
    """The episode as a format without token ids has it."""
    return evolve(episode, acts=tuple(evolve(act, tokens=None) for act in episode.acts))


def as_text(value: Any) -> str:
    """What somebody's column holds, "" where it holds nothing."""
    return "" if value is None else str(value)


def as_number(value: Any) -> float | None:
    """What somebody's column holds, where that is a number."""
    return value if type(value) in (int, float) else None


@frozen
class Found:
    """Something wrong in a document, with its place."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


Checked = list[Found]


@frozen
class Shape:
    """The keys a table may have, and those it must; the smallest schema that says where something is wrong."""

    needed: Mapping[str, type | tuple[type, ...]] = Factory(dict)
    optional: Mapping[str, type | tuple[type, ...]] = Factory(dict)
    others: bool = False
    """Whether keys beside these are right too."""

    def check(self, value: Any, where: str) -> Checked:
        if not isinstance(value, dict):
            return [Found(where, f"must be an object, found {type(value).__name__}")]
        known = {**self.needed, **self.optional}
        found = [Found(f"{where}.{key}", "is missing") for key in self.needed if key not in value]
        found += [] if self.others else [Found(f"{where}.{key}", "is unknown") for key in value if key not in known]
        for key, kind in known.items():
            absent = key not in value or (value[key] is None and key in self.optional)
            if not absent and (not isinstance(value[key], kind) or (isinstance(value[key], bool) and kind is not bool)):
                found.append(Found(f"{where}.{key}", f"must be {_told(kind)}, found {type(value[key]).__name__}"))
        return found


NAMED = Shape({"name": str}, others=True)
"""A tool as it is defined to a model."""


def _told(kind: type | tuple[type, ...]) -> str:
    return " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
