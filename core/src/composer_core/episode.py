"""One episode, from a request to a graded trace: create the sandbox, act in it, take the patch out, grade.

The turns themselves are `acting`'s. When they have stopped, the declared artifact, a patch, is taken out, the sandbox
is destroyed, and rewards grade the patch in a fresh fork. Whatever breaks on the host's side becomes a void verdict on
the trace, never an exception of `run_episode`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

from attrs import Factory, evolve, frozen

from composer_core.acting import Attempt
from composer_core.errors import ComposerError, PluginFault, SamplerError, SandboxError, boundary
from composer_core.events import EpisodeStarted, Event
from composer_core.grading import open_room
from composer_core.harness import Harness
from composer_core.protocols import Context, Renderer, Sampler
from composer_core.sandbox import Sandboxes
from composer_core.scoring import Reward, total, verdict_of
from composer_core.toolbox import Toolbox
from composer_core.types import EpisodeRequest, Fault, Grading, GradingRef, Outcome, Score, Stop, Trace, Turn, Verdict

__all__ = [
    "EpisodeParts",
    "fault_of",
    "run_episode",
]


@frozen
class EpisodeParts:
    """What a node offers to the episodes it runs."""

    samplers: Mapping[str, Sampler]
    renderer: Renderer
    toolbox: Toolbox
    sandboxes: Sandboxes
    context: Context
    rewards: tuple[Reward, ...] = ()
    resolve_grading: Callable[[GradingRef], Grading] | None = None
    emit: Callable[[Event], None] = lambda event: None
    deterministic: bool = False
    harness: Harness = Factory(Harness)
    """What the policy sees the world through; its stamp goes onto every trace."""
    watch: Callable[[Turn], None] = lambda turn: None
    """Is shown each turn as it ends, words and results included; for a person who looks on."""
    ids: Mapping[str, str] = Factory(dict)
    """Whom to blame: component ids by kind, and by "samplers/NAME"."""

    def blame(self, kind: str, name: str = "") -> AbstractContextManager[None]:
        """The edge to a component: what it raises carries its id."""
        key = f"{kind}/{name}" if name else kind
        return boundary(kind, self.ids.get(key, key))


async def run_episode(request: EpisodeRequest, parts: EpisodeParts) -> Trace:
    """Run, take the patch out, grade. Never raises for what happens inside the episode: that is the verdict."""
    episode = Attempt(request, parts)
    parts.emit(EpisodeStarted(episode_id=request.key.episode_id, task_id=request.task.id, group=request.group))
    started = time.perf_counter()
    try:
        await _attempt(episode)
    except ComposerError as error:
        return _void(episode, error)
    finally:
        episode.stats["wall_s"] = time.perf_counter() - started
        for branch in range(len(episode.rows)):
            await parts.samplers[request.sampler].release(f"{request.key.episode_id}#{branch}")
    trace = episode.trace()
    return await grade(trace, request, parts) if request.graded else trace


async def _attempt(episode: Attempt) -> None:
    """Create the sandbox, act in it, take the patch out."""
    started = time.perf_counter()
    request, parts = episode.request, episode.parts
    async with await parts.sandboxes.create(request.task, extra_needs=parts.toolbox.needs) as sandbox:
        episode.stats["create_s"] = time.perf_counter() - started
        try:
            async with asyncio.timeout(None if parts.deterministic else request.task.limits.wall_s):
                with boundary("episode", "core"):
                    episode.stop = await episode.act(sandbox)
        except TimeoutError:
            episode.stop = Stop.TIME
        episode.take_out(await sandbox.patch(), sandbox.pristine)


def _void(episode: Attempt, error: ComposerError) -> Trace:
    cause = _cause(error)
    episode.faults.append(fault_of(cause, error))
    return episode.trace(Verdict(Outcome.VOID, cause))


def fault_of(where: str, error: ComposerError, plugin: str = "") -> Fault:
    """`error` as data, blamed on the component behind the innermost edge that it crossed, or else on `plugin`."""
    blamed = str(error.fields.get("plugin", plugin or error.fields.get("who", ""))).partition(" ")[0]
    return Fault(where, blamed, str(error), retryable=bool(getattr(error, "retryable", False)))


def _cause(error: ComposerError) -> str:
    """Which part of the host was at fault."""
    kind = error.kind if isinstance(error, PluginFault) else ""
    if isinstance(error, SandboxError) or kind == "sandboxes":
        return "sandbox"
    return "sampler" if isinstance(error, SamplerError) or kind == "samplers" else "host"


async def grade(trace: Trace, request: EpisodeRequest, parts: EpisodeParts) -> Trace:
    """Episode-scope rewards in a fresh fork each; a grader that fails makes the episode void."""
    rewards = [reward for reward in parts.rewards if reward.spec.scope == "episode"]
    if not rewards:
        return trace
    started = time.perf_counter()
    available = {"trace": trace, "task": request.task, "patch": trace.patch, "grading": _rooms(request, parts)}
    scores: list[Score] = []
    try:
        for reward in rewards:
            scores.append(await reward.score(available))
    except ComposerError as error:
        fault = fault_of("grader", error, reward.id)
        return evolve(trace, verdict=Verdict(Outcome.VOID, "grader"), faults=(*trace.faults, fault))
    stats = {**trace.stats, "grade_s": time.perf_counter() - started, "reward": total(scores)}
    return evolve(trace, verdict=verdict_of(parts.rewards, scores), scores=tuple(scores), stats=stats)


def _rooms(request: EpisodeRequest, parts: EpisodeParts) -> Callable[[], AbstractAsyncContextManager[Any]]:
    """`grading()` of a reward: resolves the grading only now, and opens a fresh fork."""

    def grading() -> AbstractAsyncContextManager[Any]:
        if parts.resolve_grading is None:
            raise SandboxError("this run has no task set that grades")
        return open_room(parts.sandboxes, request.task, parts.resolve_grading(request.grading))

    return grading
