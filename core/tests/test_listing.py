"""`composer-run plugins`: every installed plugin is a row with state, reason, time and components, never an error."""

import json
import sys

import pytest
from click.testing import CliRunner

from composer_core.cli import group
from composer_core.errors import PluginError
from composer_core.listing import STATES, report
from composer_core.plugins import Candidate

GOOD = """
from composer_core import ToolSpec, hookimpl
COMPOSER_API = 1
@hookimpl
def composer_tools():
    yield ToolSpec.of({})
"""
MODULES = {
    "sound_hooks": GOOD.format("repr"),
    "other_hooks": GOOD.format("len"),
    "broken_hooks": "raise OSError('no such driver ' + 'x' * 300)",
    "future_hooks": "COMPOSER_API = 99",
}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Five plugins of which two cannot be loaded and two share a name."""
    for name, source in MODULES.items():
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    plugins = [("broken", "broken"), ("future", "future"), ("other", "other"), ("sound", "sound")]
    found = [Candidate(name, f"{module}_hooks", f"composer-plugin-{name}", "1.2") for name, module in plugins]
    monkeypatch.setattr("composer_core.listing.installed", lambda: found)
    monkeypatch.setattr("composer_core.plugins.installed", lambda: found)
    yield found
    for name in MODULES:
        sys.modules.pop(name, None)


def run(*arguments):
    return CliRunner().invoke(group, list(arguments))


def test_every_plugin_has_its_state_and_the_reason(installed):
    rows = {row.name: row for row in report(["sound"], ["other"])}
    assert {name: row.state for name, row in rows.items()} == {
        "core": "loaded",
        "sound": "loaded",
        "other": "blocked",
        "broken": "failed",
        "future": "incompatible",
    }
    assert {row.state for row in rows.values()} <= set(STATES)
    assert "no such driver" in rows["broken"].why
    assert "COMPOSER_API = 99" in rows["future"].why
    assert (rows["sound"].version, rows["sound"].why) == ("1.2", "named")
    assert [entry.id for entry in rows["sound"].components] == ["sound/repr"]
    assert rows["other"].components == ()


def test_one_that_is_available_says_how_to_load_it(installed):
    rows = {row.name: row for row in report()}
    assert (rows["sound"].state, rows["sound"].why) == ("available", 'plugins = ["sound"], or --plugins sound')
    assert "--plugins NAME before a command, loads it" in run("plugins").stdout


def test_an_import_is_timed_once_and_never_made_up(installed):
    first, second = ({row.name: row.import_ms for row in report()} for _ in range(2))
    assert first["sound"] > 0
    assert second["sound"] is None, "the module was imported before"
    assert first["broken"] is None


def test_two_distributions_with_one_name_are_two_rows(installed):
    installed.append(Candidate("sound", "sound_hooks", "composer-plugin-sound-too", "3"))
    rows = [row for row in report() if row.name == "sound"]
    assert [(row.dist, row.state) for row in rows] == [
        ("composer-plugin-sound", "failed"),
        ("composer-plugin-sound-too", "failed"),
    ]
    assert "uninstall one of them" in rows[0].why


def test_two_distributions_with_one_name_are_shown_whatever_is_blocked(installed):
    installed.append(Candidate("sound", "sound_hooks", "composer-plugin-sound-too", "3"))
    shown = run("-p", "no:other", "plugins")
    assert shown.exception is None
    assert "composer-plugin-sound-too" in shown.stdout


@pytest.mark.parametrize(("names", "blocked"), [(["soud"], []), ([], ["soud"])])
def test_a_name_that_is_not_installed_is_refused_with_a_suggestion(installed, names, blocked):
    with pytest.raises(PluginError, match="not installed") as caught:
        report(names, blocked)
    assert "did you mean 'sound'" in str(caught.value)


def test_the_page_is_a_line_for_each_plugin_and_reasons_stand_below(installed):
    lines = run("--plugins", "sound", "-p", "no:other", "plugins").stdout.splitlines()
    rows = [line.split() for line in lines[:6]]
    assert [row[:3] for row in rows] == [
        ["plugin", "version", "state"],
        ["core", rows[1][1], "loaded"],
        ["broken", "1.2", "failed"],
        ["future", "1.2", "incompatible"],
        ["other", "1.2", "blocked"],
        ["sound", "1.2", "loaded"],
    ]
    assert rows[5][-2:] == ["tools:", "repr"]
    below = "\n".join(lines[6:])
    for word in ("loaded:", "blocked:", "import:"):
        assert f"\n{word}" in below
    assert "available:" not in below, "none is"
    assert "broken (composer-plugin-broken 1.2): failed" in below
    assert "x" * 300 in below


def test_a_narrow_terminal_gets_whole_words_and_nothing_is_cut(installed, monkeypatch):
    monkeypatch.setattr("composer_core.commands.plugins.ENDLESS", 80)
    page = run("plugins").stdout
    assert max(len(line) for line in page.splitlines()) <= 80
    assert {"inprocess;", "folder;", "jsonl"} <= set(page.split())
    assert page.replace("\n", "").replace(" ", "").count("x" * 300) == 1


def test_components_are_shown_with_their_summaries_for_a_name_or_a_kind(installed):
    by_name = run("plugins", "sound").stdout
    assert "sound/repr" in by_name
    assert "Return the canonical string representation" in by_name
    assert "other" not in by_name
    by_kind = run("plugins", "--kind", "tools").stdout
    assert "sound/repr" in by_kind
    assert "core/plain" not in by_kind
    wrong = run("plugins", "soud")
    assert isinstance(wrong.exception, PluginError)
    assert "did you mean 'sound'" in str(wrong.exception)
    assert run("plugins", "--kind", "tool").exit_code == 2


def test_json_holds_all_of_it(installed):
    rows = {row["name"]: row for row in json.loads(run("plugins", "--json").stdout)}
    assert rows["sound"]["components"][0]["id"] == "sound/repr"
    assert (rows["broken"]["state"], rows["broken"]["import_ms"]) == ("failed", None)
    assert "no such driver" in rows["broken"]["why"]
    assert set(rows["core"]) == {"name", "dist", "version", "state", "why", "import_ms", "components"}
