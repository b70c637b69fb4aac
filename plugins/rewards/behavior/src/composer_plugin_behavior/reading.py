"""What a trace says about an episode: calls with their results, what was seen before a turn, the final message.

Only what the policy had been shown counts as seen: calls of one turn were all written before any of their results, so
the results of a turn are known from the next one on.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator

from attrs import Factory, define

from composer_core import Trace
from composer_core.types import Call, ToolResult, Turn

THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)


def executed(turn: Turn) -> Iterator[tuple[Call, ToolResult]]:
    """The turn's calls that could be executed, each with its result."""
    results = {result.call_id: result for result in turn.results}
    return ((call, results[call.id]) for call in turn.calls if call.problem is None and call.id in results)


def normal(path: str) -> str:
    return posixpath.normpath(path)


def changed(result: ToolResult) -> list[str]:
    """The paths that a call has written or deleted: a text, or a list where a tool changes several files."""
    found = [result.data.get(key, ()) for key in ("written", "deleted")] if result.ok else []
    return [normal(path) for paths in found for path in ([paths] if isinstance(paths, str) else paths)]


def names(text: str, path: str) -> bool:
    """Whether a text names a path, and no longer one that holds it."""
    return path in text and re.search(rf"(?<![\w./-])(?:\./)?{re.escape(path)}(?![\w/-])", text) is not None


def final_message(trace: Trace) -> str:
    """The words of the last turn, thoughts left out, and the message of the call that ended the episode."""
    last = [turn for turn in trace.turns if turn.purpose == "act"][-1:]
    ended = [result.data["message"] for turn in last for result in turn.results if "message" in result.data]
    return "\n".join(filter(None, [*(THOUGHT.sub("", turn.text).strip() for turn in last), *map(str, ended)]))


@define
class Seen:
    """What the policy has been shown so far, turn by turn."""

    tools: Collection[str]
    """Those that look or run commands; others may repeat what the policy has made up, as a list of to-dos does."""
    read: set[str] = Factory(set)
    """Paths whose contents were shown."""
    texts: list[str] = Factory(list)
    """Arguments of calls of these tools that changed no file, and what they printed."""

    def add(self, turn: Turn) -> None:
        """Take in a turn that has ended."""
        for call, result in executed(turn):
            if not result.ok or changed(result):
                continue
            if isinstance(path := result.data.get("read"), str):
                self.read.add(normal(path))
            if call.name not in self.tools:
                continue
            self.texts += [str(value) for value in call.arguments.values()]
            folder = str(result.data.get("listed", ""))
            lines = result.text.split("\n") if folder else []
            self.texts += [result.text, *(posixpath.join(folder, line) for line in lines)]

    def knows(self, path: str) -> bool:
        """Whether a file was read, or its path was met."""
        return path in self.read or any(names(text, path) for text in self.texts)
