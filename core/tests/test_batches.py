"""Which sampled tokens parity may be compared on: those whose whole prefix was computed by the trainer's version."""

import pytest
from attrs import evolve

from composer_core.batches import sequences_of
from composer_core.columns import Column
from composer_core.types import Branch, Hint, Score, SlotKey, Stop, Trace, Turn


def trace_of(*turns: tuple[int, tuple[tuple[int, int], ...], int]) -> Trace:
    """Two ids of prompt, then turns: the branch each is in, its (version, count) runs, and its oldest cache entry."""
    made, rows = [], {}
    for number, (branch, runs, cache_version) in enumerate(turns):
        row = rows.setdefault(branch, [(-1, 2)])
        start = sum(count for _, count in row)
        row += [*runs, (-1, 1)]
        stop = start + sum(count for _, count in runs)
        made.append(Turn(number, branch, start, stop, "", (), cache_version=cache_version))
    branches = tuple(_branch(row) for _, row in sorted(rows.items()))
    return Trace(SlotKey("t", 0), "g", (), branches, tuple(made), Stop.FINISHED)


def _branch(runs: list[tuple[int, int]]) -> Branch:
    sampled = [int(version >= 0) for version, count in runs for _ in range(count)]
    size = len(sampled)
    columns = Column.of("I32", range(size)), Column.of("U8", sampled), Column.of("F32", [0.0] * size)
    return Branch(*columns, versions=tuple(runs))


@pytest.mark.parametrize(
    ("turns", "flags"),
    [
        ([(0, ((5, 3),), 5), (0, ((5, 2),), 5)], ["001110110"]),
        ([(0, ((4, 3),), 4), (0, ((5, 2),), 4)], ["000000000"]),  # sampled over a cache that an older version filled
        ([(0, ((4, 3),), 4), (0, ((5, 2),), 5)], ["000000000"]),  # computed again, but after ids of the older one
        ([(0, ((5, 3),), 5), (0, ((5, 1), (6, 1)), 5)], ["001110000"]),  # swapped in the middle of the second turn
        ([(0, ((5, 3),), 5), (0, ((5, 2),), 4)], ["001110000"]),
        ([(0, ((6, 3),), 6)], ["000000"]),  # newer than the trainer's
        ([(0, ((4, 2),), 4), (1, ((5, 2),), 5)], ["00000", "00110"]),  # a branch has a prefix of its own
    ],
)
def test_tokens_are_comparable_while_nothing_of_another_version_went_before(turns, flags):
    rows = sequences_of(trace_of(*turns), 0, 1.0, version=5)
    assert ["".join(map(str, row.comparable.values())) for row in rows] == flags


def test_without_a_trainers_version_nothing_is_said():
    (row,) = sequences_of(trace_of((0, ((5, 3),), 5)), 0, 1.0)
    assert row.comparable is None


def test_what_rewards_say_of_a_turn_goes_with_the_sequence_that_holds_it():
    trace = trace_of((0, ((5, 3),), 5), (0, ((5, 2),), 5))
    scores = (
        Score("a/a", "", 0.0),
        Score("b/b", "", 0.0, hints={1: "look"}),
        Score("c/c", "", 0.0, hints={1: "think"}),
    )
    (sequence,) = sequences_of(evolve(trace, scores=scores), 0, 1.0)
    turn = trace.turns[1]
    assert sequence.hints == (Hint(turn.start, turn.stop, "look"), Hint(turn.start, turn.stop, "think"))
