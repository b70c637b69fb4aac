"""Admission: who may make a sandbox now, who waits, who is refused.

Two things are bounded apart: what is live (a number, and memory) and what is starting, since starting loads a node more
than a sandbox that waits for its agent's next word. Whoever waits stands in one line and nobody overtakes, so a large
fork is not starved by small creates. Memory pressure lets nothing start; CPU pressure one at a time, so that a node
which is merely busy goes on.

The gate makes nothing and knows no provider; it hands out `Ticket`s, which must come back.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable

from attrs import define, field, frozen

from composer_core.errors import NoCapacity
from composer_plugin_server.machine import Pressure
from composer_plugin_server.settings import Admission

RETRY_S = (1.0, 60.0)
"""Shortest and longest time after which a refused client is told to come back."""
KEPT = 512


@frozen
class Claim:
    """What is asked for: so many sandboxes, and their memory as it is counted."""

    sandboxes: int
    memory_bytes: int


@define(eq=False)
class Ticket:
    """Room in the node. `made()` when its sandboxes are up, `leave()` for each that has ended; `drop()` ends all."""

    gate: Gate
    claim: Claim
    left: int
    starting: bool = True

    def made(self) -> None:
        if self.starting:
            self.starting = False
            self.gate.starting -= 1
            self.gate.pump()

    def leave(self) -> None:
        """One sandbox less."""
        if self.left:
            self.left -= 1
            self.gate.live -= 1
            self.gate.memory_bytes -= self.claim.memory_bytes // self.claim.sandboxes
            self.gate.pump()

    def drop(self) -> None:
        while self.left:
            self.leave()
        self.made()


@define(eq=False)
class _Waiting:
    claim: Claim
    granted: asyncio.Future[Ticket]
    since_s: float


@define(eq=False)
class Gate:
    """For one event loop. `need` is called when the first in line lacks room that an idle sandbox may be taking."""

    limits: Admission
    """With nothing left to the machine."""
    need: Callable[[], None] = lambda: None
    live: int = 0
    starting: int = 0
    memory_bytes: int = 0
    pressure: Pressure | None = None
    refused: Counter[str] = field(factory=Counter)
    waits_s: deque[float] = field(factory=lambda: deque(maxlen=4096))
    """How long those waited that were let in, newest last."""
    closed: bool = False
    _line: deque[_Waiting] = field(factory=deque)
    _granted_s: deque[float] = field(factory=lambda: deque(maxlen=KEPT))

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def oldest_s(self) -> float:
        return time.monotonic() - self._line[0].since_s if self._line else 0.0

    @property
    def load(self) -> float:
        """The larger share of what is taken, and the queue in sandboxes on top."""
        most = self.limits.sandboxes
        return max(self.live / most, self.memory_bytes / self.limits.memory_bytes) + self.waiting / most

    def most(self, each_bytes: int) -> int:
        """Sandboxes of this size that fit into an empty node."""
        return min(self.limits.sandboxes, self.limits.memory_bytes // max(1, each_bytes))

    async def enter(self, claim: Claim, wait_s: float) -> Ticket:
        """Stand in line for room.

        Raises:
            NoCapacity: there was none within `wait_s` seconds, the line is full, or the node is closing.
        """
        if self.closed:
            raise self._refusal("closing")
        if self.most(claim.memory_bytes // claim.sandboxes) < claim.sandboxes:
            raise self._refusal("too large")
        if self._line and self.waiting >= self.limits.queue:
            raise self._refusal("queue full")
        one = _Waiting(claim, asyncio.get_running_loop().create_future(), time.monotonic())
        self._line.append(one)
        self.pump()
        try:
            async with asyncio.timeout(min(wait_s, self.limits.wait_s)):
                return await one.granted
        except BaseException as error:
            self._give_up(one)
            if isinstance(error, TimeoutError):
                raise self._refusal(self.blocked(claim) or "queue") from error
            raise

    def _give_up(self, one: _Waiting) -> None:
        if one.granted.done() and not one.granted.cancelled() and not one.granted.exception():
            one.granted.result().drop()  # granted in the moment in which it was given up
        elif one in self._line:
            self._line.remove(one)
        self.pump()

    def enter_now(self, claim: Claim) -> Ticket | None:
        """Room that nobody waits for, and a start beside which another fits; None if there is none."""
        if self._line or self.closed or self.blocked(claim) or self.starting + 1 >= self.limits.starts > 1:
            return None
        return self._ticket(claim)

    def blocked(self, claim: Claim) -> str:
        """Why it cannot be made now; "" if it can."""
        limits, now = self.limits, self.pressure
        if self.live + claim.sandboxes > limits.sandboxes:
            return "sandboxes"
        if self.memory_bytes + claim.memory_bytes > self.limits.memory_bytes:
            return "memory"
        if now and (now.available_bytes < limits.free_bytes or (now.memory_full or 0) >= limits.memory_pressure):
            return "memory pressure"
        if now and self.starting and (now.cpu_some or 0) >= limits.cpu_pressure:
            return "cpu pressure"
        return "starts" if self.starting >= limits.starts else ""

    def pump(self) -> None:
        """Let in whoever is first and fits, and the next. Called when something was freed or looked at anew."""
        while self._line:
            first = self._line[0]
            reason = "" if first.granted.done() else self.blocked(first.claim)
            if reason:
                if reason in ("sandboxes", "memory", "memory pressure"):
                    self.need()
                return
            self._line.popleft()
            if not first.granted.done():
                self.waits_s.append(time.monotonic() - first.since_s)
                first.granted.set_result(self._ticket(first.claim))

    def _ticket(self, claim: Claim) -> Ticket:
        self.live += claim.sandboxes
        self.memory_bytes += claim.memory_bytes
        self.starting += 1
        self._granted_s.append(time.monotonic())
        return Ticket(self, claim, claim.sandboxes)

    def close(self) -> None:
        """Refuse those who wait and all who come."""
        self.closed = True
        line, self._line = self._line, deque()
        for one in line:
            if not one.granted.done():
                one.granted.set_exception(self._refusal("closing"))

    def _refusal(self, reason: str) -> NoCapacity:
        self.refused[reason] += 1
        shown = f"{self.live} live, {self.starting} starting, {self.waiting} waiting"
        return NoCapacity(f"no room for a sandbox: {reason}", found=shown, retry_after_s=self.retry_after_s())

    def retry_after_s(self) -> float:
        """When the line as it is will have moved on, going by how fast it moved."""
        times = self._granted_s
        each_s = (time.monotonic() - times[0]) / len(times) if times else 1.0
        return min(max(self.waiting * each_s, RETRY_S[0]), RETRY_S[1])
