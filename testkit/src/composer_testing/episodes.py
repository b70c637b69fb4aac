"""One episode in memory, for tests of contexts: bytes are tokens, a script is the policy, three tools act.

    script = Script([Call("", "write", {"path": "answer.txt", "text": "4"}), "what I know", Call("", "done", {})])
    trace = play(script, MyContext(MyConfig(), build_context(tmp_path)))

A turn of the script is a call, words, or ids as they are; a turn that is an exception is raised. The text of a write
makes a turn as long as a test needs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import Factory, define, evolve, frozen

from composer_core import ToolSpec
from composer_core.columns import Column
from composer_core.context import Plain
from composer_core.episode import run_episode
from composer_core.errors import SamplerError
from composer_core.events import Event
from composer_core.parts import EpisodeParts
from composer_core.protocols import BuildContext, Context
from composer_core.records import NoConfig, resolve
from composer_core.sandbox import Sandboxes
from composer_core.stores import FolderConfig, FolderStore
from composer_core.toolbox import Tool, Toolbox
from composer_core.trees import Tree
from composer_core.types import (
    Call,
    Completion,
    EpisodeRequest,
    GenerateRequest,
    GenerateSettings,
    GradingRef,
    Limits,
    ParsedTurn,
    SlotKey,
    TaskView,
    Trace,
)
from composer_testing.fakes import tools
from composer_testing.fakes.sandbox import MemoryProvider
from composer_testing.fakes.text import END, ByteTokenizer, LineRenderer

TOKENIZER = ByteTokenizer()
RENDERER = LineRenderer(TOKENIZER)
TOOLS = (ToolSpec.of(tools.read), ToolSpec.of(tools.write, effect="write"), ToolSpec.of(tools.done, ends=True))
LOGPROB = -0.25

Say = Call | str | Sequence[int] | BaseException


@define
class Script:
    """A policy that says its turns in order; `asked` holds what it continued, and the requests."""

    turns: Sequence[Say]
    version: int = 0
    """Of the weights it pretends to have."""
    asked: list[tuple[list[int], GenerateRequest]] = Factory(list)

    async def generate(self, ids: Sequence[int], settings: GenerateSettings, request: GenerateRequest) -> Completion:
        """The next turn, cut at `max_tokens`."""
        if len(self.asked) == len(self.turns):
            raise SamplerError("the script is over", found=f"{len(self.turns)} turns, all said")
        turn = self.turns[len(self.asked)]
        self.asked.append((list(ids), request))
        if isinstance(turn, BaseException):
            raise turn
        row = rendered(turn)[: settings.max_tokens]
        stop = "stop" if row[-1:] == [END] else "length"
        logprobs = Column.of("F32", [LOGPROB] * len(row))
        return Completion(Column.of("I32", row), logprobs, ((self.version, len(row)),), stop, self.version)

    async def release(self, session: str) -> None:
        """It keeps nothing."""


def rendered(turn: Say) -> list[int]:
    """The ids of a turn."""
    if isinstance(turn, BaseException):
        raise turn
    if isinstance(turn, Call):
        return RENDERER.render(ParsedTurn("", (turn,)))
    return RENDERER.render(ParsedTurn(turn)) if isinstance(turn, str) else list(turn)


@frozen
class Situation:
    """What else an episode depends on."""

    files: Mapping[str, str] = {"answer.txt": "?"}
    """The workspace."""
    limits: Limits = Limits(turns=1000, tokens=10**7, turn_tokens=400, context_tokens=2000, output_chars=200)
    tools: Sequence[ToolSpec] = TOOLS
    stage: str = "rl"
    emit: Callable[[Event], None] = lambda event: None


def build_context(folder: Path) -> BuildContext:
    """What a context's factory may ask for: tokenizer, renderer, and a store in `folder`."""
    made: Mapping[str, Callable[[], Any]] = {
        "tokenizer": lambda: TOKENIZER,
        "renderers": lambda: RENDERER,
        "stores": lambda: FolderStore(FolderConfig(), BuildContext(folder)),
    }
    return BuildContext(folder, get=lambda kind: made[kind]())


def play(script: Any, context: Context | None = None, situation: Situation | None = None) -> Trace:
    """The trace of one ungraded episode; `script` is a Script, or any sampler."""
    given = situation or Situation()
    tree = Tree.of(given.files)
    parts = EpisodeParts(
        samplers={"policy": script},
        renderer=RENDERER,
        toolbox=Toolbox(
            {spec.name: Tool.of(f"fakes/{spec.name}", spec, resolve(spec.function), None) for spec in given.tools}
        ),
        sandboxes=Sandboxes(MemoryProvider(), "fakes/memory", lambda ref: tree),
        context=context or Plain(NoConfig(), BuildContext(Path())),
        emit=given.emit,
    )
    view = evolve(TaskView("task", "do it", tree.ref), limits=given.limits)
    request = EpisodeRequest(SlotKey(view.id, 0, given.stage), "g", view, GradingRef("", ""), graded=False)
    traces: list[Trace] = []

    async def episode() -> None:  # asyncio.run makes a text of its coroutine's result, which can be a million tokens
        traces.append(await run_episode(request, parts))

    asyncio.run(episode())
    return traces[0]
