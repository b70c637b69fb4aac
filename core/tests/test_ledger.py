"""The ledger's promises, over any order of what can happen: bounded staleness, nothing trained twice, resume."""

import json
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from composer_core.errors import TrainerError
from composer_core.ledger import Ledger, LedgerConfig, SlotResult, SlotState


def make(**fields) -> Ledger:
    config = LedgerConfig(**{"steps": 4, "groups_per_step": 2, "group_size": 2, **fields})
    return Ledger(config, task_of=lambda number: f"task-{number % 5}")


def solve(ledger: Ledger, issues, rewards=(0.0, 1.0)):
    for issue in issues:
        reward = rewards[issue.slot % len(rewards)]
        ledger.finish(issue.group, issue.slot, SlotResult(True, reward, oldest_version=ledger.version))


def test_synchronous_run_admits_one_step_at_a_time_and_ends():
    ledger = make()
    for step in range(4):
        issues = ledger.issue()
        assert len(issues) == 4
        assert ledger.issue() == []
        solve(ledger, issues)
        assert ledger.issue() == [], "with max_staleness 0 nothing is admitted while the trainer steps"
        batch = ledger.take()
        assert [group.version for group in batch] == [step, step]
        assert ledger.take() is None
        ledger.applied()
    assert ledger.step == 4
    assert ledger.issue() == []


def test_a_void_slot_is_issued_again_with_the_same_noise_until_its_budget_is_spent():
    ledger = make(groups_per_step=1, refills=2)
    (first, other) = ledger.issue()
    for _ in range(2):
        ledger.finish(first.group, first.slot, SlotResult(False, cause="sandbox"))
        (again,) = ledger.issue()
        assert again == first
    ledger.finish(first.group, first.slot, SlotResult(False, cause="sandbox"))
    assert ledger.counters["void/sandbox"] == 3
    solve(ledger, [other])
    assert ledger.counters["dropped/void"] == 1
    assert all(issue.group == 1 for issue in ledger.issue()), "a dropped group is replaced by a fresh one"


def test_min_valid_admits_a_group_with_a_masked_member():
    ledger = make(groups_per_step=1, group_size=3, min_valid=2, refills=0)
    issues = ledger.issue()
    ledger.finish(issues[0].group, 0, SlotResult(False, cause="grader"))
    solve(ledger, issues[1:])
    (group,) = ledger.take()
    assert len(group.valid()) == 2


def test_a_group_never_needs_fewer_than_two_valid_members():
    assert LedgerConfig(steps=1, groups_per_step=1, group_size=4, min_valid=1).needed == 2


def test_many_voids_in_a_row_with_one_cause_stop_the_run():
    ledger = make(refills=100, max_voids_in_a_row=3)
    (issue, *_) = ledger.issue()
    with pytest.raises(TrainerError, match="3 episodes in a row were void") as stopped:
        for _ in range(3):
            ledger.finish(issue.group, issue.slot, SlotResult(False, cause="sandbox", blamed="mine/walls"))
            ledger.issue()
    assert "the last one by mine/walls" in str(stopped.value)


def test_a_valid_episode_between_voids_resets_their_count():
    ledger = make(refills=100, max_voids_in_a_row=2, group_size=4)
    issues = ledger.issue()
    for index in range(3):
        ledger.finish(issues[0].group, 0, SlotResult(False, cause="sandbox"))
        ledger.finish(issues[index + 1].group, issues[index + 1].slot, SlotResult(True, 1.0, oldest_version=0))
        ledger.issue()
    assert ledger.counters["void"] == 3


def test_flat_groups_are_refilled_on_request_and_only_so_often():
    ledger = make(refill_flat_groups=True)
    replaced = 0
    while (batch := ledger.take()) is None:
        issues = ledger.issue()
        replaced += len({issue.group for issue in issues})
        solve(ledger, issues, rewards=(1.0,))
    assert ledger.counters["dropped/flat"] == 2
    assert len(batch) == 2
    assert replaced == 4


def test_a_lost_worker_costs_no_refill_and_keeps_the_noise():
    ledger = make(groups_per_step=1, refills=0)
    (first, _) = ledger.issue()
    ledger.lose(first.group, first.slot)
    assert ledger.issue() == [first]


