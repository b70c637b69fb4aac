"""A slope, a rank correlation, and the frame of points and lines: on made-up points with known answers."""

import math
import re
from xml.etree import ElementTree

import pytest
from study import plots
from study.curves import Sample, rank_correlation, ranks, slope


def line(rise, step_noise=0.0):
    """Two kinds of different height, at eight steps."""
    noise = [step_noise * (-1) ** (step // 2) for step in range(8)]
    return [Sample(float(x), rise * x + 0.5 * kind + noise[x], kind, x) for x in range(8) for kind in (1, 2)]


def test_a_slope_is_that_of_the_lines_and_each_seed_has_its_own():
    one = slope("s", {1: line(0.1), 2: line(0.3)})
    assert one.all.value == pytest.approx(0.2)
    assert [span.value for span in one.seeds.values()] == pytest.approx([0.1, 0.3])
    assert one.verdict == "holds"
    uneven = [*line(0.1), *(Sample(x, 9.0, 3, 7) for x in (7.0, 7.0))]  # a kind that is there late is no rise
    assert slope("s", {1: uneven}).all.value == pytest.approx(0.1)
    assert slope("s", {1: line(0.1), 2: line(0.02, 0.5)}).verdict == "open"
    assert slope("s", {1: line(-0.1)}).verdict == "fails"
    apart = [Sample(1.0, 2.0, 1, 1), Sample(2.0, 3.0, 2, 2)]  # each kind has one x
    assert slope("s", {1: line(0.1), 2: apart}) is None
    assert slope("s", {}) is None


def test_ranks_and_their_correlation():
    assert ranks([10.0, 30.0, 30.0, 20.0]) == [1.0, 3.5, 3.5, 2.0]
    falling = {seed: [(x + 0.1 * seed, math.exp(-x)) for x in (1.0, 2.0, 3.0)] for seed in (1, 2, 3)}
    down = rank_correlation("r", falling)
    assert down.value < -0.9
    assert down.p == pytest.approx(1 / 6**3)
    assert down.seeds == pytest.approx({1: -1.0, 2: -1.0, 3: -1.0})
    assert down.verdict == "holds"
    alone = rank_correlation("r", {1: falling[1]})
    assert (alone.p, alone.verdict) == (pytest.approx(1 / 6), "open")
    up = {seed: [(x, -y) for x, y in points] for seed, points in falling.items()}
    assert rank_correlation("r", up).verdict == "fails"
    assert rank_correlation("r", {1: up[1]}).verdict == "open"
    assert rank_correlation("r", {1: [(1, 1), (2, 2)]}) is None
    assert rank_correlation("r", {1: [(1, 0), (2, 0), (3, 0)]}) is None


def test_a_rank_correlation_counts_the_orders_that_are_as_low():
    """The sums of products of the six orders are 14, 13, 13, 11, 11 and 10; this one's is 13."""
    one = rank_correlation("r", {1: [(1.0, 2.0), (2.0, 1.0), (3.0, 3.0)]})
    assert (one.p, one.p_above) == (pytest.approx(5 / 6), pytest.approx(1 / 2))


def test_a_rank_correlation_of_many_seeds_does_not_try_each_order():
    falling = {seed: [(1.0, 3.0 + seed), (2.0, 2.0 + seed), (3.0, 1.0 + seed)] for seed in range(12)}
    one = rank_correlation("r", falling)
    assert (one.p, one.p_above) == (pytest.approx(6**-12), 1.0)


def test_what_lies_between_seeds_alone_is_no_rank_correlation():
    """One seed is worse in both; within seeds nothing goes along."""
    apart = {seed: [(seed + x, -seed + y) for x, y in ((0.0, 0.0), (0.1, 0.1), (0.2, 0.05))] for seed in (1, 2, 3)}
    one = rank_correlation("r", apart)
    assert one.value < -0.7
    assert one.verdict != "holds"


@pytest.mark.parametrize("line", [(1.0, -1.0), (-3.0, 2.0), (0.0, 0.5), (40.0, 0.0)])
def test_a_line_ends_where_the_frame_does(line):
    drawn = plots.frame([plots.Series("s", [(0.0, 0.0), (2.0, 1.0)], line=line)], "t", "x", "y")
    left, top, bottom = map(float, re.search(r'class="grid" d="M(\S+) (\S+)V(\S+)H', drawn).groups())
    right = float(re.search(r'class="grid" d="[^"]*H([^"]+)"', drawn).group(1))
    ends = re.search(r'class="fit a" d="M(\S+) (\S+)L(\S+) ([^"]+)"', drawn).groups()
    (x_1, y_1, x_2, y_2) = map(float, ends)
    assert left <= x_1 < x_2 <= right
    assert top <= min(y_1, y_2) <= max(y_1, y_2) <= bottom
    for x, y in ((x_1, y_1), (x_2, y_2)):
        assert min(abs(x - left), abs(x - right), abs(y - top), abs(y - bottom)) < 0.11


@pytest.mark.parametrize("line", [(0.0, 9.0), (1.0, 90.0)])
def test_a_line_that_passes_the_frame_by_is_not_drawn(line):
    drawn = plots.frame([plots.Series("s", [(0.0, 0.0), (2.0, 1.0)], line=line)], "t", "x", "y")
    assert 'class="fit' not in drawn


def test_a_frame_has_room_for_points_that_are_alike():
    ElementTree.fromstring(plots.frame([plots.Series("s", [(1.0, 0.0)])], "t", "x", "y"))
