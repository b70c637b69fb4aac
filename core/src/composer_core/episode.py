"""One episode, from a request to a graded trace: create the sandbox, act in it, take the patch out, grade.

The turns themselves are `acting`'s. When they have stopped, the declared artifact, a patch, is taken out, the sandbox
is destroyed, and rewards grade the patch in a fresh fork. Whatever breaks on the host's side becomes a void verdict on
the trace, never an exception of `run_episode`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from attrs import evolve

from composer_core.acting import RunningEpisode
from composer_core.errors import ComposerError, PluginFault, SamplerError, SandboxError, WorkLost, boundary
from composer_core.events import EpisodeStarted
from composer_core.grading import open_room
from composer_core.parts import EpisodeParts
from composer_core.scoring import total, verdict_of
from composer_core.types import EpisodeRequest, Fault, Outcome, Score, Stop, Trace, Verdict

__all__ = ["fault_of", "run_episode"]


async def run_episode(request: EpisodeRequest, parts: EpisodeParts) -> Trace:
    """Run, take the patch out, grade. Never raises for what happens inside the episode: that is the verdict."""
    episode = RunningEpisode(request, parts)
    parts.emit(EpisodeStarted(episode_id=request.key.episode_id, task_id=request.task.id, group=request.group))
    started, failure = time.perf_counter(), None
    try:
        await _attempt(episode)
    except ComposerError as error:
        failure = error
    finally:
        episode.stats["wall_s"] = time.perf_counter() - started
        await _release(episode)
    trace = _void(episode, failure) if failure else _whole(episode)
    if trace.verdict.lost:
        return trace
    if request.graded and trace.verdict.outcome is not Outcome.VOID:
        trace = await grade(trace, request, parts)
    return _forget(episode, trace)


async def _release(episode: RunningEpisode) -> None:
    """Let the sampler forget the branches. One that fails at it took part in the turns all the same: it is a fault."""
    name = episode.request.sampler
    for branch in range(episode.branch + len(episode.rows)):
        try:
            with episode.parts.blame("samplers", name):
                await episode.parts.samplers[name].release(episode.session(branch))
        except ComposerError as error:
            episode.faults.append(fault_of("sampler", error))


async def _attempt(episode: RunningEpisode) -> None:
    """Create the sandbox, act in it, take the patch out."""
    started = time.perf_counter()
    request, parts = episode.request, episode.parts
    async with await parts.sandboxes.create(request.task, extra_needs=parts.toolbox.needs) as sandbox:
        if parts.sandboxes.allow:
            await sandbox.set_network(parts.sandboxes.allow)
        episode.stats["create_s"] = time.perf_counter() - started
        try:
            async with asyncio.timeout(None if parts.deterministic else request.task.limits.wall_s):
                with boundary("episode", "core"):
                    episode.stop = await episode.act(sandbox)
        except TimeoutError:
            episode.stop = Stop.TIME
        episode.take_out(await sandbox.patch(), sandbox.pristine)


def _whole(episode: RunningEpisode) -> Trace:
    try:
        with episode.parts.blame("contexts"):
            return episode.trace()
    except ComposerError as error:
        return _void(episode, error)


def _void(episode: RunningEpisode, error: ComposerError) -> Trace:
    """With the open branch alone, if closed ones cannot be read."""
    cause = _cause(error)
    verdict = Verdict(Outcome.VOID, cause)
    episode.faults.append(fault_of(cause, error))
    try:
        with episode.parts.blame("contexts"):
            return episode.trace(verdict)
    except ComposerError:
        return episode.segment(verdict)


def _forget(episode: RunningEpisode, trace: Trace) -> Trace:
    """Let go of closed branches, which are in the trace; what cannot be deleted costs no verdict and is a fault."""
    try:
        with episode.parts.blame("contexts"):
            episode.closed.clear()
    except ComposerError as error:
        return evolve(trace, faults=(*trace.faults, fault_of("host", error)))
    return trace


def fault_of(where: str, error: ComposerError, plugin: str = "") -> Fault:
    """`error` as data, blamed on the component behind the innermost edge that it crossed, or else on `plugin`."""
    blamed = str(error.fields.get("plugin", plugin or error.fields.get("who", ""))).partition(" ")[0]
    return Fault(where, blamed, str(error), retryable=bool(getattr(error, "retryable", False)))


def _cause(error: ComposerError) -> str:
    """Which part of the host was at fault."""
    if isinstance(error, WorkLost):
        return "lost"
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
