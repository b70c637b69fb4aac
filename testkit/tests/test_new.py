"""`composer-run new`: every template is a plugin that installs as it is, passes its own tests and fits its budget."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from composer_core import cli
from composer_core.records import SPECS
from composer_testing.budget import BUDGETS, author_lines
from composer_testing.new import EXAMPLES, SCAFFOLD, render

ROOT = Path(__file__).resolve().parents[2]
FAKES = ROOT / "examples/fakes/run.toml"
KINDS = sorted(folder.name for folder in SCAFFOLD.iterdir() if folder.is_dir())
PLACEHOLDERS = ("my-name", "my_name", "MyName")


def plural(kind: str) -> str:
    return kind + ("es" if kind.endswith("x") else "s")


def run(*args: object, cwd: Path, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHONPATH"))}
    command = list(map(str, args))
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )


# --- the templates ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dists(tmp_path_factory):
    """Every kind rendered under its example name: a folder of distributions named by kind."""
    folder = tmp_path_factory.mktemp("dists")
    for kind in KINDS:
        render(kind, EXAMPLES[kind], folder / kind)
    return folder


@pytest.fixture(scope="module")
def python(tmp_path_factory, dists):
    """An environment on top of the running one, in which a single pip call without an index installed all of them."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(home)}))
    below = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (site / "below.pth").write_text(below, encoding="utf-8")
    python = home / "bin/python"
    flags = ("-q", "--disable-pip-version-check", "--no-index", "--no-build-isolation")
    editable = [word for kind in KINDS for word in ("-e", f"./{kind}")]
    installed = run(python, "-m", "pip", "install", *flags, *editable, cwd=dists)
    assert installed.returncode == 0, installed.stderr
    return python


@pytest.fixture(scope="module")
def cases(python, dists):
    """The plugins' own tests, run in one process: (class or module, test, problem) by kind."""
    flags = ("-q", "-W", "error", "-p", "no:cacheprovider", "--rootdir=.", "--junitxml=report.xml")
    process = run(python, "-m", "pytest", *flags, *(f"{kind}/tests" for kind in KINDS), cwd=dists)
    assert (dists / "report.xml").exists(), process.stdout + process.stderr
    found: dict[str, list[tuple[str, str, str]]] = {kind: [] for kind in KINDS}
    for case in ElementTree.parse(dists / "report.xml").iter("testcase"):
        scope = case.get("classname", "")
        problem = "\n".join(child.text or child.get("message", "") for child in case if child.tag != "system-out")
        found[scope.partition(".")[0]].append((scope.rpartition(".")[2], case.get("name", ""), problem))
    return found


def test_every_kind_has_a_template():
    assert set(KINDS) == set(EXAMPLES) == set(BUDGETS)
    assert {plural(kind) for kind in EXAMPLES} == set(SPECS)


