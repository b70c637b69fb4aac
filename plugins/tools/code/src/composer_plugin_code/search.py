"""grep and glob: ripgrep inside the sandbox, sorted by path so that equal workspaces give equal text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from string import digits
from typing import Any, Literal

from attrs import frozen

from composer_core import ToolContext, ToolError, ToolOutput
from composer_core.protocols import ExecResult
from composer_plugin_code.config import GlobConfig, GrepConfig
from composer_plugin_code.paths import clean, instead
from composer_plugin_code.room import Line, fitted

RG = ("rg", "--no-config", "--color=never", "--sort=path")
NO_MATCH = 1
BETWEEN = "--"
"""The line that ripgrep prints between groups of lines that are not next to each other."""
Mode = Literal["lines", "files", "counts"]
OPTIONS: dict[str, Sequence[str]] = {
    "lines": ("--no-heading", "--with-filename", "--line-number"),
    "files": ("--files-with-matches",),
    "counts": ("--count", "--with-filename"),
}
MISSING = "No such file or directory"


@frozen
class Found:
    """What a search printed: its lines, paths without the "./" before them, and whether it printed more."""

    lines: list[str]
    matches: list[int]
    """Places of the lines that match; the others stand around them or between such groups."""
    cut: bool

    @classmethod
    def of(cls, result: ExecResult) -> Found:
        text = result.stdout.decode(errors="replace")
        rows = text.removesuffix("\n").split("\n") if "\0" in text else text.splitlines()
        read = [_row(row.removesuffix("\r")) for row in rows]
        matches = [place for place, (_, match) in enumerate(read) if match]
        return cls([line for line, _ in read], matches, result.stdout_bytes > len(result.stdout))

    def shown(self, most: int, room: int, what: str, line_chars: int | None = None) -> str:
        """The first matches with what stands around them, in so many characters, and how many more there are."""
        lines = [Line(line, line_chars or len(line)) for line in self.lines[: self._end(most)]]
        return fitted(lines, room, lambda count: self._more(count, what))[0]

    def _end(self, most: int) -> int:
        """The place behind the last of so many matches and what stands around it."""
        if len(self.matches) <= most:
            return len(self.lines)
        last, following = self.matches[most - 1 : most + 1]
        return next((place for place in range(last, following) if self.lines[place] == BETWEEN), following)

    def _more(self, count: int, what: str) -> str:
        """What is left out when so many lines are shown."""
        left = len(self.matches) - bisect_left(self.matches, count)
        if left:
            told = f"{'at least ' * self.cut}{left} more {what}"
        elif self.cut:
            told = f"at least {len(self.matches)} {what}: the search printed more than is kept"
        else:
            told = f"{len(self.lines) - count} more lines around them"
        return f"... {told}; narrow path or pattern" if self.cut or count < len(self.lines) else ""


def _row(row: str) -> tuple[str, bool]:
    """A line as it is shown, and whether it is a match.

    Where lines around matches are asked for, a NUL ends the path: what a colon stands behind is then the number alone.
    """
    path, null, rest = row.removeprefix("./").partition("\0")
    if not null:
        return path, row != BETWEEN
    mark = rest.lstrip(digits)[:1]
    return f"{path}{mark}{rest}", mark == ":"


async def grep(
    context: ToolContext,
    pattern: str,
    path: str = "",
    include: str = "",
    ignore_case: bool = False,
    mode: Mode = "lines",
    around: int = 0,
    limit: int | None = None,
) -> ToolOutput:
    """Search file contents by regular expression; lines come as path:line:text.

    Args:
        pattern: regular expression (Rust syntax)
        path: file or folder, relative to the workspace
        include: glob of file names, such as *.py
        ignore_case: match upper and lower case alike
        mode: lines; files for the paths that hold a match; counts for path:count
        around: lines shown before and after each match, as path-line-text
        limit: how many lines
    """
    config: GrepConfig = context.config or GrepConfig()
    if around < 0 or (limit is not None and limit < 1):
        raise ToolError("around is at least 0, and limit at least 1")
    options = [*OPTIONS[mode], *(["--ignore-case"] if ignore_case else []), *(["--glob", include] if include else [])]
    options += ["--null", "--context", str(around)] if around and mode == "lines" else []
    found = await _search(context, [*options, "-e", pattern], path)
    most = config.max_matches if limit is None else min(limit, config.max_matches)
    text = found.shown(most, context.limits.output_chars, "matches", config.max_line_chars)
    return ToolOutput(text or "no matches", data={"matches": len(found.matches), "searched": clean(path)})


async def glob(context: ToolContext, pattern: str, path: str = "") -> ToolOutput:
    """Find files by name; paths come sorted. Ignored and hidden files are left out.

    Args:
        pattern: glob such as *.py, or **/test_*.py; one without a slash matches names in any folder
        path: folder to look in, relative to the workspace
    """
    config: GlobConfig = context.config or GlobConfig()
    found = await _search(context, ["--files", "--glob", pattern], path)
    text = found.shown(config.max_files, context.limits.output_chars, "files")
    return ToolOutput(text or "no files", data={"matches": len(found.matches), "searched": clean(path)})


async def _search(context: ToolContext, words: Sequence[str], path: str) -> Found:
    """Run ripgrep below `path`; raises ToolError with what it said, or names near a path that is not there."""
    place = clean(path)
    if any("\0" in word for word in words):
        raise ToolError("a pattern cannot hold a NUL character")
    argv = [*RG, *words, "--", f"./{place}"]
    result = await context.sandbox.exec(argv, timeout_s=context.limits.command_s)
    if result.status != "exited":
        raise ToolError(f"the search ended early ({result.status}); narrow path or pattern")
    if result.exit_code not in (0, NO_MATCH) and not result.stdout:
        gone = place and MISSING in _said(result)
        raise ToolError(
            await instead(context, place, "file or folder") if gone else f"the search failed: {_said(result)}"
        )
    return Found.of(result)


def _said(result: ExecResult) -> Any:
    return result.stderr.decode(errors="replace").strip().replace("rg: ", "").replace("./", "")
