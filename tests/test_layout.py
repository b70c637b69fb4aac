"""Promises about the code base itself: light imports, layers, budgets, documented hooks."""

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from importlib import import_module, metadata

import pytest

import composer_core
from composer_core import hookspecs, plugins, records
from composer_testing.budget import logical_lines

HEAVY = ("torch", "ray", "triton", "docker", "transformers", "numpy", "accelerate", "tokenizers", "safetensors")
HOOKS = sorted(name for name in vars(hookspecs) if name.startswith("composer_"))
HOOK_MODULES = sorted(entry.value for entry in metadata.entry_points(group="composer.plugins"))
PERSON = (
    "commands/*.py", "console.py", "diffs.py", "estimate.py", "folders.py", "footprint.py", "history.py", "listing.py",
    "plan.py", "summary.py",
)  # fmt: skip
"""Modules of core that serve what a person sees; all others are contracts and the loop (decision 0005)."""
LOOP_LINES, PERSON_LINES = 5500, 1570


def loaded_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*(m for m in {HEAVY!r} if m in sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(found.stdout.split("\n")[-2].split())


@pytest.mark.parametrize(
    "statement",
    [
        "import composer_core",
        "from composer_core.cli import group",
        "from composer_core.commands import agent, check, eval, plugins, show, train, validate",
        *(f"import {module}" for module in HOOK_MODULES),
    ],
)
def test_importing_it_loads_nothing_heavy(statement):
    assert loaded_after(statement) == set()


@pytest.mark.parametrize("argument", ["--help", "plugins", "doctor", "check"])
def test_a_command_loads_nothing_heavy(argument, root):
    args = [argument] if argument != "check" else ["check", str(root / "examples/fakes/run.toml")]
    run = f"from composer_core.cli import main\ntry: main({args!r})\nexcept SystemExit as e: assert not e.code, e.code"
    code = f"import sys\n{run}\nprint()\nprint(*(m for m in {HEAVY!r} if m in sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = found.stdout.split("\n")[-2].split()
    assert heavy == []


def test_help_imports_no_command_module():
    code = (
        "import sys\nfrom composer_core.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "print(*(m for m in sys.modules if m.startswith('composer_core.')), file=sys.stderr)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    own = {name.removeprefix("composer_core.") for name in found.stderr.split()}
    assert own == {"cli", "errors", "printable"}, "nor a contract, nor the libraries that contracts are written with"


def test_help_needs_no_library_but_click():
    code = (
        "import sys\nfrom composer_core.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "print(*(m for m in ('attrs', 'cattrs', 'pluggy', 'rich', 'asyncio', 'tomllib') if m in sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split("\n")[-2] == ""


@pytest.mark.parametrize("name", composer_core.__all__)
def test_a_name_of_the_package_is_found_where_type_checkers_are_told_that_it_is(name):
    tree = ast.parse(inspect.getsource(composer_core))
    told = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("composer_core.")
        for alias in node.names
    }
    assert getattr(composer_core, name) is getattr(import_module(told.get(name, "composer_core")), name)
    assert name in dir(composer_core)


def test_core_stays_within_its_budget(root):
    core = root / "core/src/composer_core"
    person = {path for pattern in PERSON for path in core.glob(pattern)}
    loop = set(core.rglob("*.py")) - person
    assert 3000 < sum(map(logical_lines, loop)) <= LOOP_LINES
    assert 1000 < sum(map(logical_lines, person)) <= PERSON_LINES


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_ends_with_the_smallest_working_plugin(name):
    text = inspect.getdoc(getattr(hookspecs, name))
    block = re.search(r"```python\n(.*?)```\s*$", text, re.DOTALL)
    assert block, f"{name} has no example at the end of its docstring"
    space: dict = {}
    exec(block.group(1), space)
    plugins.verify(plugins.Candidate("example", "example", "composer-plugin-example", "1"), _module(space))
    hook = space[name]
    if name in hookspecs.REGISTRATION_HOOKS:
        kind = hookspecs.REGISTRATION_HOOKS[name]
        assert all(isinstance(spec, records.SPECS[kind]) for spec in hook())


def _module(space):
    import types

    made = types.ModuleType("example")
    vars(made).update({key: value for key, value in space.items() if not key.startswith("__")})
    return made


def test_every_kind_has_a_hook_and_a_record():
    assert set(hookspecs.REGISTRATION_HOOKS.values()) == set(records.SPECS)


def test_all_distributions_share_one_version_and_ask_for_it(root):
    files = [
        root / "core/pyproject.toml",
        root / "envkit/pyproject.toml",
        root / "testkit/pyproject.toml",
        root / "reference/pyproject.toml",
        *root.glob("plugins/*/*/pyproject.toml"),
    ]
    projects = [tomllib.loads(path.read_text())["project"] for path in files]
    assert {project["version"] for project in projects} == {"0.1.0"}
    for project in projects[1:]:
        assert "composer-core~=0.1.0" in project["dependencies"], project["name"]


def test_core_depends_on_five_small_libraries(root):
    project = tomllib.loads((root / "core/pyproject.toml").read_text())["project"]
    names = {re.match(r"[a-z]+", dependency).group() for dependency in project["dependencies"]}
    assert names == {"attrs", "cattrs", "click", "pluggy", "rich"}


def test_no_name_of_a_registrys_host_and_no_lock_file_is_tracked(root):
    tracked = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in tracked if name.endswith((".lock", "package-lock.json"))]
    assert "://" not in (root / "constraints.txt").read_text()
