"""The engine: continuous batching as plain synchronous code that one thread drives, step by step.

Legend: B rows of a pass, T new tokens a row, N rows that sample, L MoE layers, K experts per token.

A generation is a list of tokens, of which the session's first `cached` have KV. Whatever is missing is forwarded: one
token is a decode row, more are a prefill row. So a first prompt, an appended tool result, a re-prefill after eviction
and a recompute after a weight swap are one and the same case. Decode rows are forwarded as one range of neighboring
slots with idle rows in between, as long as that wastes little: reading KV in place beats gathering it.

It does not know threads, event loops or files; see `sampler`.
"""

from __future__ import annotations

import math
import time
from collections import deque

import torch

from composer_core.columns import Column
from composer_core.errors import ConfigError, SamplerError
from composer_core.tensors import PolicyModel, to_column
from composer_plugin_torch_sampler.config import ContinuousConfig
from composer_plugin_torch_sampler.draw import draw
from composer_plugin_torch_sampler.jobs import Job, completion, missing
from composer_plugin_torch_sampler.sessions import Session, SessionTable, common_prefix

DENSE_ENOUGH = 0.5
"""Share of busy rows from which a range of slots is forwarded whole; below, rows are gathered."""

COUNTERS = (
    "tokens",
    "prefill_tokens",
    "prefill_passes",
    "decode_steps",
    "decode_rows",
    "reused_tokens",
    "shared_tokens",
    "swaps",
)


