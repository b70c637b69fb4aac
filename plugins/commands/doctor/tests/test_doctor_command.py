"""`composer-run doctor`: what it says, in words and in JSON, and when it ends with 1."""

import json
import re

import pytest
from click.testing import CliRunner

from composer_core import cli
from composer_core.cli import group
from composer_core.errors import PluginError
from composer_core.listing import Row
from composer_plugin_doctor import machine
from composer_plugin_doctor.distributions import Defect, Installed
from composer_plugin_doctor.machine import ABSENT, OK, Finding


def run(*arguments):
    return CliRunner().invoke(group, list(arguments))


@pytest.fixture
def quick(monkeypatch):
    """A machine that is examined in no time and has no `rg`."""
    rg = Finding("rg", ABSENT, "no command rg", "the tool grep", "apt install ripgrep")
    probes = {"cores": lambda: Finding("cores", OK, "2 usable"), "rg": lambda: rg, "ruff": machine.PROBES["ruff"]}
    monkeypatch.setattr(machine, "PROBES", probes)


def test_it_says_what_is_lost_and_how_to_mend_it_and_ends_with_0(quick):
    done = run("doctor")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[:4] == [
        "cores        ok      2 usable",
        "rg           absent  no command rg",
        "                     lost: the tool grep",
        "                     fix: apt install ripgrep",
    ]
    assert "can be loaded: core," in done.stdout
    assert "require is there" in done.stdout


def test_json_is_a_list_of_findings(quick):
    found = json.loads(run("doctor", "--json").stdout)
    assert [one["name"] for one in found] == ["cores", "rg", "ruff", "plugins", "packages"]
    assert found[1]["fix"] == "apt install ripgrep"


def test_it_ends_with_1_only_if_a_named_plugin_needs_what_is_missing(quick):
    assert run("--plugins", "hidden-tests", "doctor").exit_code == 0
    done = run("--plugins", "code", "doctor")
    assert done.exit_code == 1
    assert "needed by: code/glob, code/grep" in done.stdout
    found = {one["name"]: one for one in json.loads(run("--plugins", "code", "doctor", "--json").stdout)}
    assert found["rg"]["needed_by"] == ["code/glob", "code/grep"]
    assert found["python3"]["state"] == OK, "a command that only a tool asks for is looked for too"


def test_a_plugin_that_cannot_be_loaded_is_told_and_counts_if_it_was_named(quick, monkeypatch):
    broken = Row("bad", "composer-plugin-bad", "1", "failed", "plugin bad could not be imported\n  found: OSError: no")
    sound = Row("good", "composer-plugin-good", "1", "available", "")
    monkeypatch.setattr("composer_plugin_doctor.command.report", lambda names, blocked: [broken, sound])
    done = run("doctor")
    assert done.exit_code == 0
    assert "plugin bad could not be imported; found: OSError: no" in done.stdout
    assert run("--plugins", "good", "doctor").exit_code == 0
    assert run("--plugins", "bad", "doctor").exit_code == 1


def test_conflicts_and_stale_metadata_count_if_they_concern_a_named_plugin(quick, monkeypatch):
    unmet = Defect("attrs", "attrs 1 needs old, it is not installed", "pip install 'old'")
    old = Defect("composer-testing", "composer-testing is there 2 times", "uninstall it")
    concerned = {"composer-plugin-code"}

    def conflicts(self, roots):
        return [unmet] if concerned & set(roots) else []

    monkeypatch.setattr(Installed, "conflicts", conflicts)
    monkeypatch.setattr(Installed, "stale", lambda self: [old])
    done = run("--plugins", "hidden-tests", "doctor")
    assert (done.exit_code, "attrs 1 needs old" in done.stdout) == (0, True)
    assert run("--plugins", "fakes", "doctor").exit_code == 1, "its metadata is stale"
    concerned.add("composer-plugin-hidden-tests")
    assert run("--plugins", "hidden-tests", "doctor").exit_code == 1


def test_what_cannot_be_found_out_is_said(quick, monkeypatch):
    def stale(self):
        raise PermissionError("metadata of another user")

    monkeypatch.setattr(Installed, "stale", stale)
    done = run("doctor")
    assert done.exit_code == 0
    assert "could not be found out: PermissionError: metadata of another user" in done.stdout


def test_a_narrow_page_is_wrapped_under_its_column(quick, monkeypatch):
    monkeypatch.setattr("composer_plugin_doctor.command.ENDLESS", 60)
    lines = run("doctor").stdout.splitlines()
    assert max(map(len, lines)) <= 60
    assert all(line.startswith(" " * 21) for line in lines if line.startswith(" "))


def test_a_name_that_is_not_installed_is_refused(quick):
    error = run("--plugins", "cod", "doctor").exception
    assert isinstance(error, PluginError)
    assert "did you mean 'code'" in str(error)


def test_the_command_is_listed_with_the_distribution_that_brings_it():
    assert re.search(r"^ *doctor +from composer-plugin-doctor$", run("--help").stdout, re.MULTILINE)


def test_without_this_distribution_the_command_line_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setattr(cli, "_extra", list)
    with pytest.raises(SystemExit) as ended:
        cli.main(["doctor"])
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert "part of composer-plugin-doctor, which is not installed" in told
    assert "fix:      pip install composer-plugin-doctor" in told
