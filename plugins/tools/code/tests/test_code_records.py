"""The records of the tools: the contract that every tool keeps, and their effects."""

from __future__ import annotations

from composer_core import ToolSpec
from composer_plugin_code.plugin import composer_tools
from composer_testing.contracts.hook_modules import HookModuleContract
from composer_testing.contracts.searches import SemanticSearchContract, WebSearchContract
from composer_testing.contracts.tools import ToolContract

SPECS = {spec.name: spec for spec in composer_tools()}


class TestHookModule(HookModuleContract):
    module = "composer_plugin_code.plugin"


class TestListDir(ToolContract):
    spec = SPECS["list_dir"]


class TestReadFile(ToolContract):
    spec = SPECS["read_file"]


class TestGlob(ToolContract):
    spec = SPECS["glob"]


class TestGrep(ToolContract):
    spec = SPECS["grep"]


class TestEditFile(ToolContract):
    spec = SPECS["edit_file"]


class TestEditLines(ToolContract):
    spec = SPECS["edit_lines"]


class TestApplyPatch(ToolContract):
    spec = SPECS["apply_patch"]


class TestDeleteFile(ToolContract):
    spec = SPECS["delete_file"]


class TestWriteFile(ToolContract):
    spec = SPECS["write_file"]


class TestRunTerminal(ToolContract):
    spec = SPECS["run_terminal"]


class TestReadLints(ToolContract):
    spec = SPECS["read_lints"]


class TestTodoWrite(ToolContract):
    spec = SPECS["todo_write"]


class TestFinish(ToolContract):
    spec = SPECS["finish"]


class TestSemanticSearch(SemanticSearchContract):
    spec = SPECS["semantic_search"]


class TestWebSearch(WebSearchContract):
    spec = SPECS["web_search"]


def test_effects_let_reads_run_together_and_make_the_rest_barriers():
    effects = {name: spec.effect for name, spec in SPECS.items()}
    reads = ["list_dir", "read_file", "glob", "grep", "semantic_search", "web_search", "read_lints"]
    assert [name for name in effects if effects[name] == "read"] == reads
    assert effects["run_terminal"] == "exec"
    assert [name for name, spec in SPECS.items() if spec.ends] == ["finish"]
    assert SPECS["grep"].needs == SPECS["glob"].needs == ("rg",)


def test_every_spec_is_a_tool_spec():
    assert all(isinstance(spec, ToolSpec) for spec in SPECS.values()) and len(SPECS) == 15
