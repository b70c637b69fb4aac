"""Hook module: the tools of a coding agent."""

from __future__ import annotations

from collections.abc import Iterable

from composer_core import Problem, RunView, ToolSpec, hookimpl
from composer_plugin_code import promised
from composer_plugin_code.apply_patch import apply_patch
from composer_plugin_code.config import GlobConfig, GrepConfig, LintConfig, ListConfig, ReadConfig, TerminalConfig
from composer_plugin_code.edit import edit_file
from composer_plugin_code.files import delete_file, list_dir, read_file, write_file
from composer_plugin_code.lines import edit_lines
from composer_plugin_code.lints import read_lints
from composer_plugin_code.search import glob, grep
from composer_plugin_code.session import finish, todo_write
from composer_plugin_code.terminal import run_terminal

COMPOSER_API = 1


@hookimpl
def composer_tools() -> Iterable[ToolSpec]:
    yield ToolSpec.of(list_dir, config=ListConfig)
    yield ToolSpec.of(read_file, config=ReadConfig)
    yield ToolSpec.of(glob, config=GlobConfig, needs=("rg",))
    yield ToolSpec.of(grep, config=GrepConfig, needs=("rg",))
    yield ToolSpec.of(promised.semantic_search)
    yield ToolSpec.of(promised.web_search)
    yield ToolSpec.of(edit_file, effect="write")
    yield ToolSpec.of(edit_lines, effect="write")
    yield ToolSpec.of(apply_patch, effect="write")
    yield ToolSpec.of(write_file, effect="write")
    yield ToolSpec.of(delete_file, effect="write")
    yield ToolSpec.of(run_terminal, config=TerminalConfig, effect="exec")
    yield ToolSpec.of(read_lints, config=LintConfig, needs=("ruff", "python3"))
    yield ToolSpec.of(todo_write, effect="write")
    yield ToolSpec.of(finish, effect="write", ends=True)


@hookimpl
def composer_check(run: RunView) -> Iterable[Problem]:
    yield from promised.problems(run)
    tools = dict(run.settings.get("tools", ()))
    if "code/edit_lines" in tools and "code/read_file" in tools and not tools["code/read_file"].line_numbers:
        where = 'tools.settings."code/read_file".line_numbers'
        yield Problem(where, "code/edit_lines edits by line numbers, which the model is not shown", "set it to true")
