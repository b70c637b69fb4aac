"""What the README promises beyond what `test_docs` runs of it: its run files, its validation, the two commands."""

import re

import pytest


@pytest.fixture(scope="module")
def readme(root):
    return (root / "README.md").read_text(encoding="utf-8")


def test_the_run_files_shown_pass_the_check(readme, composer_run):
    files = set(re.findall(r"\((examples/[\w/]+\.toml)\)", readme))
    assert files == {"examples/quickstart/run.toml", "examples/fakes/run.toml"}
    for path in files:
        process = composer_run("check", path)
        assert process.returncode == 0, process.stderr


def test_validation_of_real_tasks_in_real_sandboxes(composer_run):
    process = composer_run(
        "validate", "examples/quickstart/run.toml", "--split", "new_bug", "--limit", "2", timeout_s=300
    )
    assert process.returncode == 0, process.stderr
    assert "all as they must be" in process.stdout


def test_the_makefile_has_both_commands(root):
    text = (root / "Makefile").read_text()
    assert re.search(r"^demo: setup", text, re.MULTILINE)
    assert re.search(r"^test: setup", text, re.MULTILINE)