def test_a_slot_that_is_lost_too_often_is_void_for_that_cause_and_then_spends_refills():
    ledger = make(groups_per_step=1, max_losses=2, refills=1)
    (first, _) = ledger.issue()
    for _ in range(2 + 1):
        ledger.lose(first.group, first.slot)
        assert ledger.issue() == [first]
    assert (ledger.counters["lost"], ledger.counters["void/lost"]) == (3, 1)
    ledger.lose(first.group, first.slot)
    assert ledger.counters["void/lost"] == 2
    assert ledger.counters["dropped/void"] == 1, "a task that always kills its process is given up"


def test_losses_of_a_slot_are_remembered_by_a_commit():
    ledger = make(groups_per_step=1, max_losses=1)
    (first, _) = ledger.issue()
    ledger.lose(first.group, first.slot)
    resumed = make(groups_per_step=1, max_losses=1)
    resumed.restore(json.loads(json.dumps(ledger.to_json())))
    resumed.issue()
    resumed.lose(first.group, first.slot)
    assert resumed.counters["void/lost"] == 1


def test_a_group_that_cannot_be_trained_any_more_is_dropped_at_once_and_its_episodes_are_abandoned():
    ledger = make(groups_per_step=1, group_size=4, min_valid=3, refills=0)
    issues = ledger.issue()
    ledger.finish(0, 0, SlotResult(True, 1.0, oldest_version=0, tokens=7))
    ledger.finish(0, 1, SlotResult(False, cause="host"))
    assert ledger.abandoned == []
    ledger.finish(0, 2, SlotResult(False, cause="host"))
    assert ledger.abandoned == [(0, 3)]
    assert (ledger.counters["cancelled"], ledger.counters["dropped_tokens"]) == (1, 7)
    ledger.finish(0, 3, SlotResult(True, 1.0, oldest_version=0, tokens=5))
    assert (ledger.counters["late_results"], ledger.counters["dropped_tokens"]) == (1, 12)
    assert len(issues) == 4


def test_no_more_is_issued_than_there_is_room_and_a_group_is_admitted_when_its_turn_comes():
    ledger = make(steps=10, groups_per_step=2, group_size=4, max_staleness=1)
    first = ledger.issue(6)
    assert [(issue.group, issue.slot) for issue in first] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
    assert ledger.admitted == 2
    assert ledger.issue(0) == []
    ledger.lose(0, 2)
    again = ledger.issue(2)
    assert [(issue.group, issue.slot) for issue in again] == [(0, 2), (1, 2)], "what was begun comes first"
    assert [len(ledger.issue(room)) for room in (1, 4, 100)] == [1, 4, 4]
    assert ledger.admitted == 4


def test_oversampling_drops_the_groups_that_would_be_waited_for():
    ledger = make(steps=2, groups_per_step=2, oversample=1)
    issues = ledger.issue()
    assert len(issues) == 6
    solve(ledger, [issue for issue in issues if issue.group != 0])
    assert [group.number for group in ledger.take()] == [1, 2]
    assert sorted(ledger.abandoned) == [(0, 0), (0, 1)]
    assert ledger.counters["dropped/oversampled"] == 1
    assert ledger.issue() == [], "no group of this version could still be trained"
    ledger.applied()
    assert len(ledger.issue()) == 6, "the last step has one to spare, too"


def test_without_oversampling_the_same_group_is_waited_for():
    ledger = make(steps=2, groups_per_step=2)
    issues = ledger.issue()
    solve(ledger, [issue for issue in issues if issue.group != 0])
    assert ledger.take() is None
    assert ledger.abandoned == []


def test_groups_that_have_all_ended_at_once_are_no_deadlock_under_oversampling():
    ledger = make(steps=2, groups_per_step=2, oversample=1)
    solve(ledger, ledger.issue())
    assert [group.number for group in ledger.take()] == [0, 1]
    assert ledger.counters["dropped/oversampled"] == 1


def test_where_stale_groups_are_dropped_one_stale_member_is_enough():
    ledger = make(steps=10, groups_per_step=1, max_staleness=0, staleness="drop", group_size=3)
    issues = ledger.issue()
    ledger.version = 3
    ledger.finish(0, 0, SlotResult(True, 1.0, oldest_version=2))
    assert ledger.counters["dropped/stale"] == 1
    assert ledger.abandoned == [(0, 1), (0, 2)]
    assert len(issues) == 3


