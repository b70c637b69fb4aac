"""Derive the index of drills from the library: mutate, run, keep what is a bug, split.

    python -m composer_plugin_drills.build            # writes drills.jsonl beside this file
    python -m composer_plugin_drills.build --counts   # only prints how many there are

Takes a few seconds on two cores. The result depends on the library, the operators and the split rule only.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence

from composer_plugin_drills.catalog import Function, functions
from composer_plugin_drills.drills import INDEX, Drill, dump
from composer_plugin_drills.mutations import mutate
from composer_plugin_drills.splits import Bug, assign
from composer_plugin_drills.validate import outcomes


def derive(chosen: Iterable[Function] | None = None) -> list[Bug]:
    """Every bug of some functions (default: all), in source order.

    Raises:
        ValueError: a function fails its own checks.
    """
    chosen = list(functions().values() if chosen is None else chosen)
    for function, found in zip(chosen, outcomes((one, one.text) for one in chosen), strict=True):
        if not found.correct:
            raise ValueError(f"{function.path} fails its own checks: {found}")
    mutants = [(function, mutation) for function in chosen for mutation in mutate(function.text, function.name)]
    results = outcomes((function, mutation.apply(function.text)) for function, mutation in mutants)
    return [Bug(*mutant, result) for mutant, result in zip(mutants, results, strict=True) if result.bug]


def build(bugs: Sequence[Bug]) -> list[Drill]:
    """The drills of all splits, in order."""
    rows = [_drill(bug, split) for split, chosen in assign(bugs).items() for bug in chosen]
    names = Counter(drill.id for drill in rows)
    if names.total() != len(names):
        raise ValueError(f"two drills of one name: {names.most_common(1)}")
    return rows


def _drill(bug: Bug, split: str) -> Drill:
    one = bug.mutation
    return Drill(
        id=f"{bug.function.name}-{one.operator}-{one.line}-{bug.noise & 0xFFFFF:05x}",
        split=split,
        function=bug.function,
        operator=one.operator,
        line=one.line,
        column=one.column,
        after=one.after,
        visible_failed=bug.outcome.visible_failed,
        hidden_failed=bug.outcome.hidden_failed,
    )


def counts(rows: Iterable[Drill]) -> str:
    """A table of operators by splits."""
    table = Counter((drill.operator, drill.split) for drill in rows)
    splits = list(dict.fromkeys(split for _, split in table))
    lines = [f"{'operator':18}" + "".join(f"{split:>14}" for split in splits)]
    totals: Counter[str] = Counter()
    for (_, split), count in table.items():
        totals[split] += count
    for operator in sorted({operator for operator, _ in table}):
        lines.append(f"{operator:18}" + "".join(f"{table[operator, split]:14}" for split in splits))
    return "\n".join([*lines, f"{'all':18}" + "".join(f"{totals[split]:14}" for split in splits)])


def main(arguments: Sequence[str]) -> None:
    rows = build(derive())
    if "--counts" not in arguments:
        INDEX.write_text(dump(rows))
    sys.stdout.write(counts(rows) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
