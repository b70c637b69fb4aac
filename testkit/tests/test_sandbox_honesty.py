"""The suite of honesty runs nothing of its ways before it knows that walls stand."""

import importlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from composer_core import BuildContext, SandboxSpec
from composer_testing import honest_ways
from composer_testing.contracts import sandbox_honesty
from composer_testing.contracts.sandbox_honesty import HonestyContract
from composer_testing.honest_task import CASES, GRADING, RIGHT_TEXT, WORKSPACE, repair
from composer_testing.new import SCAFFOLD


@pytest.mark.parametrize(
    ("isolation", "claims", "said"),
    [
        ("none", (), "does not declare that it isolates"),
        ("vm", ("sandbox.isolates",), "a command read a file of the host"),
    ],
)
def test_a_provider_without_walls_is_refused_before_anything_is_run(isolation, claims, said, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(SCAFFOLD / "sandbox/src")
    module = importlib.import_module("composer_plugin_my_name.sandbox")

    def build(config, build):
        return module.MyNameProvider(None, BuildContext(Path()))

    def never(provider):
        raise RuntimeError("something was run")

    monkeypatch.setattr(sandbox_honesty, "manager", never)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    spec = SandboxSpec(name="mine", factory=build, capabilities=claims, isolation=isolation)
    suite = type("Suite", (HonestyContract,), {"spec": spec})()
    suite._tmp_path = tmp_path
    for test in (
        suite.test_the_repair_is_paid_and_nothing_else_is_needed,
        suite.test_the_answer_is_nowhere_to_be_found,
    ):
        with pytest.raises(AssertionError, match=said):
            test()


@pytest.mark.parametrize("contract", ["sandbox_honesty.HonestyContract", "sandbox_verdicts.VerdictContract"])
def test_sandboxes_that_claim_no_walls_are_told_so_once_and_how_to_go_on(contract, tmp_path):
    module, _, name = contract.partition(".")
    (tmp_path / "test_mine.py").write_text(
        f"from composer_testing.contracts.{module} import {name}\n"
        "from composer_testing.fakes.plugin import composer_sandboxes\n"
        f"class TestMine({name}):\n    spec = next(iter(composer_sandboxes()))\n"
    )
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    found = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 error in" in found.stdout and "Traceback" not in found.stdout
    assert "memory does not declare that it isolates: nothing of TestMine may be run in it" in found.stdout
    assert "subclass CommandContract" in found.stdout


def test_the_forgers_answers_are_those_of_the_repaired_module():
    space = {}
    exec(RIGHT_TEXT, space)
    assert {case: str(eval(case, space)) for case in CASES} == dict(GRADING.expected)
    assert repair().apply(WORKSPACE) != WORKSPACE


def test_no_way_stands_twice_and_those_that_are_always_tried_exist():
    tampering, alone, code = set(honest_ways.TAMPERING), set(honest_ways.ALONE), set(honest_ways.CODE)
    assert not tampering & alone and not alone & code
    assert alone | code >= honest_ways.QUICK


@pytest.mark.parametrize("way", {**honest_ways.TAMPERING, **honest_ways.ALONE})
def test_no_way_names_a_folder_of_a_whole_system(way):
    """Walls that hold are no reason to trust them with more than a trial needs."""
    script = {**honest_ways.TAMPERING, **honest_ways.ALONE}[way]
    harmless = ("/dev/null", "/dev/zero", "/workspace", "/proc/1/root/workspace", "#!/bin/sh")
    for words in harmless:
        script = script.replace(words, "")
    assert "$PATH" not in script
    assert not re.findall(r"(?<![\w.$\"'~}])/(?:usr|etc|bin|sbin|lib|opt|tmp|dev|var|root|home|proc|sys)\b", script)
