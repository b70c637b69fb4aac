"""run_terminal: one shell command, its output cut in the middle when it is long.

Head and tail are both kept: errors of a build stand at the end, its first cause at the start. No time, process id or
temporary path is added to the text, so equal commands give equal text. A command that fails is no failed call: `ok`
is false only where it was stopped.
"""

from __future__ import annotations

import re
from itertools import groupby

from composer_core import ToolContext, ToolError, ToolOutput
from composer_core.printable import clip
from composer_core.protocols import ExecResult
from composer_plugin_code.config import TerminalConfig

ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


async def run_terminal(context: ToolContext, command: str, timeout: int | None = None) -> ToolOutput:
    """Run a shell command in the workspace; each command starts a fresh shell.

    Args:
        command: what to run
        timeout: seconds after which it is stopped
    """
    config: TerminalConfig = context.config or TerminalConfig()
    if "\0" in command:
        raise ToolError("a command cannot hold a NUL character")
    if timeout is not None and timeout < 1:
        raise ToolError("timeout is at least 1 second")
    longest = context.limits.command_s
    seconds = longest if timeout is None else min(float(timeout), longest)
    result = await context.sandbox.exec([config.shell, "-c", command], timeout_s=seconds)
    ending = _ending(result, seconds)
    limit = min(config.max_chars, context.limits.output_chars) - len(ending) - 1
    text, _ = clip(_text(result, config.compact), limit)
    data = {"status": result.status, "output_bytes": result.stdout_bytes + result.stderr_bytes}
    shown = "\n".join(filter(None, (text, ending)))
    return ToolOutput(shown, ok=result.status == "exited", exit_code=result.exit_code, data=data)


def _text(result: ExecResult, compact: bool) -> str:
    """stdout, then stderr."""
    texts = []
    for data, total in ((result.stdout, result.stdout_bytes), (result.stderr, result.stderr_bytes)):
        text = data.decode(errors="replace")
        text = compacted(text) if compact else text.removesuffix("\n")
        dropped = total - len(data)
        texts.append(text + f"\n... {dropped} bytes dropped" * (dropped > 0))
    return "\n".join(filter(None, texts))


def _ending(result: ExecResult, seconds: float) -> str:
    """How the command ended, unless it ended well."""
    if result.status == "exited":
        return f"exit {result.exit_code}" if result.exit_code else ""
    if result.status == "timeout":
        return f"timeout after {seconds:g} s"
    if result.status == "signaled":
        return f"killed by signal {result.signal}"
    return {"oom": "out of memory", "lost": "the command was lost"}.get(result.status, result.status)


def compacted(text: str) -> str:
    """Without escape sequences, trailing spaces and blank lines; a repeated line stands once, with its count."""
    lines = (line.rstrip() for line in ESCAPES.sub("", text).splitlines())
    kept = []
    for line, same in groupby(filter(None, lines)):
        count = len(list(same))
        kept.append(line if count == 1 else f"{line} (x{count})")
    return "\n".join(kept)
