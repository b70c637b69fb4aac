"""What a shell command does, as far as its text tells: which program its exit code speaks for, what it may change.

A mention is no run: what is quoted, echoed or put into a comment counts for nothing, nor does a program that is asked
for its version alone, that is told to look away, or whose code the shell replaces by another's (a pipe, `;`, `||`, `&`,
`!`, an `exit` or a trap before it). A shell can be made to lie in ways that no reading of its text finds, such as a
variable that holds an option.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from composer_plugin_behavior.reading import normal
from composer_plugin_behavior.shell import Part, parts

BEFORE = re.compile(
    r"(?:(?:\w+=\S*|env|time|npx|bash|sh|(?:uv|poetry|pdm|hatch)\s+run|timeout(?:\s+-\S+)*\s+\S+"
    r"|(?:\S*/)?python[\d.]*(?:\s+-\S+)*)\s+)*"
)
"""Words that may stand before a program and run it."""
IDLE = re.compile(
    r"(?<![\w-])(?:--version|-V|--help|-h|--collect-?only|--co|--fixtures(?:-per-test)?|--funcargs|--markers"
    r"|--setup-?(?:only|plan)|--cache-show|--list\w*|--notest|--showconfig|--no-run|--dry-run|--if-present"
    r"|--passWithNoTests|--exit-zero)(?![\w-])"
)
"""Arguments with which a program judges nothing."""
IDLE_OF = re.compile(
    r"(?:(?:tox|nox)\b.*[\s'\"](?:-l|-a|list|config)|go\b.*[\s'\"]--?(?:run|list|c|n)|make\b.*[\s'\"]-n"
    r"|ruff\b.*[\s'\"](?:-\w*e|--(?:fix-only|diff|show-\w+|add-noqa|select|config|(?:extend-)?(?:ignore|exclude)"
    r"|(?:extend-)?per-file-ignores)))(?![\w-])",
    re.DOTALL,
)
"""Those that mean it to one program alone, or with which it judges less than it would."""
SETS = re.compile(r"(?:OPTS|OPTIONS|FLAGS|(?<!\w)PATH)=")
"""Variables that hold a program's arguments, or put another in its place."""
LEAVES = re.compile(r"(?<![\w./-])(?:exit|exec|return|trap|eval|alias|function)(?![\w./-])|\(\s*\)")
"""Words after which what follows may not run, be another program, or not decide the code."""
LOOKS = re.compile(
    r"(?:(?:cat|head|tail|nl|wc|ls|stat|file|pwd|cd|echo|printf|true|test|grep|egrep|rg|diff|cmp|find"
    r"|git\s+(?:diff|show|log|status|blame|grep|add|commit))(?![\w./-])|sed -n ['\"]?[\d,$]+p['\"]?(?=\s)(?!.*\s-))"
)
"""Programs that leave the workspace's files as they are, unless told to by one of these:"""
WRITES = re.compile(r"`|\$\(|(?<!\S)-(?:exec|ok|delete|fprint|fls)|--output\b|--pre\b")
NOWHERE = re.compile(r"[\d&]?>{1,2}\s*(?:&\d|/dev/null)(?!\S)")


def judged_by(command: str, program: str, own: Collection[str] = ()) -> bool:
    """Whether exit code 0 of the command says that `program`, a regular expression of its first words, ended with 0.

    `own` are files that are not believed as programs.
    """
    found = list(parts(command))
    ran = [at for at, part in enumerate(found) if runs(part, program, own)]
    if not ran or any(part.sign != "&&" for part in found[ran[-1] + 1 :]):
        return False
    until = found[: ran[-1] + 1]
    if any(part.sign == "||" or SETS.search(part.bare) for part in until):
        return False
    return not any(LEAVES.search(part.bare) for part in until[:-1])


def changing(command: str, harmless: Sequence[str] = (), after: str = "") -> str:
    """The command's parts, a line each, that may change files: they do more than look, and run nothing harmless.

    `harmless` and `after` are regular expressions of programs; what stands before the last run of `after` is left out.
    """
    found = list(parts(command))
    ran = [at for at, part in enumerate(found) if after and runs(part, after)]
    rest = found[ran[-1] + 1 :] if ran else found
    kept = (part for part in rest if not _looks(part) and not any(runs(part, program) for program in harmless))
    return "\n".join(part.text for part in kept if part.text)


def runs(part: Part, program: str, own: Collection[str] = ()) -> bool:
    """Whether a simple command is a run of the program that judges something."""
    start = len(part.bare) - len(BEFORE.sub("", part.bare, count=1))
    words = part.bare[start:]
    found = re.search(program, words)
    if found is None or found.start() >= len(first := words.split()[0]):
        return False
    mine = any(path == normal(first) or path.endswith(f"/{normal(first)}") for path in own)
    return not mine and not IDLE.search(part.text) and not IDLE_OF.match(part.text[start:])


def _looks(part: Part) -> bool:
    into = re.search(r">|<<", NOWHERE.sub("", part.bare))
    return bool(LOOKS.match(part.text)) and not into and not WRITES.search(part.text)