def test_the_table_tells_what_is_where():
    ledger = make(steps=4, groups_per_step=1, group_size=2, max_staleness=1)
    issues = ledger.issue()
    solve(ledger, issues[:2])
    ledger.take()
    ledger.applied()
    ledger.issue()
    ledger.finish(1, 0, SlotResult(False, cause="sandbox"))
    ledger.finish(1, 1, SlotResult(True, 1.0, oldest_version=1))
    ledger.lose(2, 0)
    table = json.loads(json.dumps(ledger.table()))
    assert table["slots"] == {"pending": 2, "running": 1, "valid": 1, "void": 0}
    assert table["groups"] == {"open": 2, "ended": 0, "training": 0}
    assert table["versions"] == {"0": 1, "1": 1}
    assert table["staleness"] == {"0": 1}
    assert table["voids"] == {"sandbox": 1}
    assert (table["lost"], table["trained_groups"], table["valid"]) == (1, 1, 3)


def test_slow_groups_are_waited_for_rather_than_trained_too_stale():
    ledger = make(steps=10, groups_per_step=1, group_size=2, max_staleness=1)
    slow, fast = ledger.issue()[:2], ledger.issue
    by_group = {}
    for issue in slow + fast():
        by_group.setdefault(issue.group, []).append(issue)
    ledger.finish(1, 0, SlotResult(True, 0.0, oldest_version=0))
    ledger.finish(1, 1, SlotResult(True, 1.0, oldest_version=0))
    assert [group.number for group in ledger.take()] == [1]
    ledger.applied()
    fresh = ledger.issue()
    solve(ledger, fresh)
    assert ledger.take() is None, "training group 2 first would leave group 0 two versions old"


def test_drop_policy_drops_whole_stale_groups_and_counts_their_tokens():
    ledger = make(steps=10, groups_per_step=1, max_staleness=1, staleness="drop")
    issues = ledger.issue()
    ledger.version = 5
    for issue in issues:
        ledger.finish(issue.group, issue.slot, SlotResult(True, 1.0, oldest_version=0, tokens=10))
    assert ledger.take() is None
    assert ledger.counters["dropped/stale"] == 2
    assert ledger.counters["dropped_tokens"] == 40


def test_tokens_of_a_version_that_was_never_committed_are_refused_on_resume():
    ledger = make(max_staleness=1)
    committed = json.loads(json.dumps(ledger.to_json()))
    issues = ledger.issue()
    for issue in issues[:2]:
        ledger.finish(issue.group, issue.slot, SlotResult(True, 1.0, oldest_version=7))
    ledger.finish(issues[2].group, issues[2].slot, SlotResult(True, 1.0, oldest_version=0))
    journal = json.loads(json.dumps(ledger.drain()))
    resumed = make(max_staleness=1)
    resumed.restore(committed)
    assert resumed.replay(journal) == 1
    assert resumed.counters["refused_results"] == 2
    assert {(issue.group, issue.slot) for issue in issues} - {
        (issue.group, issue.slot) for issue in resumed.issue()
    } == {(issues[2].group, issues[2].slot)}


