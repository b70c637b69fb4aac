"""The graders' runner: evaluates expressions and reports their values. It arrives in the grading room with `cases.txt`.

It knows questions and no answers: what each expression should give is compared outside the room (`Grading.expected`).
So code under test may read this file, patch this interpreter or write its own report; it still has to name the right
value for every question. Usage: python3 -ISB .grade/run.py

Reports one line `value N TEXT` for case N. TEXT is canonical: it tells 1 from True and [1] from (1,), but does not
depend on the order of sets and dicts; a value of any other type is `?type`, an exception `!type`.
"""

import _signal  # type: ignore[import-not-found]
import posix
import sys

SECONDS = 0.5
"""CPU time for one case; after a case that needs more, nothing else is tried."""
CHARS = 2000
"""Longest value that is reported."""
LEAVES = (bool, int, str, bytes, type(None))
GROUPS = (list, tuple, set, frozenset)


class TimedOut(BaseException):
    pass


def canonical(value: object) -> str:
    """Text that is equal for equal values of equal types; see the module docstring."""
    kind = type(value)
    if kind in LEAVES:
        return ascii(value)
    if kind is float and isinstance(value, float):
        return ascii(value + 0.0)
    if kind is dict and isinstance(value, dict):
        return "{" + ", ".join(sorted([canonical(key) + ": " + canonical(item) for key, item in value.items()])) + "}"
    if kind in GROUPS and isinstance(value, GROUPS):
        items = [canonical(item) for item in value]
        return kind.__name__ + "(" + ", ".join(items if kind in GROUPS[:2] else sorted(items)) + ")"
    return "?" + kind.__name__


def alarm(*_: object) -> None:
    raise TimedOut


def answer(module: str, function: str, expression: str) -> str:
    """The canonical value of one expression, or the name of what it raised."""
    _signal.setitimer(_signal.ITIMER_VIRTUAL, SECONDS)
    try:
        loaded = __import__(module + "." + function, fromlist=[function])
        return canonical(eval(expression, {function: getattr(loaded, function)}))[:CHARS]
    except BaseException as error:
        return "!" + type(error).__name__
    finally:
        _signal.setitimer(_signal.ITIMER_VIRTUAL, 0)


def main() -> None:
    here = __file__.rpartition("/")[0]
    with open(here + "/cases.txt") as file:
        cases = [line.split("\t") for line in file.read().splitlines()]
    _signal.signal(_signal.SIGVTALRM, alarm)
    sys.path.append(here.rpartition("/")[0] or ".")  # last: nothing in the workspace shadows the standard library
    lines = [""]
    for index, case in enumerate(cases):
        text = answer(*case)
        lines.append(f"value {index} {text}")
        if text == "!TimedOut":
            break
    posix.write(1, "\n".join([*lines, ""]).encode())


if __name__ == "__main__":
    main()
