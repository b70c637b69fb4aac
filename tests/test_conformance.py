"""The table of what holds where names tests that exist, and has a line for every case."""

import ast
import importlib.util
import re
from fnmatch import fnmatchcase

import pytest

SUITES = ("testkit/src/composer_testing/contracts", "plugins/envs", "core/tests")


@pytest.fixture(scope="module")
def conformance(root):
    spec = importlib.util.spec_from_file_location("conformance", root / "tools/conformance.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_case_names_tests_that_exist(conformance, root):
    files = [path for folder in SUITES for path in (root / folder).rglob("*.py")]
    trees = [ast.parse(path.read_text()) for path in files]
    names = {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    dead = [
        test
        for case in conformance.CASES.values()
        for test in (*case.tests, *case.of_claims)
        if not any(fnmatchcase(n, test) for n in names)
    ]
    assert not dead


def test_every_claim_of_a_case_is_a_capability_that_some_kind_may_have(conformance):
    from composer_core.capabilities import CAPABILITIES

    claims = {claim for case in conformance.CASES.values() for claim in case.claims}
    assert claims == {name for name in CAPABILITIES if name.startswith("sandbox.")}


def test_the_page_has_a_line_for_every_case_and_no_failure(conformance, root):
    lines = [line for line in conformance.PAGE.read_text().split("\n") if re.match(r"\| [CS]\d", line)]
    assert [line.split(" | ")[0].strip("| ") for line in lines] == list(conformance.CASES)
    assert not [line for line in lines if "**" in line]
    assert all(line.split(" | ")[1] == case.says for line, case in zip(lines, conformance.CASES.values(), strict=True))


def test_results_are_counted_by_kind_and_what_is_not_declared_is_told_from_what_is_missing(conformance, tmp_path):
    claim = conformance.CLAIM
    (tmp_path / "r.xml").write_text(
        "<testsuites><testsuite>"
        f'<testcase classname="plugins.envs.local.tests.x.TestProcess" name="{claim}[sandbox.sessions]"/>'
        '<testcase classname="plugins.envs.local.tests.x.TestProcess" name="test_sessions_are_apart_x"/>'
        f'<testcase classname="plugins.envs.docker.tests.x.TestDocker" name="{claim}[sandbox.sessions]"/>'
        '<testcase classname="plugins.envs.docker.tests.x.TestDocker" name="test_sessions_are_apart_x"/>'
        '<testcase classname="plugins.envs.docker.tests.x.TestDocker" name="test_exit_codes_come_back"/>'
        '<testcase classname="plugins.envs.local.tests.x.TestProcess" name="test_exit_codes_x"><failure/></testcase>'
        "</testsuite></testsuites>"
    )
    text = conformance.page(conformance.results([tmp_path / "r.xml"]), conformance.declared())
    rows = {line.split(" | ")[0].strip("| "): line for line in text.split("\n") if line.startswith("| ")}
    assert rows["C2"].endswith("| – | **0 of 1** | – | 1 | – |")
    assert rows["C5"].endswith("| – | not declared | – | 2 | – |")
