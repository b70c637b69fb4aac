"""Conflicts and stale metadata among installed distributions, with real metadata on the path."""

import importlib
import json
import sys
from importlib import metadata

import pytest

from composer_plugin_doctor.distributions import Installed

GROUP = "composer.plugins"


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A path of folders that holds nothing but what a test puts there; returns `put`."""

    def put(name, version="1.0", *, requires=(), module=None, folder="site", kind="dist-info", editable=None):
        info = tmp_path / folder / f"{name.replace('-', '_')}-{version}.{kind}"
        info.mkdir(parents=True)
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {text}" for text in requires]
        (info / ("METADATA" if kind == "dist-info" else "PKG-INFO")).write_text("\n".join(lines) + "\n")
        if module:
            (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {module}\n")
        if editable:
            origin = {"url": editable.as_uri(), "dir_info": {"editable": True}}
            (info / "direct_url.json").write_text(json.dumps(origin))
        return info

    folders = [str(tmp_path / name) for name in ("first", "site", "first")]
    monkeypatch.setattr("importlib.metadata.distributions", lambda: metadata.Distribution.discover(path=folders))
    importlib.invalidate_caches()
    return put


def conflicts(*roots):
    installed = Installed.read(GROUP)
    return [defect.text for defect in installed.conflicts(roots or installed.ours())]


def stale():
    return [defect.text for defect in Installed.read(GROUP).stale()]


# --- requirements -------------------------------------------------------------------------------------------------


def test_what_is_missing_or_in_another_version_is_told_with_both_sides(path):
    path("plug-in", requires=["Needed_Thing>=2", "absent", "fine~=1.0"], module="json")
    path("needed-thing", "1.5")
    path("fine", "1.3")
    assert conflicts() == [
        "plug-in 1.0 needs Needed_Thing>=2, 1.5 is installed",
        "plug-in 1.0 needs absent, it is not installed",
    ]
    assert Installed.read(GROUP).conflicts(["plug-in"])[0].fix == "pip install 'Needed_Thing>=2'"


def test_requirements_of_requirements_count_and_those_of_strangers_do_not(path):
    path("plug-in", requires=["middle"], module="json")
    path("middle", requires=["leaf<2"])
    path("leaf", "2.1")
    path("stranger", requires=["leaf<1"])
    assert conflicts() == ["middle 1.0 needs leaf<2, 2.1 is installed"]
    assert conflicts("stranger") == ["stranger 1.0 needs leaf<1, 2.1 is installed"]


def test_extras_and_markers_are_honored(path):
    path("plug-in", requires=["middle[fast]", "old; python_version < '3'"], module="json")
    path("middle", requires=["speed; extra == 'fast'", "docs; extra == 'docs'"])
    assert conflicts() == ["middle 1.0 needs speed, it is not installed"]


def test_a_circle_of_requirements_ends_and_a_pre_release_counts(path):
    path("plug-in", requires=["middle>=1.0.dev0"], module="json")
    path("middle", "1.0.dev3", requires=["plug-in"])
    assert conflicts() == []


@pytest.mark.parametrize("text", ["leaf >> 2", "leaf; no_such_name == '1'"])
def test_a_requirement_that_cannot_be_read_is_told_and_the_others_are_looked_at(path, text):
    path("plug-in", requires=[text, "absent"], module="json")
    found = conflicts()
    assert "plug-in 1.0 needs absent, it is not installed" in found
    (unreadable,) = (one for one in found if "cannot be read" in one)
    assert unreadable.startswith(f"plug-in 1.0 needs {text!r}, which cannot be read: ")


def test_this_environment_is_in_order():
    installed = Installed.read(GROUP)
    assert {"composer-core", "composer-testing"} <= set(installed.ours())
    assert installed.conflicts(installed.ours()) == []
    assert installed.stale() == []


# --- stale metadata -----------------------------------------------------------------------------------------------


def test_a_distribution_that_is_there_twice_is_told_with_the_one_in_effect(path, tmp_path):
    path("plug-in", "1.0", module="json", folder="first", kind="egg-info")
    path("plug-in", "2.0", module="json")
    (text,) = stale()
    assert text == f"plug-in is there 2 times: 1.0 of {tmp_path}/first is in effect, not 2.0 of {tmp_path}/site"


def test_equal_metadata_beside_an_editable_install_is_not_stale(path):
    path("plug-in", module="json", folder="first", kind="egg-info")
    path("plug-in", module="json")
    assert stale() == []


def test_old_metadata_without_the_entry_point_is_found(path):
    path("plug-in", folder="first", kind="egg-info")
    path("plug-in", module="json")
    assert len(stale()) == 1


def test_an_editable_install_whose_folder_has_gone_is_told(path, tmp_path):
    path("plug-in", module="json", editable=tmp_path)
    assert stale() == []
    path("other", module="json", editable=tmp_path / "gone away")
    assert stale() == [f"other is an editable install of {tmp_path}/gone away, which has gone"]


def test_a_plugin_whose_module_is_missing_is_told(path, monkeypatch, tmp_path):
    path("plug-in", module="json.no_such_module")
    path("other", module="no_such_package.plugin")
    (tmp_path / "raising.py").write_text("raise OSError")
    monkeypatch.syspath_prepend(tmp_path)
    path("third", module="raising")
    assert stale() == [
        "other offers 'other' in the module no_such_package.plugin, which is missing",
        "plug-in offers 'plug-in' in the module json.no_such_module, which is missing",
    ]
    assert "raising" not in sys.modules, "a hook module is looked for, not imported"


def test_the_remains_of_a_distribution_do_no_harm(path, tmp_path):
    path("plug-in", module="json")
    (tmp_path / "site/~ld_thing-1.0.dist-info").mkdir()
    assert (conflicts(), stale()) == ([], [])
