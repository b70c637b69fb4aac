"""todo_write and finish: what the agent says about its own work. Neither touches the workspace."""

from __future__ import annotations

from typing import Literal

from attrs import asdict, frozen

from composer_core import ToolContext, ToolError, ToolOutput

MARKS = {"pending": "[ ]", "in_progress": "[~]", "completed": "[x]", "cancelled": "[-]"}
OPEN = ("pending", "in_progress")


@frozen
class Todo:
    """One to-do."""

    id: str
    content: str = ""
    """What is to be done; left out, a to-do that is merged keeps what it said."""
    status: Literal["pending", "in_progress", "completed", "cancelled"] = "pending"


def todo_write(context: ToolContext, items: list[Todo], merge: bool = False) -> ToolOutput:
    """Write the list of to-dos, and see it.

    Args:
        items: to-dos, each with id, content and status
        merge: change the to-dos of these ids and keep the others
    """
    ids = [item.id for item in items]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise ToolError(f"two to-dos have the id {twice[0]!r}")
    old = {todo["id"]: todo for todo in context.state.get("todos", [])} if merge else {}
    todos = dict(old)
    for item in items:
        content = item.content or todos.get(item.id, {}).get("content", "")
        if not content:
            raise ToolError(f"the to-do {item.id!r} has no content")
        todos[item.id] = {**asdict(item), "content": content}
    context.state["todos"] = list(todos.values())
    lines = [f"{MARKS[todo['status']]} {todo['id']} {todo['content']}" for todo in todos.values()]
    statuses = {id: todo["status"] for id, todo in todos.items()}
    data = {"open_todos": open_todos(context), "todos": len(todos), "statuses": statuses}
    return ToolOutput("\n".join(lines) or "no to-dos", data=data)


def finish(context: ToolContext, message: str = "") -> ToolOutput:
    """End the work.

    Args:
        message: what was done, in a sentence
    """
    return ToolOutput("", data={"message": message, "open_todos": open_todos(context)})


def open_todos(context: ToolContext) -> int:
    return sum(todo["status"] in OPEN for todo in context.state.get("todos", []))
