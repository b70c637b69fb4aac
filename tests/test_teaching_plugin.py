"""The teaching plugin: written with public names alone, installed as wheels, used through the command line alone.

The environment of these tests holds wheels of core, the test kit, the plugins that the run names and the teaching
plugin, installed without an index. Third-party packages such as torch are those of the environment that runs the tests,
seen through its site-packages; editable installs of the workspace are not.
"""

import ast
import json
import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import composer_core
from composer_core.traces import decode
from composer_core.tracking import read_events
from composer_core.types import Outcome
from composer_testing.budget import BUDGETS, logical_lines

WORKSHOP = Path(__file__).resolve().parent.parent / "examples/plugins/workshop"
SOURCE = WORKSHOP / "src/composer_plugin_workshop"
NAME, VERSION = "composer-plugin-workshop", "0.3.0"
MODULES = {f"composer_core{name}" for name in ("", ".errors", ".protocols", ".tensors", ".types")} | {"composer_envkit"}
"""All of ours that an outsider had to know."""
PARTS = {
    "composer_tools": ("tool", ["outline"]),
    "composer_rewards": ("reward", ["small_patch"]),
    "composer_algorithms": ("algorithm", ["median", "loss"]),
    "composer_sandboxes": ("sandbox", ["jail"]),
}
"""Hook -> kind, and the modules of its component."""


# --- as its source stands -------------------------------------------------------------------------------------------


