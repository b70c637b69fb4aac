"""New diagnostics cost, mended ones make up for them, and silencing them is counted."""

import pytest
from attrs import evolve

from composer_core.errors import GradingError
from composer_core.trees import File, Patch
from composer_plugin_behavior import lints as module
from composer_plugin_behavior.config import LintsConfig
from composer_plugin_behavior.lints import lints
from composer_plugin_behavior.plugin import composer_rewards
from composer_testing.contracts.rewards import RewardContract, Situation
from composer_testing.fakes.traces import attempt

PLAIN = LintsConfig(select="F", most=2)
CLEAN, UNUSED, TWICE = "x = 1\n", "import os\nx = 1\n", "import os\nimport re\nx = 1\n"


def change(before, after, **fields):
    return attempt(originals={"a.py": before}, patch={"a.py": after}, **fields)


class TestLints(RewardContract):
    def build(self):
        return next(spec for spec in composer_rewards() if spec.name == "lints")

    def situations(self):
        return {
            "one new": Situation({"group": (change(CLEAN, UNUSED),), "config": PLAIN}, -0.5),
            "not solved": Situation({"group": (change(CLEAN, CLEAN, solved=False),), "config": PLAIN}, -1.0),
        }


CASES = {
    "clean": (0.0, change(CLEAN, "x = 2\n")),
    "was there before": (0.0, change(UNUSED, "\n\n" + UNUSED)),
    "mended one, made one": (0.0, change(UNUSED, "import re\nx = 1\n")),
    "mending is worth nothing more": (0.0, change(TWICE, CLEAN)),
    "silenced": (-1.0, change(CLEAN, "import os  # noqa: F401\nx = 1\n")),
    "silenced for all of the file": (-1.0, change(CLEAN, "# ruff: noqa\nimport os\nx = 1\n")),
    "no syntax": (-0.5, change(CLEAN, "x = = 1\n")),
    "a file in a folder that linters leave out": (-0.5, attempt(patch={"node_modules/a.py": UNUSED})),
    "no Python": (0.0, attempt(patch={"a.txt": "import os"})),
}


def test_new_diagnostics_cost_and_mended_ones_make_up_for_them():
    found = lints([trace for _, trace in CASES.values()], PLAIN)
    assert {name: one.value for name, one in zip(CASES, found, strict=True)} == {
        name: value for name, (value, _) in CASES.items()
    }


def test_settings_that_the_agent_wrote_are_not_followed():
    silent = {"pyproject.toml": "[tool.ruff]\nexclude = ['*']\n", "ruff.toml": "exclude = ['*']\n", "a.py": UNUSED}
    assert lints([attempt(patch=silent)], PLAIN)[0].parts["new"] == 1


def test_deleting_a_file_mends_nothing_and_moving_one_makes_nothing_new():
    originals = {"a.py": UNUSED, "b.py": CLEAN}
    deleted = Patch((File("b.py", b"import re\nx = 1\n"),), deletes=("a.py",))
    moved = Patch((File("c.py", UNUSED.encode()),), deletes=("a.py",))
    found = lints([attempt(originals=originals, patch=patch) for patch in (deleted, moved)], PLAIN)
    assert [(one.value, one.note) for one in found] == [(-0.5, "F401"), (0.0, "")]


def test_a_file_whose_original_was_not_kept_is_not_blamed_on_who_touched_it():
    trace = evolve(attempt(originals={"a.py": CLEAN}, patch={"a.py": UNUSED, "b.py": TWICE}), originals_whole=False)
    assert lints([trace], PLAIN)[0].parts["new"] == 1


def test_a_patch_that_breaks_ruff_costs_everything_and_a_machine_without_it_is_to_blame_itself(monkeypatch):
    real = module._ruff

    def broken(folder, config):
        if any(b"bomb" in path.read_bytes() for path in folder.rglob("*.py")):
            raise GradingError("ruff cannot judge the files")
        return real(folder, config)

    monkeypatch.setattr(module, "_ruff", broken)
    assert lints([attempt(patch={"a.py": "bomb\n"})], PLAIN)[0].value == -1.0
    monkeypatch.setattr("ruff.__main__.find_ruff_bin", lambda: "/nowhere/ruff")
    monkeypatch.setattr(module, "_ruff", real)
    with pytest.raises(GradingError, match="ruff cannot judge"):
        lints([attempt(patch={"a.py": UNUSED})], PLAIN)
