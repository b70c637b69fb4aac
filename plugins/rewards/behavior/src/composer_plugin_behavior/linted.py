"""Which files a run of a linter looked at, as far as its words tell."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterable
from fnmatch import fnmatchcase

from composer_plugin_behavior.commands import runs
from composer_plugin_behavior.reading import normal
from composer_plugin_behavior.shell import parts

RUFF = r"\bruff check\b"
VALUED = ("--output-format", "--output-file", "-o", "--target-version", "--line-length", "--cache-dir")
"""Options of ruff whose value may be the next word."""
ELSEWHERE = ("/", "~", "..", "-")
"""How paths begin of which it is not known where they are in the workspace."""


def linted(command: str) -> list[str] | None:
    """The paths that the command's last run of ruff was given, or where it ran; None where that is not known."""
    folder, found = "", list[str]()
    try:
        for part in parts(command):
            words = shlex.split(part.text)
            if words[:1] == ["cd"]:
                folder = posixpath.join(folder, *words[1:])
            elif runs(part, RUFF):
                found = [posixpath.join(folder, path) for path in _paths(words[words.index("check") + 1 :])]
    except ValueError:  # a quote that is never closed, or that hides the program's words
        return None
    return None if any(path.startswith(ELSEWHERE) or "$" in path for path in found) else found


def _paths(words: list[str]) -> list[str]:
    """What ruff was given beside options, up to where its output goes."""
    ends = next((at for at, word in enumerate(words) if ">" in word), len(words))
    pairs = zip(["", *words], words[:ends], strict=False)
    return [word for before, word in pairs if not word.startswith("-") and before not in VALUED] or ["."]


def covers(paths: Iterable[str] | None, path: str) -> bool:
    """Whether a file is one of the paths or stands below one; they may be patterns of a shell's. None covers all."""
    return paths is None or any(
        one in (".", path) or path.startswith(f"{one}/") or fnmatchcase(path, one) for one in map(normal, paths)
    )
