"""grep and glob: ripgrep inside the sandbox, sorted by path so that equal workspaces give equal text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from attrs import frozen

from composer_core import ToolContext, ToolError, ToolOutput
from composer_core.protocols import ExecResult
from composer_plugin_code.config import GlobConfig, GrepConfig
from composer_plugin_code.paths import clean, instead, shortened

RG = ("rg", "--no-config", "--color=never", "--sort=path")
NO_MATCH = 1
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
    cut: bool

    def shown(self, limit: int, what: str, narrow: str, cut_line: Callable[[str], str]) -> str:
        """The first lines, and how many more there are."""
        left = len(self.lines) - limit
        more = f"... {'at least ' if self.cut else ''}{left} more {what}; narrow {narrow}"
        return "\n".join([cut_line(line) for line in self.lines[:limit]] + [more] * (left > 0))


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
    options += ["--context", str(around)] if around and mode == "lines" else []
    found = await _search(context, [*options, "-e", pattern], path)
    most = config.max_matches if limit is None else min(limit, config.max_matches)
    text = found.shown(most, "matches", "path or pattern", lambda line: shortened(line, config.max_line_chars))
    return ToolOutput(text or "no matches", data={"matches": len(found.lines), "searched": clean(path)})


async def glob(context: ToolContext, pattern: str, path: str = "") -> ToolOutput:
    """Find files by name; paths come sorted. Ignored and hidden files are left out.

    Args:
        pattern: glob such as *.py, or **/test_*.py; one without a slash matches names in any folder
        path: folder to look in, relative to the workspace
    """
    config: GlobConfig = context.config or GlobConfig()
    found = await _search(context, ["--files", "--glob", pattern], path)
    text = found.shown(config.max_files, "files", "path or pattern", lambda line: line)
    return ToolOutput(text or "no files", data={"matches": len(found.lines), "searched": clean(path)})


async def _search(context: ToolContext, words: Sequence[str], path: str) -> Found:
    """Run ripgrep below `path`; raises ToolError with what it said, or names near a path that is not there."""
    place = clean(path)
    if any("\0" in word for word in words):
        raise ToolError("a pattern cannot hold a NUL character")
    argv = [*RG, *words, "--", f"./{place}"]
    result = await context.sandbox.exec(argv, timeout_s=context.limits.command_s)
    if result.status != "exited":
        raise ToolError(f"the search ended early ({result.status}); narrow path or pattern")
    lines = [line.removeprefix("./") for line in result.stdout.decode(errors="replace").splitlines()]
    if result.exit_code not in (0, NO_MATCH) and not lines:
        gone = place and MISSING in _said(result)
        raise ToolError(
            await instead(context, place, "file or folder") if gone else f"the search failed: {_said(result)}"
        )
    return Found(lines, result.stdout_bytes > len(result.stdout))


def _said(result: ExecResult) -> Any:
    return result.stderr.decode(errors="replace").strip().replace("rg: ", "").replace("./", "")
