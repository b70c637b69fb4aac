"""What is kept of an episode beside its summary: facts that the loop knows exactly, and where the rest can be found.

The policy need not spend a summary on them. The history is a file for each closed branch, so each is written once, and
an episode of any length writes what it did and no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from composer_core.protocols import ContextView
from composer_core.types import Message, Trace
from composer_plugin_summary.config import CompactionConfig
from composer_plugin_summary.told import told

CLOSED = ("completed", "cancelled")


def state_of(config: CompactionConfig, view: ContextView) -> tuple[Message, ...]:
    """One message for the branch that is about to be opened, or none where nothing is kept."""
    text = "\n".join(_lines(config, view))
    return (Message("user", text),) if text else ()


def _lines(config: CompactionConfig, view: ContextView) -> Iterator[str]:
    if "count" in config.state:
        yield f"Windows filled so far: {view.branch + 1}"
    todos = [todo for todo in view.state.get("todos", ()) if todo["status"] not in CLOSED]
    if "todos" in config.state and todos:
        yield "Open to-dos:"
        yield from (f"- {todo['id']} {todo['content']} ({todo['status']})" for todo in todos)
    if "history" in config.state:
        yield f"Earlier work can be searched: {config.history}/*.txt"


def files_of(config: CompactionConfig, view: ContextView, segment: Trace) -> Mapping[str, bytes]:
    """The closed branch as a file of the workspace."""
    if "history" not in config.state:
        return {}
    text = told(segment.turns) + "\n"
    return {f"{config.history}/{view.branch + 1:04d}.txt": text.encode("utf-8", "replace")}
