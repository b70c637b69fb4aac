"""Documents: what a policy reads before it acts.

`train` is the correct text of every function outside held-out modules, each file as `read_file` shows it after a line
with its path, alone and then in shuffled handfuls of its module. `vocabulary` adds examples of everything else that a
tokenizer meets, for building the tokenizer only. No document holds a hidden check or a held-out module's text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from composer_core.noise import key_of, shuffled
from composer_plugin_drills.catalog import Function, siblings
from composer_plugin_drills.drills import drills
from composer_plugin_drills.prompts import prompt
from composer_plugin_drills.workspace import COMMAND, failure_lines, test_file, workspace

HANDFUL = 3
TOOLS = (
    "list_dir",
    "read_file",
    "edit_file",
    "write_file",
    "run_terminal",
    "grep",
    "read_lints",
    "todo_write",
    "finish",
)
ARGUMENTS = ("path", "old", "new", "command", "message")


def train(known: Sequence[Function], variants: int) -> Iterator[str]:
    """Every known function alone, then `variants` times in shuffled handfuls of its module."""
    for function in known:
        yield document(function)
    for variant in range(variants):
        for module in dict.fromkeys(function.module for function in known):
            members = siblings(module)
            order = shuffled(list(range(len(members))), key_of("handful", module, variant))
            for start in range(0, len(order), HANDFUL):
                yield "\n".join(document(members[index]) for index in order[start : start + HANDFUL])


def vocabulary(known: Sequence[Function], vague_share: float) -> Iterator[str]:
    """Training documents, and requests, commands, test output, listings and buggy lines of training tasks."""
    yield from train(known, 0)
    yield "\n".join([*TOOLS, *ARGUMENTS, COMMAND, *(f"ok {count}" for count in range(8, 24))])
    for function in known:
        yield test_file(function)
    yield from ("\n".join([line, "failed 2 of 17"]) for line in failure_lines(known))
    paths = {function.path for function in known}
    for drill in drills().values():
        if drill.split == "train" and drill.path in paths:
            yield "\n".join([prompt(drill, vague_share), drill.path, drill.after.strip()])
    yield "\n".join(file.path for file in workspace(next(iter(drills().values()))).files)


def document(function: Function) -> str:
    """A file's path and its text."""
    return f"{function.path}\n{function.text}"
