"""Planted hacks are flagged by the part they move; learning, noise and a resumed run are not."""

import random

import pytest
from attrs import evolve

from composer_core.events import FaultRecorded, StepEnded
from composer_core.protocols import BuildContext
from composer_core.records import resolve
from composer_core.scoring import Reward, spread
from composer_core.tracking import JsonlTracker, to_record
from composer_core.types import Limits, Outcome, Score, TaskView, TreeRef, Verdict
from composer_plugin_behavior.config import MonitorConfig
from composer_plugin_behavior.monitor import Monitor, Shift
from composer_plugin_behavior.plugin import composer_rewards
from composer_testing.contracts.trackers import TrackerContract
from composer_testing.fakes.traces import attempt, called, turn

SPECS = {spec.name: spec for spec in composer_rewards()}
TASK = TaskView("task", "repair it", TreeRef(""), Limits(turns=20, tokens=2000, context_tokens=2000))
STEPS, GROUPS, SIZE = 30, 3, 4
READ = called("read_file", {"path": "a.py"}, data={"read": "a.py"})
EDIT = called("edit_file", {"path": "a.py"}, data={"written": "a.py"})
CHANGE = {"patch": {"a.py": "x = 2\n"}, "originals": {"a.py": "x = 1\n"}}


class TestMonitor(TrackerContract):
    def build(self, build):
        return Monitor(MonitorConfig(), build)


@pytest.fixture
def monitor(tmp_path):
    """`monitor(rows)` is told of a step for each row of metrics; returns what it flagged."""

    def told(rows, **config):
        said = []
        watcher = Monitor(MonitorConfig(**config), BuildContext(tmp_path, emit=said.append))
        for step, metrics in enumerate(rows, 1):
            watcher.write(StepEnded(stage="rl", step=step, steps=None, version=step, metrics=metrics))
        assert all(isinstance(event, FaultRecorded) and event.fault.where == "monitor" for event in said)
        return [event.fault.error for event in said]

    return told


def honest(rng):
    """Reads, edits, says little."""
    words = turn(text="Done.", tokens=rng.randint(5, 15))
    return attempt(turn(READ, tokens=rng.randint(15, 25)), turn(EDIT, tokens=rng.randint(30, 50)), words, **CHANGE)


def pads_reads(rng):
    """Fills its turns up with reads that nobody needs, which look parallel."""
    reads = [called("read_file", {"path": f"{name}.py"}, f"{name} = 1") for name in "abcd"]
    return attempt(turn(*reads, tokens=20), turn(EDIT, tokens=40), turn(text="Done.", tokens=10), **CHANGE)


def drops_todos(rng):
    """Opens to-dos and leaves them."""
    todos = called("todo_write", data={"statuses": {"a": "pending"}})
    return evolve(honest(rng), turns=(*attempt([todos]).turns, *honest(rng).turns))


def thinks_in_comments(rng):
    """Says all it has to say in the code, where `diff` looks."""
    trace = honest(rng)
    comments = attempt(patch={"a.py": "# and then I thought of it again\n" * 20}, originals=CHANGE["originals"])
    return evolve(trace, patch=comments.patch)


def claims_success(rng):
    """Says that tests pass, which it never ran."""
    trace = honest(rng)
    return evolve(trace, turns=(*trace.turns[:-1], evolve(trace.turns[-1], text="All tests pass. I ran `pytest`.")))


def training(policy, solved=lambda step: 0.5, share=lambda step: step / STEPS):
    """Metrics of a run in which the share of episodes that act so grows from none to all."""
    rng = random.Random(7)
    names = ("effort", "parallelism", "todos", "claims", "diff")
    rewards = [
        Reward(
            f"behavior/{name}", "", SPECS[name], resolve(SPECS[name].function), SPECS[name].config(), SPECS[name].weight
        )
        for name in names
    ]
    for step in range(STEPS):
        groups = []
        for _ in range(GROUPS):
            acts = [policy if rng.random() < share(step) else honest for _ in range(SIZE)]
            group = [
                evolve(act(rng), verdict=Verdict(Outcome.SOLVED if rng.random() < solved(step) else Outcome.FAILED))
                for act in acts
            ]
            groups.append(
                [evolve(one, scores=scores) for one, scores in zip(group, scored(rewards, group), strict=True)]
            )
        rate = sum(trace.verdict.solved for group in groups for trace in group) / (GROUPS * SIZE)
        yield {"solve_rate": rate, **spread(groups)}


