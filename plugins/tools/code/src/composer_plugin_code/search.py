"""grep: ripgrep inside the sandbox, sorted by path so that equal workspaces give equal text."""

from __future__ import annotations

from composer_core import ToolContext, ToolError, ToolOutput
from composer_plugin_code.config import GrepConfig
from composer_plugin_code.paths import clean, shortened

ARGV = ("rg", "--no-config", "--no-heading", "--with-filename", "--line-number", "--color=never", "--sort=path")
NO_MATCH = 1


async def grep(
    context: ToolContext, pattern: str, path: str = "", include: str = "", ignore_case: bool = False
) -> ToolOutput:
    """Search file contents by regular expression; lines come as path:line:text.

    Args:
        pattern: regular expression (Rust syntax)
        path: file or folder, relative to the workspace
        include: glob of file names, such as *.py
        ignore_case: match upper and lower case alike
    """
    config: GrepConfig = context.config or GrepConfig()
    if "\0" in pattern + include:
        raise ToolError("pattern and include cannot hold a NUL character")
    options = (["--ignore-case"] if ignore_case else []) + (["--glob", include] if include else [])
    argv = [*ARGV, *options, "-e", pattern, "--", f"./{clean(path)}"]
    result = await context.sandbox.exec(argv, timeout_s=context.limits.command_s)
    if result.status != "exited":
        raise ToolError(f"the search ended early ({result.status}); narrow path or pattern")
    lines = [line.removeprefix("./") for line in result.stdout.decode(errors="replace").splitlines()]
    if result.exit_code not in (0, NO_MATCH) and not lines:
        raise ToolError(_reason(result.stderr))
    left = len(lines) - config.max_matches
    more = "at least " if result.stdout_bytes > len(result.stdout) else ""
    shown = [shortened(line, config.max_line_chars) for line in lines[: config.max_matches]]
    shown += [f"... {more}{left} more matches; narrow path or pattern"] * (left > 0)
    return ToolOutput("\n".join(shown) or "no matches", data={"matches": len(lines)})


def _reason(stderr: bytes) -> str:
    text = stderr.decode(errors="replace").strip().replace("rg: ", "").replace("./", "")
    return f"grep failed: {text}"
