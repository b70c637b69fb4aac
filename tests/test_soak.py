"""The page of the soak is what its results say: what failed stands there, and ends with 1."""

import importlib.util

import pytest

RESULTS = """<testsuites><testsuite>
<testcase classname="plugins.envs.local.tests.test_local_churn.TestNamespaces" name="test_nothing_stays" time="81.4">
<properties><property name="sandboxes" value="10000" /></properties></testcase>
<testcase classname="plugins.envs.docker.tests.test_docker_churn.TestDocker" name="test_nothing_stays" time="9.0">
<properties><property name="sandboxes" value="500" /></properties>{docker}</testcase>
<testcase classname="tests.test_resume" name="test_killed" time="3.0" />
</testsuite></testsuites>"""


@pytest.fixture
def soak(root, tmp_path, monkeypatch):
    """The page and exit code of results."""
    spec = importlib.util.spec_from_file_location("soak", root / "tools/soak.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PAGE", tmp_path / "soak.md")

    def run(docker, *parts):
        (tmp_path / "results.xml").write_text(RESULTS.format(docker=docker))
        code = module.main(*(parts or [tmp_path / "results.xml"]))
        return code, module.PAGE.read_text()

    return run


def test_a_soak_that_was_run_in_parts_is_one_page(soak, tmp_path):
    parts = [tmp_path / name for name in ("one.xml", "two.xml")]
    for path, name in zip(parts, ("TestNamespaces", "TestQemu"), strict=True):
        path.write_text(RESULTS.format(docker="").replace("TestNamespaces", name))
    code, page = soak("", *parts)
    assert code == 0 and "6 tests passed, 0 did not" in page
    assert "| namespaces | 10,000 |" in page and "| qemu | 10,000 |" in page


def test_what_came_and_went_stands_with_its_count(soak):
    code, page = soak("")
    assert code == 0
    assert "3 tests passed, 0 did not" in page
    assert "| namespaces | 10,000 | 81 | nothing stayed |" in page


@pytest.mark.parametrize("how", ["<failure />", "<error />", "<skipped />"])
def test_what_did_not_pass_is_named(soak, how):
    code, page = soak(how)
    assert code == 1
    assert "| docker | 500 | 9 | FAILED |" in page
    assert "- plugins.envs.docker.tests.test_docker_churn.TestDocker.test_nothing_stays" in page
