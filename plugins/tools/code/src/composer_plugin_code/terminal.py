"""run_terminal: one shell command, its output cut in the middle when it is long.

Head and tail are both kept: errors of a build stand at the end, its first cause at the start; what the sandbox has kept
of it is left in a file of SCRATCH that the agent can read, and the text says whether that is all. So is what a command
in the background prints, while it runs and after. No time, process id or temporary path is added to the text, so equal
commands give equal text. A command that fails is no failed call: `ok` is false only where it was stopped.
"""

from __future__ import annotations

import re
from itertools import groupby

from composer_core import ToolContext, ToolError, ToolOutput
from composer_core.errors import PathError, QuotaError, Unsupported
from composer_core.printable import clip
from composer_core.protocols import ExecResult
from composer_core.trees import SCRATCH
from composer_plugin_code.config import TerminalConfig

ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
SESSION = "background"
RUN = 'timeout -k 5 "$3" "$4" -c "$2" & echo $! > "$1.pid"; { wait $!; code=$?; } 2> /dev/null; echo "exit $code"'
START = f"""
mkdir -p "${{1%/*}}" && : > "$1.txt" || exit
sh -c '{RUN}' sh "$@" > "$1.txt" 2>&1 < /dev/null &
"""
"""Starts the command $2 in the background, for at most $3 seconds of the shell $4.

Its output and "exit N" go to the file $1.txt. SIGTERM for the process of $1.pid reaches all of its group. It is played
in a session, since nothing that a plain command leaves behind outlives it.
"""


async def run_terminal(
    context: ToolContext, command: str, timeout: int | None = None, background: bool = False
) -> ToolOutput:
    """Run a shell command in the workspace; each command starts a fresh shell.

    Args:
        command: what to run
        timeout: seconds after which it is stopped
        background: return at once and let it run; its output is left in a file to be read later
    """
    config: TerminalConfig = context.config or TerminalConfig()
    if "\0" in command:
        raise ToolError("a command cannot hold a NUL character")
    if timeout is not None and timeout < 1:
        raise ToolError("timeout is at least 1 second")
    if background:
        return await _start(context, config, command, timeout or config.background_s)
    longest = context.limits.command_s
    seconds = longest if timeout is None else min(float(timeout), longest)
    result = await context.sandbox.exec([config.shell, "-c", command], timeout_s=seconds)
    ending = _ending(result, seconds)
    limit = min(config.max_chars, context.limits.output_chars) - len(ending) - 1
    printed, kept = result.stdout_bytes + result.stderr_bytes, len(result.stdout) + len(result.stderr)
    what = "all of it" if kept == printed else f"what was kept of it, {kept} of {printed} bytes"
    text = await _shown(context, _text(result, config.compact), limit, what)
    data = {"status": result.status, "output_bytes": printed}
    shown = "\n".join(filter(None, (text, ending)))
    return ToolOutput(shown, ok=result.status == "exited", exit_code=result.exit_code, data=data)


async def _start(context: ToolContext, config: TerminalConfig, command: str, seconds: int) -> ToolOutput:
    """Begin a command that outlives the call."""
    name = _next(context, "job")
    words = ["sh", "-c", START, "sh", name, command, str(seconds), config.shell]
    try:
        result = await context.sandbox.session_exec(SESSION, words)
    except Unsupported:
        raise ToolError("this sandbox has no commands in the background; run it without") from None
    if result.status != "exited" or result.exit_code:
        raise ToolError(f"the command was not started: {result.stderr.decode(errors='replace').strip()}")
    text = (
        f"started; its output is in {name}.txt, which ends with a line 'exit N' once it has ended; "
        f'"kill $(cat {name}.pid)" stops it'
    )
    return ToolOutput(text, data={"status": "started", "job": name})


async def _shown(context: ToolContext, text: str, limit: int, what: str) -> str:
    """The text, or head and tail of it with the name of the file that holds `what`."""
    if len(text) <= limit:
        return text
    name = f"{_next(context, 'output')}.txt"
    try:
        await context.sandbox.write(name, text.encode(errors="replace"))
    except (PathError, QuotaError):
        return clip(text, limit)[0]  # the workspace is full, or the agent has put something else in the way
    note = f"\n({what}: {name})"
    return clip(text, limit - len(note))[0] + note


def _next(context: ToolContext, kind: str) -> str:
    """A path in SCRATCH that nothing was left at before."""
    count = context.state[f"{kind}s"] = context.state.get(f"{kind}s", 0) + 1
    return f"{SCRATCH}/{kind}-{count}"


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
