"""The controller as a pure state machine: which slot, group and step is where. The only source of truth on resume.

No I/O, no tasks, no clock: callers issue what `issue` returns, report with `finish`, train what `take`
returns, and say `applied`. The same code drives the in-process run, remote executors and simulations.

Admission and staleness (RL.md section 3). A group's version is the trainer's when it was admitted, a lower bound on
every token it will hold. With `wait`, live groups never exceed (max_staleness + 1) x groups_per_step, and a batch is
given out only if the groups that stay behind can still all be consumed in time: for every j >= 0 at most
(j + 1) x groups_per_step of them may be due within j further steps (earliest-deadline feasibility). With `drop`, stale
groups are dropped whole and counted instead. A group is dropped as soon as it is known that it cannot be trained; its
episodes that still run are `abandoned`.

With `oversample` = k > 0, k groups more are live, and `take` drops up to k a step rather than wait for them: of those
that could not all be consumed in time the open ones, then the youngest. So the slow are dropped, which are the long
episodes and the hard tasks: what is trained leans towards the short ones, and no weighting undoes it.

A void slot is issued again with the same attempt, hence the same noise (fresh noise would favor short survivors). So is
a lost one, whose process vanished: that spends no refill until it has happened `max_losses` times.

Cost: what is noted by version (there are few) spares every call a look at all groups; none costs more than the
logarithm of their number for each slot or group that it gives out or takes in.
Journal: what `drain` returns, written down since the last commit, replays onto the committed state with `replay`.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
from itertools import islice
from typing import Any

import attrs
from attrs import define, field, frozen
from cattrs import Converter

from composer_core.errors import TrainerError

_CONVERTER = Converter()


class SlotState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    VALID = "valid"
    VOID = "void"


ENDED = frozenset({SlotState.VALID, SlotState.VOID})


@frozen
class LedgerConfig:
    """What bounds a stage; the fields of the same names in `config.RlStage`."""

    steps: int
    groups_per_step: int
    group_size: int
    max_staleness: int = 0
    staleness: str = "wait"
    min_valid: int | None = None
    refills: int = 2
    max_losses: int = 8
    oversample: int = 0
    refill_flat_groups: bool = False
    max_voids_in_a_row: int = 64
    in_order: bool = False
    """Consume groups strictly in the order they were admitted (deterministic mode)."""

    @property
    def needed(self) -> int:
        """Valid members without which a group is dropped."""
        return max(2, self.group_size if self.min_valid is None else self.min_valid)

    @property
    def capacity(self) -> int:
        """Live groups at most."""
        return (self.max_staleness + 1) * self.groups_per_step + self.oversample


@frozen
class SlotResult:
    """How one issue of a slot ended."""

    valid: bool
    reward: float = 0.0
    cause: str | None = None
    """Of a void."""
    blamed: str = ""
    """Of a void, the component whose fault it was."""
    oldest_version: int | None = None
    trace: str | None = None
    """URI of the trace."""
    sha256: str | None = None
    tokens: int = 0


RESULT = tuple(field.name for field in attrs.fields(SlotResult))


@frozen
class Issue:
    """An order to run one episode."""

    group: int
    slot: int
    task_id: str
    attempt: int
    """Identity of the noise; the same for every issue of this slot."""


@define
class Slot:
    state: SlotState = SlotState.PENDING
    issues: int = 0
    losses: int = 0
    result: SlotResult | None = None


@define
class Group:
    """One task's G slots."""

    number: int
    """Order of admission; the noise attempt of slot i is number x group_size + i."""
    task_id: str
    version: int
    """The trainer's version at admission."""
    slots: list[Slot]

    @property
    def id(self) -> str:
        return f"{self.number}:{self.task_id}"

    def open(self) -> bool:
        return not all(slot.state in ENDED for slot in self.slots)

    def valid(self) -> list[SlotResult]:
        return [slot.result for slot in self.slots if slot.state is SlotState.VALID and slot.result]

    def known(self) -> list[int]:
        """Version of the oldest token of each valid member so far."""
        return [result.oldest_version for result in self.valid() if result.oldest_version is not None]

    def oldest(self) -> int:
        """Version of the oldest token that is or may be in it."""
        return self.version if self.open() else min(self.known(), default=self.version)

    def flat(self) -> bool:
        return len({result.reward for result in self.valid()}) <= 1


