"""Which mutations are bugs: run a mutant's checks and see what changes.

A bug worth a task makes at least one visible and one hidden check of its function fail, leaves at least one hidden
check passing, still loads, and does not run forever. Runs in processes of their own under limits on CPU time and
memory, since a mutant may do anything a bug can do. Mutants come from our own library; this is no sandbox.
"""

from __future__ import annotations

import ast
import resource
import signal
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from attrs import frozen

from composer_plugin_drills.catalog import Check, Function
from composer_plugin_drills.inroom.run import canonical

CASE_S = 0.1
"""CPU time of one check."""
MEMORY_BYTES = 4 << 30
"""Address space of a worker."""


@frozen
class Outcome:
    """How a function's checks went for one text."""

    visible_failed: int = 0
    hidden_failed: int = 0
    hidden_passed: int = 0
    broken: bool = False
    """The text did not load, or a check ran out of time."""

    @property
    def correct(self) -> bool:
        return not (self.broken or self.visible_failed or self.hidden_failed)

    @property
    def bug(self) -> bool:
        """Good for a task: seen by both kinds of checks, and not everything is broken."""
        return not self.broken and self.visible_failed > 0 and self.hidden_failed > 0 and self.hidden_passed > 0


class TimedOut(BaseException):
    """Not an Exception, so code under test does not swallow it by accident."""


def outcome(function: Function, text: str) -> Outcome:
    """Run a function's checks against `text`, in this process; see `outcomes` for the safe way."""
    scope: dict[str, Any] = {}
    try:
        exec(compile(text, function.path, "exec"), scope)
        visible = [_holds(one, scope, ast.literal_eval(one.literal)) for one in function.visible]
        hidden = [_holds(one, scope, None) for one in function.hidden]
    except (TimedOut, SyntaxError, MemoryError, NameError):
        return Outcome(broken=True)
    return Outcome(visible.count(False), hidden.count(False), hidden.count(True))


def _holds(check: Check, scope: dict[str, Any], equal_to: object) -> bool:
    """Plain equality for visible checks, as `assert` has it; equal canonical text for hidden ones."""
    signal.setitimer(signal.ITIMER_VIRTUAL, CASE_S)
    try:
        value = eval(check.expression, dict(scope))
        return canonical(value) == check.value or (equal_to is not None and bool(value == equal_to))
    except (MemoryError, NameError):
        raise
    except Exception:
        return False
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def outcomes(pairs: Iterable[tuple[Function, str]], workers: int = 2) -> Iterator[Outcome]:
    """`outcome` of each pair, in order, in processes of their own, whose limit on memory counts nothing inherited."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_limit) as pool:
        yield from pool.map(_outcome, pairs, chunksize=64)


def _outcome(pair: tuple[Function, str]) -> Outcome:
    """Asked once more if it is broken: a check's clock may have counted what something else took from it."""
    found = outcome(*pair)
    return outcome(*pair) if found.broken else found


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGVTALRM, _expire)


def _expire(*_: object) -> None:
    raise TimedOut
