"""The controller as a pure state machine: which slot, group and step is where. The only source of truth on resume.

No I/O, no tasks, no clock: callers issue what `issue` returns, report with `finish`, train what `take`
returns, and say `applied`. The same code drives the in-process run, remote executors and simulations.

Admission and staleness (RL.md section 3). A group's version is the trainer's when it was admitted, a lower bound on
every token it will hold. With `wait`, live groups never exceed (max_staleness + 1) x groups_per_step, and a batch is
given out only if the groups that stay behind can still all be consumed in time: for every j >= 0 at most
(j + 1) x groups_per_step of them may be due within j further steps (earliest-deadline feasibility). With `drop`, stale
groups are dropped whole and counted instead.

A void slot is issued again with the same attempt, hence the same noise (fresh noise would favor short survivors).
Journal: what `drain` returns, written down since the last commit, replays onto the committed state with `replay`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
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
        return (self.max_staleness + 1) * self.groups_per_step


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
        return any(slot.state in (SlotState.PENDING, SlotState.RUNNING) for slot in self.slots)

    def valid(self) -> list[SlotResult]:
        return [slot.result for slot in self.slots if slot.state is SlotState.VALID and slot.result]

    def oldest(self) -> int:
        """Version of the oldest token that is or may be in it."""
        known = [r.oldest_version for r in self.valid() if r.oldest_version is not None]
        return self.version if self.open() or not known else min(known)

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
    _voids_in_a_row: Counter[str] = field(factory=Counter)
    _flat_refills: int = 0
    _waiting: set[int] = field(factory=set)
    """Groups that may hold a pending slot; with the next two, no call looks at every slot of every group."""
    _ended: dict[int, int] = field(factory=dict)
    """Groups without an open slot, and the version of each one's oldest token."""
    _stalled: bool = False
    """No batch was ready, and nothing that a batch depends on has changed since."""

    # --- rollouts ---

    def issue(self) -> list[Issue]:
        """Admit what may be admitted and return every slot that is to be run now."""
        while self._may_admit():
            self._admit()
        issues = []
        for number in sorted(self._waiting & self.groups.keys()):
            group = self.groups[number]
            for index, slot in enumerate(group.slots):
                if slot.state is SlotState.PENDING:
                    slot.state = SlotState.RUNNING
                    slot.issues += 1
                    issues.append(Issue(number, index, group.task_id, self.attempt(number, index)))
        self._waiting.clear()
        return issues

    def attempt(self, group: int, slot: int) -> int:
        return group * self.config.group_size + slot

    def finish(self, group: int, slot: int, result: SlotResult) -> None:
        """Record how an issue ended; late reports about groups that are gone are ignored.

        Raises:
            TrainerError: too many voids in a row with one cause.
        """
        holder = self.groups.get(group)
        if holder is None or holder.slots[slot].state is not SlotState.RUNNING:
            self.counters["late_results"] += 1
            return
        self.entries.append({"kind": "result", "group": group, "slot": slot, **attrs.asdict(result)})
        target = holder.slots[slot]
        if result.valid:
            target.state, target.result = SlotState.VALID, result
            self.counters["valid"] += 1
            self._voids_in_a_row.clear()
        else:
            self._void(target, result)
            self._waiting.add(group)
        self._settle(holder)

    def lose(self, group: int, slot: int) -> None:
        """A worker vanished: the slot is pending again, with the same noise and no refill spent."""
        holder = self.groups.get(group)
        if holder and holder.slots[slot].state is SlotState.RUNNING:
            holder.slots[slot].state = SlotState.PENDING
            holder.slots[slot].issues -= 1
            self._waiting.add(group)
            self.counters["lost"] += 1

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

    def _settle(self, group: Group) -> None:
        """Note that a group has ended, and drop it if it cannot be trained."""
        if group.open():
            return
        self._ended[group.number], self._stalled = group.oldest(), False
        if len(group.valid()) < self.config.needed:
            self._drop(group, "dropped/void")
        elif self.config.refill_flat_groups and group.flat() and self._flat_refills < self.config.groups_per_step:
            self._flat_refills += 1
            self._drop(group, "dropped/flat")

    def _drop(self, group: Group, why: str) -> None:
        self.counters[why] += 1
        self.counters["dropped_tokens"] += sum(result.tokens for result in group.valid())
        self._remove(group.number)

    def _remove(self, number: int) -> Group:
        self._ended.pop(number, None)
        self._stalled = False
        return self.groups.pop(number)

    # --- admission ---

    def _may_admit(self) -> bool:
        live = len(self.groups)
        wanted = (self.config.steps - self.step) * self.config.groups_per_step
        return live < self.config.capacity and live < wanted

    def _admit(self) -> Group:
        group = Group(
            self.admitted, self.task_of(self.admitted), self.version, [Slot() for _ in range(self.config.group_size)]
        )
        self.entries.append({"kind": "admit", "group": group.number, "version": self.version})
        self.groups[group.number] = group
        self._waiting.add(group.number)
        self._stalled = False
        self.admitted += 1
        self.counters["groups"] += 1
        return group

    # --- training ---

    def take(self) -> list[Group] | None:
        """The next step's groups, oldest first, or None while the trainer has to wait."""
        if self.training or self.step >= self.config.steps or self._stalled:
            return None
        if self.config.staleness == "drop":
            self._drop_stale()
        batch = self._next_batch()
        if len(batch) < self.config.groups_per_step or not self._feasible_after(batch):
            self._stalled = True
            return None
        self.training = batch
        return [self.groups[number] for number in batch]

    def _next_batch(self) -> list[int]:
        """Ended groups, oldest first; in order, those that are next if they have ended."""
        per_step = self.config.groups_per_step
        if self.config.in_order:
            return [number for number in sorted(self.groups)[:per_step] if number in self._ended]
        return sorted(self._ended, key=lambda number: (self._ended[number], number))[:per_step]

    def _feasible_after(self, batch: list[int]) -> bool:
        """Whether every group that stays behind can be consumed before it is too old."""
        if self.config.staleness == "drop":
            return True
        taken, due = set(batch), self.version + 1 - self.config.max_staleness
        behind = (group for number, group in self.groups.items() if number not in taken)
        slack = sorted(self._ended.get(group.number, group.version) - due for group in behind)
        per_step = self.config.groups_per_step
        return all(room >= position // per_step for position, room in enumerate(slack))

    def _drop_stale(self) -> None:
        for number, oldest in list(self._ended.items()):
            if self.version - oldest > self.config.max_staleness:
                self._drop(self.groups[number], "dropped/stale")

    def applied(self) -> None:
        """The batch given out last is in the weights; the version grows by one."""
        for number in self.training:
            group = self._remove(number)
            self.counters["trained_groups"] += 1
            self.counters[f"staleness/{self.version - group.oldest()}"] += 1
            self.counters["flat_groups"] += int(group.flat())
        self.training = []
        self.version += 1
        self.step += 1
        self._flat_refills = 0

    # --- a look at it ---

    def table(self) -> dict[str, Any]:
        """What is where, as plain data: slots and groups are of now, everything else is counted over the stage."""
        groups, counters = self.groups.values(), self.counters
        states = Counter(slot.state.value for group in groups for slot in group.slots)

        def counted(prefix: str) -> dict[str, int]:
            return {name.removeprefix(prefix): n for name, n in sorted(counters.items()) if name.startswith(prefix)}

        return {
            "admitted": self.admitted,
            "capacity": self.config.capacity,
            "slots": {state.value: states[state.value] for state in SlotState},
            "groups": {
                "open": len(self.groups) - len(self._ended),
                "ended": len(self._ended) - len(self.training),
                "training": len(self.training),
            },
            "versions": {str(v): n for v, n in sorted(Counter(group.version for group in groups).items())},
            "staleness": counted("staleness/"),
            "voids": counted("void/"),
            "dropped": {**counted("dropped/"), "tokens": counters["dropped_tokens"]},
            **{name: counters[name] for name in ("valid", "void", "lost", "late_results", "trained_groups")},
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
        self._waiting = {number for number, group in self.groups.items() if group.open()}
        self._ended = {number: group.oldest() for number, group in self.groups.items() if not group.open()}

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