class LedgerMachine(RuleBasedStateMachine):
    """Any interleaving of issues, results, voids, losses, steps, commits and crashes."""

    @initialize(
        staleness=st.integers(0, 3),
        groups=st.integers(1, 3),
        size=st.integers(2, 3),
        flat=st.booleans(),
        policy=st.sampled_from(["wait", "drop"]),
        in_order=st.booleans(),
        oversample=st.sampled_from([0, 0, 1, 3]),
    )
    def begin(self, staleness, groups, size, flat, policy, in_order, oversample):
        self.fields = {
            "steps": 6,
            "groups_per_step": groups,
            "group_size": size,
            "max_staleness": staleness,
            "staleness": policy,
            "refill_flat_groups": flat,
            "refills": 1,
            "max_voids_in_a_row": 10_000,
            "in_order": in_order,
            "oversample": 0 if in_order else oversample,
            "max_losses": 3,
        }
        self.ledger = make(**self.fields)
        self.running = []
        self.noise = {}
        self.trained = []
        self.committed = (self.ledger.to_json(), list(self.trained))
        self.journal = []
        self.batch = None

    @rule(room=st.sampled_from([1, 2, 3, 5, 100]))
    def issue(self, room):
        issues = self.ledger.issue(room)
        assert len(issues) <= room
        for issue in issues:
            key = (issue.group, issue.slot)
            assert self.noise.setdefault(key, (issue.task_id, issue.attempt)) == (issue.task_id, issue.attempt)
            self.running.append((issue, self.ledger.version))
        self.journal += self.ledger.drain()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), reward=st.sampled_from([0.0, 1.0]), kind=st.sampled_from(["valid"] * 6 + ["void", "lost"]))
    def report(self, data, reward, kind):
        issue, version = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        if kind != "valid" and data.draw(st.booleans()):
            self.running.append((issue, version))  # whoever was given up answers after all
        if kind == "lost":
            self.ledger.lose(issue.group, issue.slot)
        elif kind == "void":
            self.ledger.finish(issue.group, issue.slot, SlotResult(False, cause="host"))
        else:
            self.ledger.finish(issue.group, issue.slot, SlotResult(True, reward, oldest_version=version))
        self.journal += self.ledger.drain()

    @precondition(lambda self: self.batch is None)
    @rule()
    def take(self):
        self.batch = self.ledger.take()
        if self.batch:
            assert len(self.batch) == self.fields["groups_per_step"]
            for group in self.batch:
                assert not group.open()
                assert len(group.valid()) >= self.ledger.config.needed
                assert self.ledger.version - group.oldest() <= self.fields["max_staleness"]
                assert group.number not in self.trained, "a group is trained once"

    @precondition(lambda self: self.batch is not None)
    @rule(commit=st.booleans())
    def step(self, commit):
        before = self.ledger.version
        self.ledger.applied()
        assert self.ledger.version == before + 1
        self.trained += [group.number for group in self.batch]
        self.batch = None
        if commit:
            self.committed = (json.loads(json.dumps(self.ledger.to_json())), list(self.trained))
            self.journal = []

    @rule()
    def crash_and_resume(self):
        state, self.trained = self.committed[0], list(self.committed[1])
        self.ledger = make(**self.fields)
        self.ledger.restore(json.loads(json.dumps(state)))
        self.ledger.replay(json.loads(json.dumps(self.journal)))
        self.running, self.batch = [], None
        assert all(s.state is not SlotState.RUNNING for g in self.ledger.groups.values() for s in g.slots)
        for group in self.ledger.groups.values():
            for result in group.valid():
                assert result.oldest_version <= self.ledger.version, "no token of a version whose bytes are gone"

    @invariant()
    def live_groups_are_bounded(self):
        if hasattr(self, "ledger"):
            assert len(self.ledger.groups) <= self.ledger.config.capacity

    @invariant()
    def what_is_noted_is_what_a_look_at_every_slot_finds(self):
        if hasattr(self, "ledger"):
            groups = self.ledger.groups.values()
            open_ones = Counter(group.version for group in groups if group.open())
            assert +self.ledger._open == open_ones
            ended = {group.number: group.oldest() for group in groups if not group.open()}
            noted = {number: at for at, numbers in self.ledger._ended.items() for number in numbers}
            assert noted == {number: at for number, at in ended.items() if number not in self.ledger.training}
            pending = {g.number for g in groups if any(slot.state is SlotState.PENDING for slot in g.slots)}
            assert pending <= set(self.ledger._waiting)

    def teardown(self):
        """From any state the stage can still be finished: no deadlock."""
        if not hasattr(self, "ledger"):
            return
        if self.batch:
            self.ledger.applied()
        for _ in range(400):
            if self.ledger.step >= self.fields["steps"]:
                break
            for issue in self.ledger.issue():
                self.running.append((issue, self.ledger.version))
            while self.running:
                issue, version = self.running.pop()
                self.ledger.finish(
                    issue.group, issue.slot, SlotResult(True, float(issue.slot % 2), oldest_version=version)
                )
            if self.ledger.take():
                self.ledger.applied()
        assert self.ledger.step == self.fields["steps"]


LedgerMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLedger = LedgerMachine.TestCase