class Engine:
    """Admits, forwards, samples and completes; every public method is called from one thread."""

    def __init__(self, policy: PolicyModel, config: ContinuousConfig, *, routes: bool = False) -> None:
        """`routes`: keep the expert ids of every forwarded token beside its KV, for requests that ask for them."""
        self.policy = policy
        self.config = config
        self.version = 0
        self.counts = dict.fromkeys(COUNTERS, 0)
        self.busy_s = 0.0
        self.prefill_s = 0.0
        self._cache = policy.new_cache(config.slots, config.context_tokens)
        self._table = SessionTable(config.slots)
        self._waiting: deque[Job] = deque()
        self._active: list[Job] = []
        if routes and policy.routes is None:
            raise ConfigError(
                "a dense model has no experts whose choice could be replayed",
                who="torch-sampler/continuous",
                where="router_replay of the rl stage",
                fix="leave router_replay out, or choose a mixture of experts",
            )
        self._routes = routes

    # --- what the sampler's thread calls ---------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._active)

    def submit(self, job: Job) -> None:
        """Queue a generation; refused when its session is generating already."""
        if any(job.request.session == other.request.session for other in (*self._waiting, *self._active)):
            job.done(SamplerError(f"session {job.request.session!r} is generating already"))
        elif job.prompt == 0:
            job.done(SamplerError("nothing to continue: the prompt has no ids"))
        elif job.request.routes_from is not None and not self._routes:
            job.done(SamplerError("expert ids were asked for, but are kept only where an rl stage has router_replay"))
        elif job.prompt >= self.config.context_tokens or job.settings.max_tokens <= 0:
            job.done(completion(job, "context" if job.settings.max_tokens > 0 else "length", self.version, None))
        else:
            self._waiting.append(job)

    def cancel(self, job: Job) -> None:
        """Forget a generation; what its session has cached stays good."""
        if job in self._waiting:
            self._waiting.remove(job)
        elif job in self._active:
            self._leave(job)

    def release(self, key: str) -> None:
        session = self._table.sessions.get(key)
        if session is not None and session.job is not None:
            session.leaving = True
        else:
            self._table.drop(key)

    def swap(self, policy: PolicyModel, version: int) -> None:
        """Go on with other weights; `kv_on_swap` says what becomes of resident KV."""
        self.policy, self.version = policy, version
        self.counts["swaps"] += 1
        if self.config.kv_on_swap == "recompute":
            for session in self._table.sessions.values():
                session.truncate(0)

    def fail(self, error: Exception) -> None:
        """End every generation with `error`; their sessions are forgotten, since a pass may have half happened."""
        jobs = [*self._active, *self._waiting]
        self._waiting.clear()
        for job in jobs:
            if job.session is not None:
                self._leave(job)
                self._table.drop(job.request.session)
            job.done(error)

    def step(self) -> None:
        """One prefill pass if one is due, then one decode step."""
        started = time.perf_counter()
        with torch.inference_mode():
            self._admit()
            prefill = self._due()
            if prefill:
                self._prefill(prefill)
                self.prefill_s += time.perf_counter() - started
            decode = [job for job in self._active if missing(job) == 1]
            if decode:
                self._decode(decode)
        self.busy_s += time.perf_counter() - started

    def stats(self) -> dict[str, float]:
        """Counters since the start."""
        return {
            **{name: float(value) for name, value in self.counts.items()},
            "prefill_s": self.prefill_s,
            "evictions": float(self._table.evictions),
            "resident_sessions": float(len(self._table.sessions)),
            "busy_s": self.busy_s,
            "version": float(self.version),
        }

    # --- admission and sharing -------------------------------------------------------------------------------

    def _admit(self) -> None:
        while self._waiting:
            job = self._waiting[0]
            session = self._table.open(job.request.session, job.request.group)
            if session is None:
                return
            self._waiting.popleft()
            kept = common_prefix(session.tokens, job.tokens, min(session.cached, job.prompt - 1))
            if kept < session.cached:
                session.truncate(kept)
            self.counts["reused_tokens"] += kept
            session.tokens, session.job, job.session = job.tokens, job, session
            self._active.append(job)

    def _due(self) -> list[Job]:
        """The jobs of the next prefill pass: shortest first, under the token budget; none while waiting pays."""
        ready = self._ready()
        if not ready:
            return []
        for job in ready:
            job.waited += 1
        decoding = len(self._active) - len(ready)
        total = sum(missing(job) for job in ready)
        patient = max(job.waited for job in ready) <= self.config.prefill_wait
        if decoding > len(ready) and patient and total < self.config.prefill_tokens:
            return []
        ready.sort(key=missing)
        chosen: list[Job] = []
        for job in ready:
            if chosen and (len(chosen) + 1) * missing(job) > self.config.prefill_tokens:
                break
            chosen.append(job)
        return chosen

    def _ready(self) -> list[Job]:
        """Jobs with tokens to prefill, after sharing; of new sessions with one prompt, only the first goes ahead."""
        ready: list[Job] = []
        leaders: dict[str, Job] = {}
        for job in self._active:
            session, group = job.session, job.request.group
            if session is None or missing(job) <= 1:
                continue
            if group and not session.cached and not self._share(session, job):
                leader = leaders.setdefault(group, job)
                if leader is not job and 2 * common_prefix(leader.tokens, job.tokens, job.prompt) >= job.prompt:
                    continue
            if missing(job) > 1:
                ready.append(job)
        return ready

    def _share(self, session: Session, job: Job) -> bool:
        """Copy the prefix that a member of the group has computed under this version."""
        donor, count = self._table.donor(session, job.tokens, self.version)
        if donor is None:
            return False
        self._cache.copy(donor.slot, [session.slot], count)
        session.extend(self.version, count)
        if self._routes:
            session.routes = [torch.cat(donor.routes)[:count]]
        self.counts["shared_tokens"] += count
        return True

    # --- passes ----------------------------------------------------------------------------------------------

    def _prefill(self, jobs: list[Job]) -> None:
        counts = [min(missing(job), self.config.prefill_tokens) for job in jobs]
        ids_BT = torch.zeros(len(jobs), max(counts), dtype=torch.int64)
        sessions = [job.session for job in jobs if job.session is not None]
        for row, (session, count) in enumerate(zip(sessions, counts, strict=True)):
            ids_BT[row, :count] = torch.tensor(session.tokens[session.cached : session.cached + count])
        slots = [session.slot for session in sessions]
        hidden_BTD = self._forward(ids_BT, counts, slots, [session.cached for session in sessions], jobs)
        self.counts["prefill_passes"] += 1
        self.counts["prefill_tokens"] += sum(counts)
        rows = [row for row, job in enumerate(jobs) if not missing(job)]
        self._sample([jobs[row] for row in rows], hidden_BTD[rows, [counts[row] - 1 for row in rows]])

    def _decode(self, jobs: list[Job]) -> None:
        by_slot = {job.session.slot: job for job in jobs if job.session is not None}
        low, high = min(by_slot), max(by_slot) + 1
        dense = len(jobs) >= DENSE_ENOUGH * (high - low)
        slots = list(range(low, high)) if dense else sorted(by_slot)
        ordered = [by_slot[slot] for slot in slots if slot in by_slot]
        rows = [by_slot.get(slot) for slot in slots]
        idle = self.config.context_tokens
        ids = [[0 if job is None else job.tokens[-1]] for job in rows]
        past = [idle if job is None or job.session is None else job.session.cached for job in rows]
        hidden_BTD = self._forward(torch.tensor(ids), [int(job is not None) for job in rows], slots, past, rows)
        self.counts["decode_steps"] += 1
        self.counts["decode_rows"] += len(rows)
        picked_ND = hidden_BTD[:, 0]
        if len(ordered) < len(rows):
            picked_ND = picked_ND[[row for row, job in enumerate(rows) if job is not None]]
        self._sample(ordered, picked_ND)

    def _forward(
        self,
        ids_BT: torch.Tensor,
        counts: list[int],
        slots: list[int],
        past: list[int],
        jobs: list[Job] | list[Job | None],
    ) -> torch.Tensor:
        """Forward new tokens and note them as cached; rows without a job are padding."""
        output = self.policy.trunk(
            ids_BT,
            torch.tensor(counts),
            cache=self._cache,
            slots_B=torch.tensor(slots),
            past_B=torch.tensor(past),
            want_routes=self._routes,
        )
        for row, job in enumerate(jobs):
            if job is not None and job.session is not None:
                job.session.extend(self.version, counts[row])
                if output.routes_BTLK is not None:
                    job.session.routes.append(output.routes_BTLK[row, : counts[row]].clone())
        return output.hidden_BTD

    def _sample(self, jobs: list[Job], hidden_ND: torch.Tensor) -> None:
        if not jobs:
            return
        self.counts["tokens"] += len(jobs)
        ids_N, logprobs_N = draw(
            self.policy.logits(hidden_ND),
            [job.settings.temperature for job in jobs],
            [job.noise for job in jobs],
            [job.request.position + len(job.logprobs) for job in jobs],
        )
        for job, token, logprob in zip(jobs, ids_N.tolist(), logprobs_N.tolist(), strict=True):
            self._accept(job, token, logprob)

    # --- completion ------------------------------------------------------------------------------------------

    def _accept(self, job: Job, token: int, logprob: float) -> None:
        session = job.session
        assert session is not None, "a job that samples is resident"
        if not math.isfinite(logprob):
            self._leave(job)
            self._table.drop(session.key)
            job.done(SamplerError(f"a log-probability is {logprob}", where=f"version {self.version}"))
            return
        job.tokens.append(token)
        job.logprobs.append(logprob)
        if not job.runs:
            job.cache_version = session.oldest(self.version)
        if job.runs and job.runs[-1][0] == self.version:
            job.runs[-1][1] += 1
        else:
            job.runs.append([self.version, 1])
        job.waited = 0
        stop = self._stop(job, token)
        if stop is not None:
            routes = self._columns(session, job.request.routes_from)
            self._leave(job)
            job.done(completion(job, stop, job.cache_version, routes))

    def _stop(self, job: Job, token: int) -> str | None:
        if token in job.settings.stop_ids:
            return "stop"
        if len(job.logprobs) >= job.settings.max_tokens:
            return "length"
        return "context" if len(job.tokens) >= self.config.context_tokens else None

    def _leave(self, job: Job) -> None:
        """The session is idle again, or gone if it was released meanwhile."""
        self._active.remove(job)
        session = job.session
        if session is not None:
            session.job = None
            session.tokens = session.tokens[: session.cached]
            if session.leaving:
                self._table.drop(session.key)

    @staticmethod
    def _columns(session: Session, start: int | None) -> Column | None:
        """Expert ids of the cached tokens from `start` on; one chunk for each decoded token becomes one for all."""
        if start is None:
            return None
        session.routes = [torch.cat(session.routes)]
        return to_column(session.routes[0][start:])
