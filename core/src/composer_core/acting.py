"""The turns of one attempt: context -> sampler -> renderer -> tools, and round again. The only place that samples.

Sampled ids are appended as they came: never decoded and encoded again, never trimmed. What the renderer adds
(a missing end token, results, the start of the next turn) is context with mask 0. It ends by a `Stop`; what surrounds
the turns (sandbox, patch, verdict) is `episode`'s business.

An episode holds its open branch. Those that a context has closed are `closed`, in memory or wherever the context keeps
them (`KeepsSegments`); what is found there of a lost attempt is played again instead of sampled.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from array import array
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any

from attrs import Factory, define, evolve, field

from composer_core.errors import PathError, QuotaError, SamplerError
from composer_core.events import ContextCompacted, TurnEnded
from composer_core.parts import EpisodeParts
from composer_core.protocols import Ask, ContextView, NewBranch, ToolContext
from composer_core.rows import Row, completion_of
from composer_core.sandbox import Sandbox
from composer_core.trees import File, Patch, Tree
from composer_core.types import (
    Completion,
    EpisodeRequest,
    Fault,
    GenerateRequest,
    GenerateSettings,
    Message,
    Outcome,
    ParsedTurn,
    Stop,
    ToolResult,
    Trace,
    Turn,
    Verdict,
)

ORIGINAL_BYTES = 1 << 20
"""Most bytes of untouched originals that a trace keeps beside a patch."""


@define
class RunningEpisode:
    """State of one running episode; single-use."""

    request: EpisodeRequest
    parts: EpisodeParts
    opening: tuple[Message, ...] = field(init=False)
    rows: list[Row] = Factory(list)
    """The open branch; none before the first."""
    turns: list[Turn] = Factory(list)
    """Those of the open branch."""
    branch: int = 0
    """Number of the open branch."""
    turns_taken: int = 0
    """In all branches."""
    closed: MutableMapping[int, Trace] = Factory(dict)
    lost: Trace | None = None
    """The open branch as an attempt had it that was lost, as long as it goes the same way."""
    faults: list[Fault] = Factory(list)
    state: dict[str, Any] = Factory(dict)
    stats: dict[str, float] = Factory(dict)
    stop: Stop = Stop.CANCELLED
    sampled_tokens: int = 0
    patch: Patch = Patch()
    originals: list[File] = Factory(list)
    originals_whole: bool = True
    nonce: str = Factory(lambda: secrets.token_hex(4))

    def __attrs_post_init__(self) -> None:
        self.opening = (Message("user", self.request.task.prompt),)

    def session(self, branch: int) -> str:
        """Where the sampler keeps a branch: an attempt that is made again never meets what a lost one left there."""
        return f"{self.request.key.episode_id}#{branch}/{self.nonce}"

    # --- the loop ---

    async def act(self, sandbox: Sandbox) -> Stop:
        """Turn after turn until a stop; leaves everything that happened in `rows` and `turns`."""
        parts, limits = self.parts, self.request.task.limits
        keep: Any = getattr(parts.context, "segments", lambda episode_id: {})
        with parts.blame("contexts"):
            self.closed = keep(self.request.key.episode_id)
        with parts.blame("renderers"):
            self.rows.append(Row(array("i", parts.renderer.open(self.opening, parts.toolbox.schemas))))
        while True:
            stop = await self._decide(sandbox)
            if stop is not None:
                return stop
            turn, parsed = await self._generate(limits.turn_tokens)
            calls = parts.toolbox.examine(parsed.calls)
            results = await self._execute(calls, sandbox)
            self._log(evolve(turn, text=parsed.text, calls=calls, results=tuple(results)))
            if not calls:
                return self._stop_without_calls(turn)
            if parts.toolbox.ends(calls):
                return Stop.FINISHED
            if self.turns_taken >= limits.turns:
                return Stop.TURNS
            with parts.blame("renderers"):
                increment = parts.renderer.results(results, parsed.ended)
            if len(self.rows[-1].ids) + len(increment) >= limits.context_tokens:
                return Stop.CONTEXT
            self.rows[-1].append(increment)

    def _stop_without_calls(self, turn: Turn) -> Stop:
        """A turn that was cut by a limit stops for that limit, not for lack of a call."""
        limits = self.request.task.limits
        if turn.sampler_stop == "context" or len(self.rows[-1].ids) >= limits.context_tokens:
            return Stop.CONTEXT
        return Stop.TOKENS if turn.sampler_stop == "length" else Stop.NO_CALL

    async def _decide(self, sandbox: Sandbox) -> Stop | None:
        """Let the context say how to go on; returns a stop when a limit leaves no room for a turn, its own included."""
        while True:
            with self.parts.blame("contexts"):
                decision = self.parts.context.next(self._view())
            if isinstance(decision, NewBranch):
                await self._open_branch(decision, sandbox)
            elif isinstance(decision, Ask):
                last = self.turns[-1] if self.turns and self.turns[-1].stop == len(self.rows[-1].ids) else None
                ended = last is not None and last.sampler_stop == "stop"  # a turn that was begun is closed, and empty
                with self.parts.blame("renderers"):
                    self.rows[-1].append(self.parts.renderer.request(decision.message, ended))
            stop = self._full()
            if stop is not None or not isinstance(decision, Ask):
                return stop
            turn, parsed = await self._generate(decision.turn_tokens, decision.trained)
            self._log(evolve(turn, text=parsed.text, calls=parsed.calls, purpose="summary"))

    def _full(self) -> Stop | None:
        """The limit that leaves no room for another turn."""
        limits = self.request.task.limits
        if self.turns_taken >= limits.turns:
            return Stop.TURNS
        if self.sampled_tokens >= limits.tokens:
            return Stop.TOKENS
        return Stop.CONTEXT if len(self.rows[-1].ids) >= limits.context_tokens else None

    async def _open_branch(self, decision: NewBranch, sandbox: Sandbox) -> None:
        before = len(self.rows[-1].ids)
        with self.parts.blame("renderers"):
            ids = array("i", self.parts.renderer.open(decision.messages, self.parts.toolbox.schemas))
        with self.parts.blame("contexts"):
            await asyncio.to_thread(self.closed.__setitem__, self.branch, self.segment())
        self.rows, self.turns, self.branch = [Row(ids, parent=self.branch)], [], self.branch + 1
        for path, data in decision.files.items():
            with suppress(PathError, QuotaError):  # where the agent has put something else, or filled the disk
                await sandbox.write(path, data)
        self.parts.emit(
            ContextCompacted(
                episode_id=self.request.key.episode_id, branch=self.branch, tokens_before=before, tokens_after=len(ids)
            )
        )

    def _played(self, row: Row) -> Completion | None:
        """What a lost attempt sampled after the same ids; once they differ, nothing of its branch."""
        if not self.turns:
            with self.parts.blame("contexts"):
                self.lost = self.closed.get(self.branch)
        left = self.lost.turns[len(self.turns) :] if self.lost else ()
        if self.lost and left and row.ids == self.lost.branches[0].ids.values()[: left[0].start]:
            return completion_of(self.lost.branches[0], left[0], row.routed)
        self.lost = None
        return None

    async def _generate(self, turn_tokens: int, trained: bool = True) -> tuple[Turn, ParsedTurn]:
        """Sample one turn and append its ids, untouched."""
        request, row, limits = self.request, self.rows[-1], self.request.task.limits
        room = min(turn_tokens, limits.tokens - self.sampled_tokens, limits.context_tokens - len(row.ids))
        settings = GenerateSettings(room, self.parts.renderer.stop_ids(), request.sampling.temperature)
        asked = GenerateRequest(
            session=self.session(self.branch),
            group=request.group,
            noise=request.key.noise(request.run_seed),
            position=self.sampled_tokens,
            task_id=request.task.id,
            attempt=request.key.attempt,
            routes_from=row.routed if request.sampling.routes else None,
        )
        start, started = len(row.ids), time.perf_counter()
        with self.parts.blame("samplers", request.sampler):
            completion = self._played(row) or await self.parts.samplers[request.sampler].generate(
                row.ids[:], settings, asked
            )
            if not math.isfinite(sum(completion.logprobs.values())):  # of fp32 values, in fp64: all are, or it is not
                raise SamplerError("the sampler returned a log-probability that is not finite")
            row.extend(completion, trained)
            if request.sampling.routes and completion.ids and row.routed != len(row.ids) - 1:
                expected, found = f"{len(row.ids) - 1} tokens", f"{row.routed}"
                raise SamplerError("expert ids are not those of all forwarded tokens", expected=expected, found=found)
        self._add("generate_s", time.perf_counter() - started)
        self.sampled_tokens += len(completion.ids)
        with self.parts.blame("renderers"):
            parsed = self.parts.renderer.parse(completion.ids.values())
        turn = Turn(
            index=self.turns_taken,
            branch=self.branch,
            start=start,
            stop=len(row.ids),
            text=parsed.text,
            calls=parsed.calls,
            sampler_stop=completion.stop,
            cache_version=completion.cache_version,
            generate_s=time.perf_counter() - started,
        )
        return turn, parsed

    async def _execute(self, calls: tuple[Any, ...], sandbox: Sandbox) -> list[ToolResult]:
        context = ToolContext(sandbox, self.state, self.request.task.limits)
        started = time.perf_counter()
        results, faults = await self.parts.toolbox.run(calls, context)
        self._add("tools_s", time.perf_counter() - started)
        self.faults.extend(faults)
        if self.request.observations == "blank":
            results = [evolve(result, text=_blank(result.text)) for result in results]
        return results

    def _log(self, turn: Turn) -> None:
        self.turns.append(turn)
        self.turns_taken += 1
        self.parts.watch(turn)
        self.parts.emit(
            TurnEnded(
                episode_id=self.request.key.episode_id,
                turn=turn.index,
                sampled_tokens=turn.stop - turn.start,
                calls=tuple(call.name for call in turn.calls),
                generate_s=turn.generate_s,
                tools_s=sum(result.wall_s for result in turn.results),
            )
        )

    # --- bookkeeping ---

    def _add(self, name: str, seconds: float) -> None:
        self.stats[name] = self.stats.get(name, 0.0) + seconds

    def _view(self) -> ContextView:
        task, tokens = self.request.task, len(self.rows[-1].ids)
        return ContextView(
            task, self.trace, tokens, self.sampled_tokens, task.limits, self.state, self.branch, self.segment
        )

    def take_out(self, patch: Patch, pristine: Tree) -> None:
        """The declared artifact, with the files it touches as they were, up to a bound."""
        self.patch, room = patch, ORIGINAL_BYTES
        for file in filter(None, map(pristine.find, patch.touched())):
            room -= len(file.data)
            if room < 0:
                self.originals_whole = False
                return
            self.originals.append(file)

    def trace(self, verdict: Verdict = Verdict(Outcome.UNGRADED)) -> Trace:  # noqa: B008
        """Everything so far."""
        parts = [*(self.closed[number] for number in range(self.branch)), self.segment(verdict)]
        branches = tuple(branch for part in parts for branch in part.branches)
        return evolve(parts[-1], branches=branches, turns=tuple(turn for part in parts for turn in part.turns))

    def segment(self, verdict: Verdict = Verdict(Outcome.UNGRADED)) -> Trace:  # noqa: B008
        """The open branch and its turns, with what is known of the whole episode."""
        return Trace(
            key=self.request.key,
            group=self.request.group,
            opening=self.opening,
            branches=tuple(row.freeze() for row in self.rows),
            turns=tuple(self.turns),
            stop=self.stop,
            verdict=verdict,
            patch=self.patch,
            originals=tuple(self.originals),
            originals_whole=self.originals_whole,
            harness=self.parts.harness.stamp(self.request.task.limits),
            faults=tuple(self.faults),
            stats=dict(self.stats),
            labels=dict(self.request.task.labels),
        )


def _blank(text: str) -> str:
    """As many lines, no words: what a control without observations sees."""
    return "\n".join("." for _ in text.split("\n"))