def imports_of(path: Path) -> dict[str, set[str]]:
    """Module -> names, of everything a file imports from Composer's distributions."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("composer"):
            found.setdefault(node.module, set()).update(alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            found.update({alias.name: set() for alias in node.names if alias.name.startswith("composer")})
    return found


def test_it_imports_public_names_of_core_and_nothing_of_other_plugins():
    seen = set()
    for path in SOURCE.glob("*.py"):
        for module, names in imports_of(path).items():
            if module.partition(".")[0] == "composer_plugin_workshop":
                continue
            seen.add(module)
            assert not {name for name in names if name.startswith("_")}, path.name
            if module == "composer_core":
                assert names <= set(composer_core.__all__), path.name
    assert seen == MODULES


def test_its_tests_need_the_test_kit_beside_that():
    seen = {module for path in (WORKSHOP / "tests").glob("*.py") for module in imports_of(path)}
    others = {module for module in seen if module.partition(".")[0] not in ("composer_testing", NAME.replace("-", "_"))}
    assert others <= MODULES | {"composer_core.sandbox"}


def test_the_workspace_does_not_know_it(root):
    dists = [line for line in (root / "Makefile").read_text().splitlines() if line.startswith("DISTS")]
    assert dists and not any("examples" in line for line in dists)
    ours = [path for folder in ("core", "envkit", "testkit", "plugins") for path in (root / folder).rglob("*.py")]
    assert not [path for path in ours if "composer_plugin_workshop" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("hook", PARTS)
def test_a_component_stays_within_its_authors_budget(hook, tmp_path):
    kind, modules = PARTS[hook]
    parts = [SOURCE / f"{name}.py" for name in modules]
    tree = ast.parse((SOURCE / "plugin.py").read_text())
    hooks = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    settings = [node for node in ast.parse((SOURCE / "config.py").read_text()).body if isinstance(node, ast.ClassDef)]
    own = next(node for node in hooks if node.name == hook)
    named = {node.id for node in ast.walk(own) if isinstance(node, ast.Name)}
    mine = tmp_path / "share.py"
    mine.write_text("\n\n".join(ast.unparse(node) for node in [own, *(c for c in settings if c.name in named)]))
    shared = tmp_path / "shared.py"
    shared.write_text("\n".join(ast.unparse(node) for node in tree.body if node not in hooks))
    share = -(-logical_lines(shared) // len(hooks))
    assert sum(map(logical_lines, [*parts, mine])) + share <= BUDGETS[kind]


# --- installed as wheels --------------------------------------------------------------------------------------------


def pip(*args: object) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "-q", *map(str, args)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def bin_folder(root, tmp_path_factory):
    """The programs of an environment in which the wheels are installed."""
    wheels, home = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("home")
    plugins = tomllib.loads((WORKSHOP / "run.toml").read_text())["plugins"]
    ours = [path for name in plugins for path in root.glob(f"plugins/*/{name}")]
    assert len(ours) == len(plugins) - 1
    dists = [root / "core", root / "envkit", root / "testkit", *ours, WORKSHOP]
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", wheels, *dists)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    names = [tomllib.loads((dist / "pyproject.toml").read_text())["project"]["name"] for dist in dists]
    into = ["--python", home / "bin/python", "install", "--no-deps", "--no-index"]
    pip(*into, "--no-warn-script-location", "--find-links", wheels, *names)
    (site,) = home.glob("lib/python3*/site-packages")
    outer = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site / "outer.pth").write_text("\n".join(outer))
    return home / "bin"


def run(program: Path, *args: object, cwd: Path) -> str:
    """Run a program of the environment to its good end; its standard output."""
    argv = [str(program), *map(str, args)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_the_environment_holds_the_wheels_and_not_the_workspace(bin_folder, root):
    names = ["composer_core", "composer_plugin_policy", "composer_plugin_workshop"]
    code = f"import importlib; print(*(importlib.import_module(name).__file__ for name in {names!r}))"
    for path in run(bin_folder / "python", "-c", code, cwd=root).split():
        assert Path(path).is_relative_to(bin_folder.parent)


def test_its_own_tests_pass_there(bin_folder):
    page = run(bin_folder / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=WORKSHOP)
    assert " passed" in page and "skipped" not in page


@pytest.fixture(scope="module")
def pages(bin_folder, root, tmp_path_factory):
    """What the commands of its README print, by command, and the run they make."""
    made = tmp_path_factory.mktemp("run") / "workshop"
    text = (WORKSHOP / "README.md").read_text().replace("runs/workshop", str(made))
    commands = [shlex.split(line)[1:] for line in text.splitlines() if line.startswith("composer-run ")]
    assert [words[0] for words in commands] == ["check", "train", "show"]
    return made, {words[0]: run(bin_folder / "composer-run", *words, cwd=root) for words in commands}


@pytest.fixture(scope="module")
def traces(pages):
    return [decode(path.read_bytes()) for path in sorted((pages[0] / "traces").rglob("*.trace"))]


def test_the_run_chose_its_components_and_records_their_version(pages):
    made, _ = pages
    config = json.loads((made / "config.json").read_text())
    chosen = [config[key]["use"] for key in ("sandbox", "algorithm")] + [config["samplers"]["guide"]["use"]]
    assert chosen == ["workshop/jail", "workshop/median", "workshop/guide"]
    (row,) = [row for row in json.loads((made / "plugins.json").read_text()) if row["name"] == "workshop"]
    assert (row["dist"], row["version"]) == (NAME, VERSION)


def test_check_names_its_components_and_show_what_became_of_them(pages, bin_folder, root):
    made, page = pages
    rows = [line.split() for line in page["check"].splitlines() if line.endswith(f"{NAME} {VERSION}")]
    components = {"algorithm": "median", "rewards": "small_patch", "samplers.guide": "guide", "sandbox": "jail"}
    assert {row[0]: row[1] for row in rows} == {
        key: f"workshop/{name}" for key, name in (components | {"tools": "outline"}).items()
    }
    assert "finished" in page["show"]
    (some,) = sorted((made / "traces").glob("sft-*"))[:1]
    assert "outline" in run(bin_folder / "composer-run", "show", made, "--trace", some.stem, cwd=root)


def test_its_sandbox_held_every_episode_and_every_grading(pages, traces):
    summary = json.loads((pages[0] / "summary.json").read_text())
    assert summary["stats"]["sandboxes_created"] > len(traces)
    assert summary["stats"]["sandboxes_failed"] == 0
    assert summary["void_share"] == 0
    names = [event["event"] for event in read_events(pages[0])]
    assert names.count("EpisodeEnded") == len(traces)
    assert "FaultRecorded" not in names


def test_its_demonstrator_shows_its_tool_and_solves_what_it_demonstrates(traces):
    shown = [trace for trace in traces if trace.key.stage == "sft"]
    assert shown
    for trace in shown:
        assert trace.verdict.outcome is Outcome.SOLVED
        first = trace.results()[0]
        assert (first.tool, first.ok, first.data["outlined"]) == ("outline", True, trace.patch.touched()[0])
        assert "def " in first.text


def test_its_reward_scores_with_provenance_beside_the_outcome(traces):
    values = set()
    for trace in traces:
        if trace.key.stage == "parity":  # first turns, sampled to compare sampler and trainer: nobody grades them
            continue
        outcome, auxiliary = trace.scores
        assert (auxiliary.reward, auxiliary.version, auxiliary.weight) == ("workshop/small_patch", VERSION, 0.1)
        assert 0.0 <= auxiliary.value <= 1.0
        assert (auxiliary.value == 0.0) or trace.patch
        values.add(auxiliary.value)
        if trace.key.stage == "sft":
            assert outcome.value == 1.0 and auxiliary.value > 0.5
    assert len(values) > 2


def test_its_algorithm_made_updates_that_changed_the_weights(pages):
    steps = [event for event in read_events(pages[0]) if event["event"] == "StepEnded" and event["stage"] == "rl"]
    assert len(steps) == 2
    assert any(step["metrics"]["flat_share"] < 1 for step in steps)
    assert any(step["metrics"]["loss"] != 0 for step in steps)


def test_a_weight_with_which_its_reward_could_outweigh_the_outcome_is_refused(bin_folder, root):
    argv = [bin_folder / "composer-run", "check", WORKSHOP / "run.toml", "--set", "rewards[1].weight=1.0"]
    done = subprocess.run(argv, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "outweigh the outcome" in done.stderr
