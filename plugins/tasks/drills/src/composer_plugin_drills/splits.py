"""Which bug goes into which split.

An *edit site* is a place in a function: the line, and the columns of its text that change. Each function gives
`PER_NEW_BUG` sites to `new_bug` and one to `new_bug_dev`, each on a line of its own; every other bug that changes any
part of such a site is left out, so no training task changes what stands there (another place on the same line may be
changed). Modules in `catalog.HELD_OUT` go to `new_function` whole. Operators differ a thousandfold in how many bugs
they make, so the held-out splits are drawn towards shares that grow a little slower than that number (`EVENNESS`), and
training takes at most `PER_SITE` bugs of one operator on one line: rare operators are seen, and all splits hold a
similar mix.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from attrs import field, frozen

from composer_core.noise import key_of
from composer_plugin_drills.catalog import Function
from composer_plugin_drills.mutations import Mutation, overlap
from composer_plugin_drills.validate import Outcome

SPLITS: Mapping[str, str] = {
    "train": "bugs to learn from; no edit site of the other splits",
    "new_bug": "functions seen in training, edit sites held out; for reported figures only",
    "new_bug_dev": "the same construction, other edit sites; for tuning and evaluation while training",
    "new_function": "modules kept from every stage",
}
EVENNESS = 0.85
"""Operator shares of held-out splits go with (number of bugs) ** EVENNESS."""
PER_SITE = 4
"""Training bugs of one operator on one line."""
PER_NEW_BUG = 2
"""Bugs of one function in `new_bug`, so that a run on some of the modules still has enough."""
PER_NEW_FUNCTION = 3
"""Bugs of one function in `new_function`, each on a line of its own."""


@frozen
class Bug:
    """A validated mutation."""

    function: Function
    mutation: Mutation
    outcome: Outcome

    @property
    def noise(self) -> int:
        """Decides order and ties, independent of everything but the bug itself."""
        one = self.mutation
        return key_of("drill", self.function.path, one.line, one.column, one.after)


@frozen
class Draw:
    """Takes bugs for one split so that its operators approach their weights."""

    weights: Mapping[str, float]
    taken: Counter[str] = field(factory=Counter)

    def take(self, bugs: Iterable[Bug]) -> Bug | None:
        """The bug whose operator is furthest behind its weight."""
        best = min(bugs, key=self._need, default=None)
        if best is not None:
            self.taken[best.mutation.operator] += 1
        return best

    def _need(self, bug: Bug) -> tuple[float, int]:
        operator = bug.mutation.operator
        return (self.taken[operator] + 1) / self.weights[operator], bug.noise


def assign(bugs: Sequence[Bug]) -> dict[str, list[Bug]]:
    """Split name -> its bugs in their fixed, shuffled order."""
    weights = {name: count**EVENNESS for name, count in Counter(bug.mutation.operator for bug in bugs).items()}
    draws = {split: Draw(weights) for split in SPLITS}
    drawn: dict[str, list[Bug]] = {split: [] for split in SPLITS}
    for sites in _by_function(bugs):
        if next(iter(sites.values()))[0].function.held_out:
            drawn["new_function"] += _spread(sites, draws["new_function"], PER_NEW_FUNCTION)
            continue
        if len(sites) >= 2:
            drawn["new_bug"] += _spread(sites, draws["new_bug"], PER_NEW_BUG)
        if len(sites) >= 2:
            drawn["new_bug_dev"] += _spread(sites, draws["new_bug_dev"], 1)
        for site in sites.values():
            drawn["train"] += _few_of_each(site)
    return {split: sorted(chosen, key=lambda bug: bug.noise) for split, chosen in drawn.items()}


def _by_function(bugs: Sequence[Bug]) -> list[dict[int, list[Bug]]]:
    """Line -> bugs, for each function, in an order without meaning."""
    grouped: dict[str, dict[int, list[Bug]]] = defaultdict(lambda: defaultdict(list))
    for bug in bugs:
        grouped[bug.function.path][bug.mutation.line].append(bug)
    return [grouped[path] for path in sorted(grouped, key=lambda path: key_of("order", path))]


def _spread(sites: dict[int, list[Bug]], draw: Draw, count: int) -> list[Bug]:
    """Take up to `count` bugs on different lines, and take away every bug at their sites."""
    chosen = []
    free = dict(sites)
    for _ in range(count):
        bug = draw.take(one for site in free.values() for one in site)
        if bug is not None:
            chosen.append(bug)
            free.pop(bug.mutation.line)
            line, span = bug.mutation.line, bug.mutation.span
            sites[line] = [other for other in sites[line] if not overlap(other.mutation.span, span)]
    return chosen


def _few_of_each(site: Sequence[Bug]) -> list[Bug]:
    by_operator: dict[str, list[Bug]] = defaultdict(list)
    for bug in sorted(site, key=lambda bug: bug.noise):
        by_operator[bug.mutation.operator].append(bug)
    return [bug for group in by_operator.values() for bug in group[:PER_SITE]]
