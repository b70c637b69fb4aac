"""What the README shows works: its plugin, its commands, its run files."""

import re
import shlex
import types

import pytest

from composer_core import plugins
from composer_core.cli import COMMANDS, OFFERED


@pytest.fixture(scope="module")
def readme(root):
    return (root / "README.md").read_text(encoding="utf-8")


def test_the_example_plugin_registers(readme):
    (source,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    module = types.ModuleType("readme")
    exec(source, vars(module))
    loaded = plugins.Plugins()
    loaded.register(plugins.Candidate("readme", "readme", "composer-plugin-readme", "1"), module)
    assert loaded.loaded[0].components == ("tools readme/word_count",)


def test_every_command_shown_exists_with_its_options(readme, composer_run):
    lines = [line.partition("#")[0] for line in readme.splitlines() if line.startswith("composer-run ")]
    assert {shlex.split(line)[1] for line in lines} >= {"check", "validate", "train", "show", "plugins"}
    for line in lines:
        words = shlex.split(line)[1:]
        assert words[0] in {*COMMANDS, *OFFERED}
        text = composer_run(words[0], "--help").stdout
        for option in (word for word in words if word.startswith("--")):
            assert option in text, line


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