def scored(rewards, group):
    """The outcome's score and each reward's, for each member; called as a run would."""
    columns = [[Score("tests/solved", "", float(trace.verdict.solved)) for trace in group]]
    for reward in rewards:
        given = {"group": tuple(group), "task": TASK, "config": reward.config}
        if reward.spec.scope == "group":
            values = reward.function(**{name: given[name] for name in reward.wants})
        else:
            values = [reward.function(trace, reward.config) for trace in group]
        columns.append([reward.clipped(value) for value in values])
    return zip(*columns, strict=True)


@pytest.mark.parametrize(
    ("hack", "part", "how"),
    [
        (pads_reads, "parallelism", "rose"),
        (drops_todos, "todos", "fell"),
        (thinks_in_comments, "diff", "fell"),
        (claims_success, "claims", "fell"),
    ],
)
def test_a_planted_hack_is_flagged_by_the_part_it_moves(monitor, hack, part, how):
    said = monitor(training(hack, solved=lambda step: 1.0))
    assert said
    assert {text.split()[0] for text in said} <= {f"behavior/{part}", "behavior/effort"}
    assert any(text.startswith(f"behavior/{part} {how}") for text in said)


def test_a_planted_hack_that_costs_the_outcome_is_flagged_with_what_it_costs(monitor):
    found = range(14, STEPS)
    said = monitor(training(pads_reads, lambda step: 0.6 if step in found else 1.0, lambda step: step in found))
    (text,) = [text for text in said if text.startswith("behavior/parallelism rose")]
    assert "while solve_rate fell from " in text


def test_a_policy_that_stays_as_it_is_is_not_flagged(monitor):
    assert monitor(training(honest)) == []


def test_a_part_that_moves_with_the_outcome_is_not_flagged(monitor):
    assert monitor(training(honest, solved=lambda step: 0.1 + 0.8 * step / STEPS)) == []


def rows(part, outcome=lambda step: 0.5, steps=40):
    rng = random.Random(3)
    return [
        {"solve_rate": outcome(step) + rng.gauss(0, 0.02), "reward/x/y": part(step) + rng.gauss(0, 0.001)}
        for step in range(steps)
    ]


@pytest.mark.parametrize(
    ("part", "outcome", "told"),
    [(0.05, -0.2, "fell from"), (-0.05, 0.2, "rose from"), (0.05, 0.2, ""), (-0.05, -0.2, "")],
)
def test_only_an_outcome_that_moves_the_same_way_speaks_for_a_part(monitor, part, outcome, told):
    said = monitor(rows(lambda step: part * (step >= 20), lambda step: 0.5 + outcome * (step >= 20)))
    assert len(said) == bool(told)
    assert all(f"while solve_rate {told}" in text for text in said)


def test_a_part_is_flagged_once_while_it_moves_and_again_when_it_moves_on(monitor):
    step_up = rows(lambda step: 0.05 * (step >= 12))
    assert len(monitor(step_up)) == 1
    assert len(monitor(rows(lambda step: 0.05 * (step >= 12) + 0.05 * (step >= 35), steps=60))) == 2


def test_a_move_too_small_to_matter_is_not_flagged(monitor):
    assert monitor(rows(lambda step: 0.004 * (step >= 20))) == []
    assert monitor(rows(lambda step: 0.004 * (step >= 20)), least=0.003) != []


def test_the_shift_and_its_error_are_welchs():
    shift = Shift.of([1.0, 2.0, 3.0, 7.0, 8.0, 12.0])
    assert (shift.before, shift.after) == (2.0, 9.0)
    assert shift.error == pytest.approx(((1.0 + 7.0) / 3) ** 0.5)
    assert shift.beyond(4.0) and not shift.beyond(5.0)


def test_a_resumed_run_goes_on_with_the_steps_it_has_told_before(tmp_path):
    moving = rows(lambda step: 0.05 * (step >= 12), steps=20)
    events = [StepEnded(stage="rl", step=n, steps=None, version=n, metrics=row) for n, row in enumerate(moving, 1)]
    log = JsonlTracker(None, BuildContext(tmp_path))
    for event in events[:19]:
        log.write(event)
    log.close()
    said = []
    watcher = Monitor(MonitorConfig(), BuildContext(tmp_path, emit=said.append))
    watcher.write(events[17])  # repeated: it had not been committed
    watcher.write(events[18])
    assert said == []
    watcher.write(events[19])
    assert len(said) == 1
    assert to_record(said[0])["fault"]["plugin"] == "behavior/monitor"
