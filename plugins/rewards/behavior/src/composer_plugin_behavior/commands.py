"""Which program a shell command's exit code speaks for, as far as its text tells.

A mention is no run: what is quoted, echoed or put into a comment counts for nothing, nor does a program that is asked
for its version alone, or whose code the shell replaces by another's (a pipe, `;`, `||`, `&`, `!`). A shell can be made
to lie in ways that no reading of its text finds, such as a function with a program's name.
"""

from __future__ import annotations

import re

QUOTED = re.compile(r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"|(?<!\S)#[^\n]*", re.DOTALL)
APART = re.compile(r"\|\||[;|\n]|(?<![&>])&(?![&>])")
"""What stands between commands of which the last decides the exit code."""
BEFORE = re.compile(
    r"(?:(?:\w+=\S*|env|time|npx|bash|sh|(?:uv|poetry|pdm|hatch)\s+run|timeout(?:\s+-\S+)*\s+\S+"
    r"|(?:\S*/)?python[\d.]*(?:\s+-\S+)*)\s+)*"
)
"""Words that may stand before a program and run it."""
IDLE = re.compile(r"(?<!\S)(?:--version|-V|--help|-h|--collect-only|--co|--exit-zero)(?!\S)")
"""Arguments with which a program judges nothing."""


def judged_by(command: str, program: str) -> bool:
    """Whether exit code 0 of the command says that `program`, a regular expression of its first words, ended with 0."""
    last = APART.split(QUOTED.sub("_", command).strip(" \t\n;)"))[-1]
    return any(_runs(part.strip(" \t\n("), program) for part in last.split("&&"))


def _runs(part: str, program: str) -> bool:
    words = BEFORE.sub("", part, count=1)
    found = re.search(program, words)
    return found is not None and found.start() < len(words.split()[0]) and not IDLE.search(words)
