"""Sessions and the slots they hold: what is cached where, under which version, and who goes when room is needed.

A session is the ids of one episode's branch as far as the sampler has seen them. Its KV stays in a slot between turns;
the least recently used idle session loses its slot when another needs one, and is simply prefilled again.
No tensors of the model here; expert ids, when recorded, ride along as host tensors.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from attrs import Factory, define


def common_prefix(left: Sequence[int], right: Sequence[int], limit: int) -> int:
    """How many leading ids agree, at most `limit`; whole agreement is one comparison."""
    limit = min(limit, len(left), len(right))
    if left[:limit] == right[:limit]:
        return limit
    return next(index for index in range(limit) if left[index] != right[index])


@define(eq=False)
class Session:
    """The resident state of one session; the first `cached` of `tokens` have their KV in `slot`."""

    key: str
    group: str
    slot: int
    tokens: list[int] = Factory(list)
    cached: int = 0
    runs: list[list[int]] = Factory(list)
    """[version, count] in order: which weights computed the cached entries."""
    routes: list[Any] = Factory(list)
    """Chunks [n, L, K] that cover the cached entries, when routes are recorded."""
    used: int = 0
    """Clock of the last use, for eviction."""
    job: Any = None
    """The generation in progress; None while idle."""
    leaving: bool = False
    """Released while generating: the slot is freed when the generation ends."""

    def extend(self, version: int, count: int) -> None:
        """`count` more tokens were forwarded under `version`."""
        self.cached += count
        if self.runs and self.runs[-1][0] == version:
            self.runs[-1][1] += count
        else:
            self.runs.append([version, count])

    def truncate(self, count: int) -> None:
        """Forget the cached entries behind the first `count`."""
        self.cached = count
        kept: list[list[int]] = []
        for version, length in self.runs:
            taken = min(length, count)
            count -= taken
            if taken:
                kept.append([version, taken])
        self.runs = kept
        if self.routes:
            self.routes = _cut(self.routes, self.cached)

    def current(self, version: int) -> int:
        """Leading cached entries that `version` computed."""
        return self.runs[0][1] if self.runs and self.runs[0][0] == version else 0

    def oldest(self, default: int) -> int:
        """Oldest version of any cached entry."""
        return min((version for version, _ in self.runs), default=default)


def _cut(chunks: list[Any], count: int) -> list[Any]:
    kept = []
    for chunk in chunks:
        if count <= 0:
            break
        kept.append(chunk[:count])
        count -= len(chunk)
    return kept


class SessionTable:
    """At most `slots` sessions; the lowest free slot is given first, so that busy rows are neighbors."""

    def __init__(self, slots: int) -> None:
        self.sessions: dict[str, Session] = {}
        self.groups: dict[str, dict[str, Session]] = {}
        self.evictions = 0
        self._free = list(range(slots))
        self._clock = 0

    def open(self, key: str, group: str) -> Session | None:
        """The session, resident; None when every slot is busy."""
        session = self.sessions.get(key)
        if session is None:
            if not self._free and not self._evict():
                return None
            session = Session(key, group, heapq.heappop(self._free))
            self.sessions[key] = session
            if group:
                self.groups.setdefault(group, {})[key] = session
        self._clock += 1
        session.used = self._clock
        return session

    def drop(self, key: str) -> None:
        """Free a session's slot; unknown keys are ignored."""
        session = self.sessions.pop(key, None)
        if session is None:
            return
        heapq.heappush(self._free, session.slot)
        members = self.groups.get(session.group)
        if members is not None:
            members.pop(key, None)
            if not members:
                del self.groups[session.group]

    def donor(self, session: Session, tokens: Sequence[int], version: int) -> tuple[Session | None, int]:
        """The member of its group that holds most of `tokens`, computed by `version`, and how many; never all."""
        best, most = None, 0
        for other in self.groups.get(session.group, {}).values():
            if other is not session:
                shared = common_prefix(other.tokens, tokens, min(other.current(version), len(tokens) - 1))
                if shared > most:
                    best, most = other, shared
        return best, most

    def _evict(self) -> bool:
        idle = [session for session in self.sessions.values() if session.job is None]
        if not idle:
            return False
        self.drop(min(idle, key=lambda session: session.used).key)
        self.evictions += 1
        return True
