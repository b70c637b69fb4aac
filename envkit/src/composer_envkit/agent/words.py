"""Words of a command, as an agent is given them: whether a program can be, and the answer where it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from composer_envkit.agent import files

COMMANDS = ("exec", "session")
"""Requests whose command ends when nobody waits for it any more: a `kill` with their `number` says so."""
UNFIT = "a word holds a null or half a character"


def are_words(argv: Sequence[str]) -> bool:
    """Whether the kernel takes them."""
    return all("\0" not in word and files.is_text(word) for word in argv)


def not_started(argv: Sequence[str], reason: object) -> tuple[dict[str, Any], bytes]:
    """The answer to a command that no process can be made of; a shell would exit with 126."""
    data = f"{argv[0][:200]}: {reason}\n".encode(errors="replace")
    counts = {"stdout_bytes": 0, "stderr_bytes": len(data), "split": 0, "wall_s": 0.0}
    return {"status": "exited", "exit_code": 126, "signal": None, **counts}, data
