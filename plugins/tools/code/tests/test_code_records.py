"""The records of the tools: the contract that every tool keeps, and their effects."""

from __future__ import annotations

from composer_core import ToolSpec
from composer_plugin_code.plugin import composer_tools
from composer_testing.contracts.tools import ToolContract

SPECS = {spec.name: spec for spec in composer_tools()}
MODULE = "composer_plugin_code.plugin"


class TestListDir(ToolContract):
    spec, module = SPECS["list_dir"], MODULE


class TestReadFile(ToolContract):
    spec, module = SPECS["read_file"], MODULE


class TestGrep(ToolContract):
    spec, module = SPECS["grep"], MODULE


class TestEditFile(ToolContract):
    spec, module = SPECS["edit_file"], MODULE


class TestWriteFile(ToolContract):
    spec, module = SPECS["write_file"], MODULE


class TestRunTerminal(ToolContract):
    spec, module = SPECS["run_terminal"], MODULE


class TestReadLints(ToolContract):
    spec, module = SPECS["read_lints"], MODULE


class TestTodoWrite(ToolContract):
    spec, module = SPECS["todo_write"], MODULE


class TestFinish(ToolContract):
    spec, module = SPECS["finish"], MODULE


def test_effects_let_reads_run_together_and_make_the_rest_barriers():
    effects = {name: spec.effect for name, spec in SPECS.items()}
    assert [name for name in effects if effects[name] == "read"] == ["list_dir", "read_file", "grep", "read_lints"]
    assert effects["run_terminal"] == "exec"
    assert [name for name, spec in SPECS.items() if spec.ends] == ["finish"]
    assert SPECS["grep"].needs == ("rg",)


def test_every_spec_is_a_tool_spec():
    assert all(isinstance(spec, ToolSpec) for spec in SPECS.values()) and len(SPECS) == 9
