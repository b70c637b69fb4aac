"""Traces made of a few words, for tests of rewards and of whatever else reads what an episode did.

attempt([called("read_file", {"path": "a.py"}, "x = 1")], [called("finish")], patch=Patch((File("a.py", b"x = 2"),)))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from composer_core.trees import File, Patch
from composer_core.types import Call, Message, Outcome, SlotKey, Stop, ToolResult, Trace, Turn, Verdict


@frozen
class Called:
    """A call and what came back from it."""

    call: Call
    result: ToolResult


def called(
    name: str,
    arguments: Mapping[str, Any] | None = None,
    text: str = "",
    *,
    problem: str | None = None,
    detail: str = "",
    **result: Any,
) -> Called:
    """A call that was executed, or with `problem` one that was not; `result` are fields of its `ToolResult`."""
    ok = result.pop("ok", problem is None)
    return Called(
        Call("", name, dict(arguments or {}), problem, detail),
        ToolResult("", name, text or detail, ok, problem, **result),
    )


def turn(*calls: Called, text: str = "", tokens: int = 10, purpose: str = "act") -> Turn:
    """A turn of so many sampled tokens; `attempt` gives it its place."""
    ids = [f"c{number}" for number in range(len(calls))]
    return Turn(
        index=0,
        branch=0,
        start=0,
        stop=tokens,
        text=text,
        calls=tuple(evolve(one.call, id=id) for id, one in zip(ids, calls, strict=True)),
        results=tuple(evolve(one.result, call_id=id) for id, one in zip(ids, calls, strict=True)),
        purpose=purpose,
    )


def attempt(
    *turns: Turn | Sequence[Called],
    solved: bool = True,
    patch: Patch | Mapping[str, str] | None = None,
    originals: Mapping[str, str] | None = None,
    prompt: str = "repair it",
    number: int = 0,
    result_tokens: int = 5,
) -> Trace:
    """An episode of one branch that ended by itself; texts of a patch and of originals may be given by path.

    The results of each turn take `result_tokens` in front of the next. The branch itself is left out: no ids, no
    log-probabilities.
    """
    placed, at = [], 20
    for index, one in enumerate(one if isinstance(one, Turn) else turn(*one) for one in turns):
        placed.append(evolve(one, index=index, start=at, stop=at + one.stop))
        at += one.stop + result_tokens
    return Trace(
        key=SlotKey("task", number),
        group="group",
        opening=(Message("user", prompt),),
        branches=(),
        turns=tuple(placed),
        stop=Stop.FINISHED,
        verdict=Verdict(Outcome.SOLVED if solved else Outcome.FAILED),
        patch=patch if isinstance(patch, Patch) else Patch(tuple(_files(patch or {}))),
        originals=tuple(_files(originals or {})),
    )


def _files(texts: Mapping[str, str]) -> Iterable[File]:
    return (File(path, text.encode()) for path, text in texts.items())