@define
class Ledger:
    """See the module's docstring. `task_of(number)` names the task of the n-th admitted group."""

    config: LedgerConfig
    task_of: Callable[[int], str]
    version: int = 0
    step: int = 0
    admitted: int = 0
    groups: dict[int, Group] = field(factory=dict)
    training: list[int] = field(factory=list)
    """Groups given out by `take` and not applied yet."""
    counters: Counter[str] = field(factory=Counter)
    entries: list[dict[str, Any]] = field(factory=list)
    """Journal entries not drained yet."""
    abandoned: list[tuple[int, int]] = field(factory=list)
    """Group and slot of running episodes that nobody waits for any more; the caller empties it."""
    _voids_in_a_row: Counter[str] = field(factory=Counter)
    _flat_refills: int = 0
    _oversampled: int = 0
    """Groups dropped in this step to make room for faster ones."""
    _waiting: list[int] = field(factory=list)
    """A heap of groups that may hold a pending slot, some of them twice."""
    _open: Counter[int] = field(factory=Counter)
    """Number of open groups by version."""
    _ended: dict[int, set[int]] = field(factory=dict)
    """By the version of the oldest token, groups without an open slot that no step has taken."""
    _stalled: bool = False
    """No batch was ready, and nothing that a batch depends on has changed since."""

    # --- rollouts ---

    def issue(self, room: float = float("inf")) -> list[Issue]:
        """At most `room` slots that are to be run now; a group is admitted when one of its slots is issued."""
        issues: list[Issue] = []
        while len(issues) < room and (self._waiting or self._may_admit()):
            group = self.groups.get(self._waiting[0]) if self._waiting else self._admit()
            for index, slot in enumerate(group.slots if group else ()):
                if group and slot.state is SlotState.PENDING and len(issues) < room:
                    slot.state = SlotState.RUNNING
                    slot.issues += 1
                    issues.append(Issue(group.number, index, group.task_id, self.attempt(group.number, index)))
            if len(issues) < room:
                heapq.heappop(self._waiting)
        return issues

    def attempt(self, group: int, slot: int) -> int:
        return group * self.config.group_size + slot

    def finish(self, group: int, slot: int, result: SlotResult) -> None:
        """Record how an issue ended; late reports, and those about groups that are gone, are only counted.

        Raises:
            TrainerError: too many voids in a row with one cause.
        """
        holder = self.groups.get(group)
        if holder is None or holder.slots[slot].state is not SlotState.RUNNING:
            self.counters["late_results"] += 1
            self.counters["dropped_tokens"] += result.tokens if holder is None else 0
            return
        entry = {"kind": "result", "group": group, "slot": slot}
        self.entries.append(entry | {name: getattr(result, name) for name in RESULT})
        target = holder.slots[slot]
        if result.valid:
            target.state, target.result = SlotState.VALID, result
            self.counters["valid"] += 1
            self._voids_in_a_row.clear()
        else:
            self._void(target, result)
            heapq.heappush(self._waiting, group)
        self._settle(holder, result.valid)

    def lose(self, group: int, slot: int) -> None:
        """The process vanished: the slot is pending again, with the same noise, or void when that comes too often."""
        holder = self.groups.get(group)
        if holder is None or holder.slots[slot].state is not SlotState.RUNNING:
            return
        target = holder.slots[slot]
        target.losses += 1
        self.counters["lost"] += 1
        if target.losses > self.config.max_losses:
            self.finish(group, slot, SlotResult(False, cause="lost"))
        else:
            target.state, target.issues = SlotState.PENDING, target.issues - 1
            heapq.heappush(self._waiting, group)

    def _void(self, slot: Slot, result: SlotResult) -> None:
        cause = result.cause or "unknown"
        self.counters["void"] += 1
        self.counters[f"void/{cause}"] += 1
        self._voids_in_a_row[cause] += 1
        slot.result = result
        slot.state = SlotState.PENDING if slot.issues <= self.config.refills else SlotState.VOID
        if self._voids_in_a_row[cause] >= self.config.max_voids_in_a_row:
            raise TrainerError(
                f"{self._voids_in_a_row[cause]} episodes in a row were void",
                found=f"cause {cause!r}" + (f", the last one by {result.blamed}" if result.blamed else ""),
                expected="a working host, sandbox, sampler and grader",
                fix="`composer-run show RUN` tells what was raised, and by whom; resume when that is mended",
            )

    def _settle(self, group: Group, valid: bool) -> None:
        """After a report: note that a group has ended, and drop it if it cannot be trained, ended or not."""
        if ended := not group.open():
            self._open[group.version] -= 1
            self._ended.setdefault(group.oldest(), set()).add(group.number)
            self._stalled = False
        if not valid and sum(slot.state is not SlotState.VOID for slot in group.slots) < self.config.needed:
            self._drop(group, "dropped/void")
        elif self._stale(group):
            self._drop(group, "dropped/stale")
        elif (
            ended and self._flat_refills < self.config.refill_flat_groups * self.config.groups_per_step and group.flat()
        ):
            self._flat_refills += 1
            self._drop(group, "dropped/flat")

    def _stale(self, group: Group) -> bool:
        """Whether it holds a token that is too old, where such groups are dropped."""
        if self.config.staleness == "wait":
            return False
        oldest = min(group.known(), default=self.version) if group.open() else group.oldest()
        return self.version - oldest > self.config.max_staleness

    def _drop(self, group: Group, why: str) -> None:
        self.counters[why] += 1
        self.counters["dropped_tokens"] += sum(result.tokens for result in group.valid())
        if group.open():
            self._open[group.version] -= 1
            running = [index for index, slot in enumerate(group.slots) if slot.state is SlotState.RUNNING]
            self.abandoned += [(group.number, index) for index in running]
            self.counters["cancelled"] += len(running)
        else:
            self._ended[group.oldest()].discard(group.number)
        self._stalled = False
        del self.groups[group.number]

    # --- admission ---

    def _may_admit(self) -> bool:
        live = len(self.groups) + self._oversampled
        wanted = (self.config.steps - self.step) * self.config.groups_per_step
        return live < self.config.capacity and live < wanted + self.config.oversample

    def _admit(self) -> Group:
        group = Group(
            self.admitted, self.task_of(self.admitted), self.version, [Slot() for _ in range(self.config.group_size)]
        )
        self.entries.append({"kind": "admit", "group": group.number, "version": self.version})
        self.groups[group.number] = group
        heapq.heappush(self._waiting, group.number)
        self._open[group.version] += 1
        self._stalled = False
        self.admitted += 1
        self.counters["groups"] += 1
        return group

    # --- training ---

    def take(self) -> list[Group] | None:
        """The next step's groups, oldest first, or None while the trainer has to wait."""
        if self.training or self.step >= self.config.steps or self._stalled:
            return None
        taken = self._next()
        whole = taken.total() == self.config.groups_per_step
        if not whole or (excess := self._excess(taken)) > self.config.oversample - self._oversampled:
            self._stalled = True
            return None
        self.training = self._batch(taken)
        if excess:
            self._drop_surplus()
        return [self.groups[number] for number in self.training]

    def _next(self) -> Counter[int]:
        """Of the groups that are next, those that have ended, counted by version."""
        left = self.config.groups_per_step
        if self.config.in_order:
            first = (self.groups[number] for number in islice(self.groups, left))
            return Counter(group.oldest() for group in first if not group.open())
        taken: Counter[int] = Counter()
        for version in sorted(self._ended):
            taken[version] = min(left, len(self._ended[version]))
            left -= taken[version]
        return taken

    def _batch(self, taken: Counter[int]) -> list[int]:
        """The groups that `taken` counts; no longer among the ended ones."""
        if self.config.in_order:
            batch = list(islice(self.groups, self.config.groups_per_step))
        else:
            batch = [number for at in sorted(taken) for number in sorted(self._ended[at])[: taken[at]]]
        for number in batch:
            self._ended[self.groups[number].oldest()].remove(number)
        return batch

    def _in_time(self, version: int) -> int:
        """How many groups of that version or older can be consumed after the next step before they are too old."""
        return max(0, version - self.version + self.config.max_staleness) * self.config.groups_per_step

    def _excess(self, taken: Counter[int]) -> int:
        """How many too many groups stay behind for all of them to be consumed in time."""
        behind = worst = 0
        for version in sorted(self._open.keys() | self._ended.keys()):
            behind += self._open[version] + len(self._ended.get(version, ())) - taken[version]
            worst = max(worst, behind - self._in_time(version))
        return 0 if self.config.staleness == "drop" else worst

    def _drop_surplus(self) -> None:
        """So many groups that all others can be consumed in time: open ones first, then the youngest."""
        behind, kept = set(self.groups) - set(self.training), list[Group]()
        for group in sorted((self.groups[number] for number in behind), key=Group.oldest):
            kept.append(group)
            if len(kept) > self._in_time(group.oldest()):
                slow = max(kept, key=lambda group: (group.open(), group.number))
                kept.remove(slow)
                self._drop(slow, "dropped/oversampled")
                self._oversampled += 1

    def applied(self) -> None:
        """The batch given out last is in the weights; the version grows by one."""
        for group in map(self.groups.pop, self.training):
            self.counters["trained_groups"] += 1
            self.counters[f"staleness/{self.version - group.oldest()}"] += 1
            self.counters["flat_groups"] += int(group.flat())
        self.training = []
        self.version += 1
        self.step += 1
        self._flat_refills = self._oversampled = 0
        self._stalled = False
        for group in [group for group in self.groups.values() if self._stale(group)]:
            self._drop(group, "dropped/stale")
        self._open = +self._open
        self._ended = {version: numbers for version, numbers in self._ended.items() if numbers}

    # --- a look at it ---

    def table(self) -> dict[str, Any]:
        """What is where, as plain data: slots and groups are of now, everything else is counted over the stage."""
        groups, counters = self.groups.values(), self.counters
        states = Counter(slot.state for group in groups for slot in group.slots)

        def counted(prefix: str) -> dict[str, int]:
            return {name.removeprefix(prefix): n for name, n in sorted(counters.items()) if name.startswith(prefix)}

        return {
            "admitted": self.admitted,
            "capacity": self.config.capacity,
            "slots": {state.value: states[state] for state in SlotState},
            "groups": {
                "open": self._open.total(),
                "ended": sum(map(len, self._ended.values())),
                "training": len(self.training),
            },
            "versions": {str(v): n for v, n in sorted(Counter(group.version for group in groups).items())},
            "staleness": counted("staleness/"),
            "voids": counted("void/"),
            "dropped": {**counted("dropped/"), "tokens": counters["dropped_tokens"]},
            **{
                name: counters[name]
                for name in ("valid", "void", "lost", "cancelled", "late_results", "refused_results", "trained_groups")
            },
        }

    # --- persistence ---

    def drain(self) -> list[dict[str, Any]]:
        """Journal entries since the last call, to be written down before anything depends on them."""
        entries, self.entries = self.entries, []
        return entries

    def to_json(self) -> dict[str, Any]:
        """The state as plain data; slots that run are written as pending."""
        groups = _CONVERTER.unstructure(list(self.groups.values()))
        for slot in (slot for group in groups for slot in group["slots"] if slot["state"] == SlotState.RUNNING):
            slot.update(state=SlotState.PENDING.value, issues=slot["issues"] - 1)
        names = ("version", "step", "admitted")
        return {**{name: getattr(self, name) for name in names}, "counters": dict(self.counters), "groups": groups}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Take over a committed state; tokens of versions that were never committed are refused and re-issued."""
        self.version, self.step, self.admitted = data["version"], data["step"], data["admitted"]
        self.counters, self.training, self.entries, self._stalled = Counter(data["counters"]), [], [], False
        self.groups = {group.number: group for group in _CONVERTER.structure(data["groups"], list[Group])}
        self._waiting = sorted(number for number, group in self.groups.items() if group.open())
        self._open = Counter(self.groups[number].version for number in self._waiting)
        self._ended = {}
        for group in self.groups.values():
            if not group.open():
                self._ended.setdefault(group.oldest(), set()).add(group.number)

    def replay(self, entries: list[dict[str, Any]]) -> int:
        """Apply a journal written after the committed state; returns how many finished episodes were kept.

        Results whose tokens come from a version above the committed one are refused: their weights are gone.
        """
        kept = 0
        for entry in entries:
            if entry["kind"] == "admit":
                if entry["group"] == self.admitted and entry["version"] <= self.version and self._may_admit():
                    self._admit()
                continue
            fields = {key: value for key, value in entry.items() if key not in ("kind", "group", "slot")}
            result = SlotResult(**fields)
            holder = self.groups.get(entry["group"])
            if holder is None or holder.slots[entry["slot"]].state is not SlotState.PENDING or not result.valid:
                continue
            if result.oldest_version is not None and result.oldest_version > self.version:
                self.counters["refused_results"] += 1
                continue
            slot = holder.slots[entry["slot"]]
            slot.state, slot.issues = SlotState.RUNNING, slot.issues + 1
            self.finish(entry["group"], entry["slot"], result)
            kept += 1
        self.entries = []
        return kept