@pytest.mark.parametrize("kind", KINDS)
def test_no_placeholder_is_left(kind, dists):
    files = [path for path in (dists / kind).rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert len(files) >= 5
    for path in files:
        text = f"{path.relative_to(dists)}\n{path.read_text(encoding='utf-8')}"
        assert not [word for word in PLACEHOLDERS if word in text], path


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_stays_within_its_authors_budget(kind, dists):
    assert author_lines(dists / kind) <= BUDGETS[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_its_own_tests_pass(kind, cases):
    assert [(test, problem) for _, test, problem in cases[kind] if problem] == []
    assert any(scope.startswith("Test") for scope, _, _ in cases[kind]), "subclasses the contract of its kind"
    assert "def test_" in (SCAFFOLD / kind / "tests/test_my_name.py").read_text(), "has a test of its own"


def test_all_are_listed_with_their_components(python, dists):
    listing = run(python, "-m", "composer_core.cli", "plugins", "--json", cwd=dists)
    assert listing.returncode == 0, listing.stderr
    rows = {row["name"]: row for row in json.loads(listing.stdout)}
    for kind in KINDS:
        row = rows[EXAMPLES[kind]]
        assert (row["state"], row["dist"]) == ("available", f"composer-plugin-{EXAMPLES[kind]}"), row
        own = [one for one in row["components"] if one["kind"] == plural(kind)]
        assert own and all(one["id"].startswith(f"{EXAMPLES[kind]}/") and one["summary"] for one in own), row


@pytest.mark.parametrize("kind", KINDS)
def test_the_run_file_of_its_readme_passes_the_check(kind, python, dists):
    block = re.search(r"```toml\n(.*?)```", (dists / kind / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    keys = tomllib.loads(block[1])
    keys["plugins"] = ["fakes", *keys["plugins"]]
    for stage in keys.pop("stages", []):  # settings of a stage that the fakes' run file has
        keys |= {f"stages.{stage['kind']}.{key}": value for key, value in stage.items()}
    checked = run(python, "-m", "composer_core.cli", "check", FAKES, *overrides(keys), cwd=dists)
    assert checked.returncode == 0, checked.stderr


def overrides(keys: dict[str, object]) -> list[str]:
    return [word for key, value in keys.items() for word in ("--set", f"{key}={inline(value)}")]


def inline(value: object) -> str:
    """TOML of one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {inline(item)}" for key, item in value.items()) + "}"
    return f"[{', '.join(map(inline, value))}]" if isinstance(value, list) else json.dumps(value)


def test_tool_reward_context_tracker_and_store_work_in_one_run(python, dists, tmp_path):
    mine = {kind: f"{EXAMPLES[kind]}/{EXAMPLES[kind]}" for kind in ("reward", "context", "tracker", "store")}
    plugins = [EXAMPLES[kind] for kind in ("tool", *mine)]
    settings = {
        "plugins": ["fakes", *plugins],
        "tools.use": ["fakes/read", "fakes/write", "fakes/done", "word-count/word_count"],
        "rewards": [{"use": "fakes/checked"}, {"use": mine["reward"], "weight": 0.1}],
        "context.use": mine["context"],
        "trackers": [{"use": "core/jsonl"}, {"use": mine["tracker"]}],
        "store.use": mine["store"],
    }
    words = ("train", FAKES, "--run-dir", tmp_path / "run", *overrides(settings))
    trained = run(python, "-m", "composer_core.cli", *words, cwd=dists)
    assert trained.returncode == 0, trained.stderr
    assert mine["reward"] in (tmp_path / "run/events.jsonl").read_text()
    steps = (tmp_path / "run" / EXAMPLES["tracker"] / "steps.csv").read_text()
    assert re.search(r",rl,5,\d+,loss,", steps)
    assert (tmp_path / "run" / EXAMPLES["store"] / "blobs.sqlite").stat().st_size > 100_000
    assert not list((tmp_path / "run").glob("traces/*")), "traces went to the chosen store"


def test_of_the_tasks_only_the_repairs_are_paid_in_a_sandbox_that_isolates(python, dists):
    name = EXAMPLES["task"]
    settings = {
        "plugins": ["fakes", "local", "hidden-tests", name],
        "tasks": {"use": f"{name}/{name}"},
        "sandbox.use": "local/namespaces",
        "rewards": [{"use": "hidden-tests/hidden-tests"}],
    }
    found = run(python, "-m", "composer_core.cli", "validate", FAKES, *overrides(settings), cwd=dists)
    assert found.returncode == 0, found.stderr
    assert "20 gradings, all as they must be" in found.stdout


def test_ruff_has_nothing_to_say(dists):
    for words in (["check"], ["format", "--check"]):
        found = run(
            sys.executable, "-m", "ruff", *words, "--no-cache", "--config", ROOT / "pyproject.toml", dists, cwd=dists
        )
        assert found.returncode == 0, found.stdout + found.stderr


def test_mypy_has_nothing_to_say(dists):
    sources = [path for kind in KINDS for path in (dists / kind / "src").iterdir()]
    found = run(sys.executable, "-m", "mypy", *sources, cwd=ROOT)
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_wheel_holds_the_templates(tmp_path):
    flags = ("-q", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "-w", tmp_path)
    built = run(sys.executable, "-m", "pip", "wheel", *flags, ROOT / "testkit", cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if "/scaffold/" in name}
    wanted = (path for path in SCAFFOLD.rglob("*") if path.is_file() and path.suffix != ".pyc")
    assert held == {f"composer_testing/scaffold/{path.relative_to(SCAFFOLD).as_posix()}" for path in wanted}


# --- the command --------------------------------------------------------------------------------------------------


@pytest.fixture
def composer_run(capsys, monkeypatch, tmp_path):
    """Run `composer-run ARGS` in an empty folder; returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def called(*args: object) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(list(map(str, args)))
        return ended.value.code, *capsys.readouterr()

    return called


def test_it_writes_a_distribution_and_says_what_to_do_next(composer_run, tmp_path):
    code, out, _ = composer_run("new", "tool", "line-count")
    assert code == 0
    folder = tmp_path / "composer-plugin-line-count"
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == "composer-plugin-line-count"
    assert project["entry-points"]["composer.plugins"] == {"line-count": "composer_plugin_line_count.plugin"}
    assert (folder / "src/composer_plugin_line_count/plugin.py").is_file()
    assert "class TestLineCount(" in (folder / "tests/test_line_count.py").read_text()
    next_lines = [line.strip() for line in out.splitlines()[1:]]
    assert next_lines == [
        "cd composer-plugin-line-count",
        "pip install --no-build-isolation -e .",
        "pytest",
        "composer-run plugins",
    ]


def test_it_writes_where_it_is_told_to(composer_run, tmp_path):
    code, out, _ = composer_run("new", "reward", "tidy", "--into", tmp_path / "a folder" / "deep")
    assert code == 0
    assert (tmp_path / "a folder/deep/pyproject.toml").is_file()
    assert f"cd '{tmp_path}/a folder/deep'" in out


@pytest.mark.parametrize("kind", SPECS)
def test_a_kind_may_be_given_as_run_files_and_listings_call_it(composer_run, kind):
    meant = next(one for one in EXAMPLES if plural(one) == kind)
    code, out, _ = composer_run("new", kind, "my-own", "--into", kind)
    assert code == 0 and f"(kind: {meant})" in out
    assert composer_run("new", meant, "my-own", "--into", meant)[0] == 0
    one, other = (
        {path.relative_to(name): path.read_text() for path in Path(name).rglob("*") if path.is_file()}
        for name in (kind, meant)
    )
    assert one == other


@pytest.mark.parametrize(("kind", "meant"), [("toll", "tool"), ("Store", "store"), ("sandboxs", "sandbox")])
def test_a_misspelt_kind_is_refused_with_the_right_one(composer_run, kind, meant):
    code, _, err = composer_run("new", kind, "mine")
    assert code == 2
    assert f"did you mean {meant!r}?" in err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("My_Tool", ["small letters", "found:    'My_Tool'", "try 'my-tool'"]),
        ("a--b", ["single dashes", "try 'a-b'"]),
        ("3d", ["a letter first", "'word-count'"]),
        ("../x", ["try 'x'"]),
        ("class", ["Python has its own 'class'", "try 'my-class'"]),
        ("list", ["Python has its own 'list'"]),
        ("fakes", ["a plugin 'fakes' is installed already", "composer-testing 0.1.0"]),
        ("core", ["a plugin 'core' is installed already", "composer-core"]),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_with_the_reason(composer_run, tmp_path, name, words):
    code, _, err = composer_run("new", "tool", name)
    assert code == 2
    assert not [word for word in words if word not in err], err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_holds_something_is_left_alone(composer_run, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for target in ("full", "file"):
        code, _, err = composer_run("new", "tool", "line-count", "--into", target)
        assert code == 2
        assert "is not empty" in err and "--into FOLDER" in err
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    assert composer_run("new", "tool", "line-count", "--into", "empty")[0] == 0


def test_the_commands_are_listed_with_the_distribution_that_brings_them(composer_run):
    _, out, _ = composer_run("--help")
    assert re.search(r"^ *new +from composer-testing$", out, re.MULTILINE)
    assert "Kinds, in either number: tool, sandbox" in " ".join(composer_run("new", "--help")[1].split())


def test_without_the_test_kit_the_command_says_how_to_get_it(composer_run, monkeypatch):
    monkeypatch.setattr(cli, "_extra", list)
    code, _, err = composer_run("new", "tool", "line-count")
    assert code == 2
    assert "part of composer-testing, which is not installed" in err
    assert "fix:      pip install composer-testing" in err
