"""Everything that is wrong with a run file in one message: whoever mends one thing wants to know of the others.

What looks at a run file collects `Problem`s, or catches an error and goes on with what does not depend on it; at the
end all are told together, each with its place and its fix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from composer_core.errors import CheckError, ComposerError
from composer_core.hookspecs import Problem


def told(error: ComposerError) -> list[Problem]:
    """What an error says: the problems that it was made of, or itself as one."""
    fields = error.fields
    if "problems" in fields:
        return list(fields["problems"])
    said = "; ".join(
        [error.message, *(f"{name} {fields[name]}" for name in ("who", "expected", "found") if name in fields)]
    )
    return [Problem(str(fields.get("where", "")), said, str(fields.get("fix", "")))]


def refuse(problems: Iterable[Problem], where: str, kind: type[ComposerError] = CheckError) -> None:
    """Raise all problems, each told once, as one error.

    Raises:
        kind: there is at least one.
    """
    each: Sequence[Problem] = tuple(dict.fromkeys(problems))
    if each:
        count = "1 problem" if len(each) == 1 else f"{len(each)} problems"
        raise kind("\n  - ".join([f"{count} in {where}", *map(_line, each)]), problems=each)


def _line(problem: Problem) -> str:
    place = f"{problem.where}: " if problem.where else ""
    fix = f" (fix: {problem.fix})" if problem.fix else ""
    return f"{place}{problem.message}{fix}"
