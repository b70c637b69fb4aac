"""One drill as data, and the committed index of all of them.

The index (`drills.jsonl`) holds what building found out by running: which mutations are bugs, and in which split.
Texts are not repeated in it; its first line carries a fingerprint of the library it was made from, so a changed library
is an error and not a silently different task. `build.py` writes it; a test derives it again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from attrs import frozen

from composer_core.errors import ConfigError
from composer_plugin_drills.catalog import Function, functions
from composer_plugin_drills.mutations import Span, changed, replace_line

INDEX = Path(__file__).parent / "drills.jsonl"


@frozen
class Drill:
    """A bug in one line of one function."""

    id: str
    """Readable and stable: function, operator, line, and five hex digits of the bug's content."""
    split: str
    function: Function
    operator: str
    line: int
    """Line of the function's file, from 1."""
    column: int
    """Where in the line the change begins."""
    after: str
    """The line with the bug in it."""
    visible_failed: int
    hidden_failed: int

    @property
    def path(self) -> str:
        return self.function.path

    @property
    def before(self) -> str:
        """The correct line."""
        return self.function.text.split("\n")[self.line - 1]

    @property
    def buggy(self) -> str:
        """The file's text as the agent finds it."""
        return replace_line(self.function.text, self.line, self.before, self.after)

    @property
    def span(self) -> Span:
        """Columns of the correct line that the bug changes; (path, line, span) is the edit site."""
        return changed(self.before, self.after, self.column)

    @property
    def difficulty(self) -> str:
        """blunt, partial or subtle: how much of the function's hidden behavior the bug changes."""
        share = self.hidden_failed / len(self.function.hidden)
        return "blunt" if share > 0.6 else "partial" if share > 0.25 else "subtle"

    def row(self) -> list[str | int]:
        """A line of the index."""
        where: list[str | int] = [
            self.id,
            self.split,
            self.function.module,
            self.function.name,
            self.operator,
            self.line,
            self.column,
        ]
        return [*where, self.after, self.visible_failed, self.hidden_failed]


@cache
def drills() -> Mapping[str, Drill]:
    """Id -> drill, in index order.

    Raises:
        ConfigError: the library is not the one the index was built from.
    """
    lines = INDEX.read_text().splitlines()
    if json.loads(lines[0]) != header():
        raise ConfigError(
            "the index of drills is older than the library",
            who="composer-plugin-drills",
            where=INDEX.name,
            expected=f"{header()}",
            found=lines[0],
            fix="run python -m composer_plugin_drills.build",
        )
    found = [_drill(json.loads(line)) for line in lines[1:]]
    return MappingProxyType({drill.id: drill for drill in found})


def header() -> dict[str, str]:
    """First line of the index."""
    digest = hashlib.sha256()
    for one in functions().values():
        digest.update(repr((one.path, one.text, one.visible, one.hidden)).encode())
    return {"library": digest.hexdigest()}


def dump(rows: Iterable[Drill]) -> str:
    """The index file's text."""
    lines = [json.dumps(header()), *(json.dumps(drill.row(), ensure_ascii=False) for drill in rows)]
    return "\n".join(lines) + "\n"


def _drill(row: list[str | int]) -> Drill:
    name, split, module, function, operator, line, column, after, visible, hidden = row
    return Drill(
        id=str(name),
        split=str(split),
        function=functions()[str(module), str(function)],
        operator=str(operator),
        line=int(line),
        column=int(column),
        after=str(after),
        visible_failed=int(visible),
        hidden_failed=int(hidden),
    )
