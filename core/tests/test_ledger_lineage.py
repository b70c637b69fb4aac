"""What is in the final weights: under losses, late results, voids and crashes the same episodes as without any.

A run is played against the ledger with a source of chance that decides what happens next. An episode's length follows
from its task and attempt, as counter-based noise makes it; the weights' lineage is what was trained up to the commit
that the last crash went back to, and everything after.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_core.ledger import Group, Issue, Ledger, LedgerConfig, SlotResult

TASKS = 5


def length(task_id: str, attempt: int) -> int:
    """Tokens of an attempt; heavy-tailed, so that some groups end long after others."""
    return int(random.Random(f"{task_id}/{attempt}").lognormvariate(3, 1.3)) + 1


@define
class Run:
    """One run of a stage, up to its end."""

    fields: Mapping[str, Any]
    chance: random.Random
    troubled: bool
    """Whether workers vanish, answer late, void, and the controller is killed."""
    ledger: Ledger = field(init=False)
    running: list[tuple[Issue, int]] = field(factory=list)
    """Issues, and the version of their first token."""
    given_up: list[tuple[Issue, int]] = field(factory=list)
    """Issues that were reported as lost and may answer all the same."""
    trained: list[Group] = field(factory=list)
    batch: list[Group] | None = None
    journal: list[dict[str, Any]] = field(factory=list)
    committed: tuple[str, int] = ("", 0)
    crashes: int = 0

    def __attrs_post_init__(self) -> None:
        self.ledger = self.fresh()
        self.commit()

    def fresh(self) -> Ledger:
        return Ledger(LedgerConfig(**self.fields), task_of=lambda number: f"task-{number % TASKS}")

    def play(self) -> Run:
        while self.ledger.step < self.ledger.config.steps:
            self.running += [
                (issue, self.ledger.version) for issue in self.ledger.issue(self.chance.choice([0, 1, 2, 9]))
            ]
            self.write()
            if self.batch is None:
                self.batch = self.ledger.take()
            draw = self.chance.random()
            if self.batch is not None and (draw < 0.2 or not self.running):
                self.step()
            elif self.running:
                self.report()
            if self.troubled and draw > 0.98 and self.crashes < 6:
                self.crash()
        return self

    def report(self) -> None:
        """Something is heard of a running episode; which one is next is not decided by its length alone."""
        source, number = self.running, self.chance.randrange(len(self.running))
        trouble = self.chance.random() if self.troubled else 1.0
        if trouble < 0.2 and self.given_up:
            source, number = self.given_up, self.chance.randrange(len(self.given_up))
        issue, version = source.pop(number)
        slot = self.ledger.groups[issue.group].slots[issue.slot] if issue.group in self.ledger.groups else None
        if 0.2 <= trouble < 0.4 and slot and slot.losses < self.ledger.config.max_losses:
            self.ledger.lose(issue.group, issue.slot)
            self.given_up.append((issue, version))
        elif 0.4 <= trouble < 0.5 and slot and slot.issues <= self.ledger.config.refills:
            self.ledger.finish(issue.group, issue.slot, SlotResult(False, cause="host"))
        else:
            tokens = length(issue.task_id, issue.attempt)
            self.ledger.finish(issue.group, issue.slot, SlotResult(True, 1.0, oldest_version=version, tokens=tokens))
        self.write()

    def write(self) -> None:
        self.journal += json.loads(json.dumps(self.ledger.drain()))

    def step(self) -> None:
        self.trained += self.batch or []
        self.batch = None
        self.ledger.applied()
        if self.chance.random() < 0.4:
            self.commit()

    def commit(self) -> None:
        self.committed = json.dumps(self.ledger.to_json()), len(self.trained)
        self.journal = []

    def crash(self) -> None:
        """Of the controller: what it knew is gone, and so is everything that ran for it."""
        state, trained = self.committed
        self.ledger = self.fresh()
        self.ledger.restore(json.loads(state))
        del self.journal[self.chance.randint(0, len(self.journal)) :]  # what was not on disk yet
        self.ledger.replay(self.journal)
        del self.trained[trained:]
        self.running, self.given_up, self.batch = [], [], None
        self.crashes += 1

    def lineage(self) -> Counter[tuple[str, int]]:
        """The multiset of (task, length) in the final weights."""
        return Counter((group.task_id, result.tokens) for group in self.trained for result in group.valid())


@st.composite
def stages(draw: st.DrawFn, policy: str) -> dict[str, Any]:
    return {
        "steps": draw(st.integers(2, 7)),
        "groups_per_step": draw(st.integers(1, 4)),
        "group_size": draw(st.integers(2, 4)),
        "max_staleness": draw(st.integers(0, 4)),
        "staleness": policy,
        "in_order": draw(st.booleans()),
        "refills": 3,
        "max_losses": 4,
        "max_voids_in_a_row": 10**6,
    }


@settings(max_examples=120, deadline=None)
@given(fields=stages("wait"), seed=st.integers(0, 2**32))
def test_what_was_trained_is_what_an_uninterrupted_run_trains(fields, seed):
    calm = Run(fields, random.Random(seed), troubled=False).play()
    troubled = Run(fields, random.Random(seed + 1), troubled=True).play()
    assert troubled.lineage() == calm.lineage()
    numbers = [group.number for group in troubled.trained]
    assert sorted(numbers) == list(range(fields["steps"] * fields["groups_per_step"])), "no gap and no repeat"
    for group in troubled.trained:
        attempts = [group.number * fields["group_size"] + slot for slot in range(fields["group_size"])]
        assert [result.tokens for result in group.valid()] == [length(group.task_id, at) for at in attempts]


@settings(max_examples=120, deadline=None)
@given(fields=stages("drop"), seed=st.integers(0, 2**32))
def test_where_stale_groups_are_dropped_whole_groups_are_missing_and_every_one_is_counted(fields, seed):
    run = Run(fields, random.Random(seed), troubled=True).play()
    numbers = [group.number for group in run.trained]
    assert len(numbers) == len(set(numbers)) == fields["steps"] * fields["groups_per_step"], "no repeat"
    gone = set(range(run.ledger.admitted)) - set(numbers) - run.ledger.groups.keys()
    assert len(gone) == run.ledger.counters["dropped/stale"], "no gap but those that are counted"
    for group in run.trained:
        attempts = [group.number * fields["group_size"] + slot for slot in range(fields["group_size"])]
        assert [result.tokens for result in group.valid()] == [length(group.task_id, at) for at in attempts], (
            "a group that is trained has its long members, too"
        )


def test_troubles_do_happen_in_the_runs_that_are_compared():
    runs = [
        Run({"steps": 6, "groups_per_step": 3, "group_size": 3, "max_staleness": 2}, random.Random(seed), True).play()
        for seed in range(40)
    ]
    assert sum(run.crashes for run in runs) > 20
    for counter in ("lost", "late_results", "void", "refused_results"):
        assert sum(run.ledger.counters[counter] for run in runs) > 0, counter
