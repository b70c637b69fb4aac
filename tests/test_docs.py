"""README and documentation show what works: every page is a session, run from top to bottom; the site builds offline.

In a page, a block with a title is written to a file of that name, a `python` block is executed and a `sh` block is run,
in the page's order and in one working folder that holds `examples`. What cannot be run stands behind a comment
`<!-- not run: reason -->`; its commands must exist, with their options, all the same. `pyi` blocks are definitions of
core, made by `tools/docs.py`.
"""

import ast
import functools
import inspect
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import sysconfig
import tomllib
import types
import venv
from pathlib import Path
from typing import NamedTuple

import attrs
import pytest

from composer_core import config, hookspecs, protocols
from composer_core.cli import COMMANDS, OFFERED
from composer_core.config import load
from composer_core.plugins import Candidate, Plugins, candidates, select
from composer_core.records import SPECS
from composer_core.tensors import kernels, policy
from composer_core.types import Limits
from composer_testing.budget import BUDGETS, author_lines
from composer_testing.new import KINDS

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
BLOCK = re.compile(
    r'(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?^```(?P<language>[a-z]+)(?: title="(?P<title>[^"\n]+)")?\n'
    r"(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
SECTIONS = ("The contract", "The smallest working plugin", "Capabilities", "Errors", "Performance", "Test and publish")
EXTERNAL = re.compile(r"<(?:script|link|img|iframe|source|object)\b[^>]*\b(?:src|href|data)=\"?(?:https?:)?//[^>]*>")


class Block(NamedTuple):
    reason: str | None
    language: str
    title: str | None
    code: str

    @property
    def runs(self) -> bool:
        return not self.reason and (self.language == "sh" or (self.language == "python" and not self.title))


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def blocks_of(page: str) -> list[Block]:
    return [Block(**match.groupdict()) for match in BLOCK.finditer(text_of(page))]


PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
README = "../README.md"
PROTOCOLS = [
    one
    for module in (protocols, policy, kernels)
    for one in vars(module).values()
    if getattr(one, "_is_protocol", False) and one.__module__ == module.__name__
]
SESSIONS = [page for page in [README, *PAGES] if any(block.runs for block in blocks_of(page))]


# --- pages as sessions --------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder that holds the repository's examples."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "examples").symlink_to(ROOT / "examples")
    return work


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """An environment whose `python`, `pip`, `pytest` and `composer-run` are those of a throw-away virtual environment.

    It sees everything that is installed here, and what a page installs stays in it. There is no package index.
    """
    home = tmp_path / "venv"
    venv.EnvBuilder(with_pip=False, symlinks=True).create(home)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(home), "platbase": str(home)}))
    (site / "parent.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    for name, module in {"pip": "pip", "pytest": "pytest", "composer-run": "composer_core.cli"}.items():
        script = home / "bin" / name
        script.write_text(f'#!/bin/sh\nexec "{home}/bin/python" -m {module} "$@"\n')
        script.chmod(0o755)
    offline = {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_QUIET": "1"}
    return {**os.environ, **offline, "PATH": f"{home}/bin:{os.environ['PATH']}"}


@pytest.mark.parametrize("page", SESSIONS)
def test_a_page_runs_from_top_to_bottom(page, folder, shell):
    for block in blocks_of(page):
        if block.title:
            path = folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.code, encoding="utf-8")
        elif block.runs:
            head = ["bash", "-euo", "pipefail", "-c"] if block.language == "sh" else ["python", "-c"]
            found = subprocess.run(
                [*head, block.code], cwd=folder, env=shell, capture_output=True, text=True, timeout=300, check=False
            )
            assert found.returncode == 0, f"{block.code}\n{found.stdout}\n{found.stderr}"
    kind = Path(page).stem.removeprefix("bring-a-")
    for dist in folder.glob("composer-plugin-*") if kind in BUDGETS else ():
        assert author_lines(dist) <= BUDGETS[kind], "what the page shows keeps the budget it names"


@pytest.fixture(scope="module")
def help_of(composer_run):
    """What a command prints for `--help`; without words, the program."""

    @functools.cache
    def told(*words: str) -> str:
        process = composer_run(*words, "--help", COLUMNS="80")
        assert process.returncode == 0, process.stderr
        return process.stdout

    return told


@pytest.mark.parametrize("page", [README, *PAGES])
def test_every_command_shown_exists_with_its_options(page, help_of):
    for block in blocks_of(page):
        for line in block.code.replace("\\\n", " ").splitlines() if block.language == "sh" else ():
            words = shlex.split(line, comments=True)
            if words[:1] == ["make"]:
                assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
            if words[:1] == ["composer-run"] and block.reason:
                at = next(place for place, word in enumerate(words) if word in {*COMMANDS, *OFFERED})
                known = help_of(words[at]) + help_of()
                assert not [word for word in words if word.startswith("-") and word not in known], line


@pytest.mark.parametrize("page", PAGES)
def test_every_run_file_shown_is_checked_on_its_page(page):
    for block in blocks_of(page):
        data = tomllib.loads(block.code) if block.language == "toml" else {}
        if "tasks" in data and block.title:
            assert f"composer-run check {block.title}" in text_of(page)


# --- nothing rots -------------------------------------------------------------------------------------------------


def test_what_is_made_from_source_is_fresh():
    command = [sys.executable, ROOT / "tools/docs.py", "--check"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_annotated_run_file_is_the_quickstarts_and_whole():
    shown = "".join(block.code for block in blocks_of("run-file.md") if block.language == "toml")
    assert tomllib.loads(shown) == tomllib.loads((ROOT / "examples/quickstart/run.toml").read_text())


def test_every_key_of_a_run_file_has_a_row_that_says_what_it_is():
    page = text_of("run-file.md")
    classes = [one for one in vars(config).values() if attrs.has(one) and one.__module__ == config.__name__]
    for cls in [*classes, Limits]:
        if cls in (config.Component, config.StageChoice):
            continue
        for field in attrs.fields(cls):
            assert re.search(rf"^\| `{field.name}` \|", page, re.MULTILINE), f"{cls.__name__}.{field.name}"
    assert not re.findall(r"^\| .* \|  \|$", page, re.MULTILINE), "a key without a meaning"


def test_a_default_that_is_made_of_other_settings_is_said_to_be():
    @attrs.frozen
    class Square:
        width: int = 2
        height: int = attrs.field(default=attrs.Factory(lambda self: self.width, takes_self=True))

    default_of = runpy.run_path(str(ROOT / "tools/docs_settings.py"))["default_of"]
    assert [default_of(field) for field in attrs.fields(Square)] == ["`2`", "made of other settings"]


def test_the_help_of_every_command_is_what_it_prints(help_of):
    page = text_of("cli.md")
    for words in ([], *([name] for name in (*COMMANDS, *OFFERED))):
        assert help_of(*words).strip() in page, words


@pytest.mark.parametrize("kind", SPECS)
def test_every_kind_has_a_page_with_its_contract_budget_template_and_suite(kind):
    page = text_of(f"kinds/{kind}.md")
    assert [heading for heading in re.findall(r"^## (.*)$", page, re.MULTILINE) if heading in SECTIONS] == [*SECTIONS]
    hook = next(name for name, of in hookspecs.REGISTRATION_HOOKS.items() if of == kind)
    assert f"(../hooks.md#{hook})" in page
    assert f"class {SPECS[kind].__name__}(Spec):" in page
    assert f"At most {BUDGETS[KINDS[kind]]} logical lines" in page
    suites = re.findall(r"composer_testing\.contracts\.(\w+)\.(\w+)", page)
    assert suites
    for module, name in suites:
        assert f"class {name}" in (ROOT / f"testkit/src/composer_testing/contracts/{module}.py").read_text()


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda one: one.__name__)
def test_every_protocol_is_shown_in_the_markdown_with_its_methods_and_what_they_do(protocol):
    pages = "\n".join(text_of(page) for page in PAGES if page.startswith("kinds/"))
    methods = {name: one for name, one in vars(protocol).items() if inspect.isfunction(one) and name in vars(protocol)}
    methods = {name: one for name, one in methods.items() if name == "__call__" or not name.startswith("_")}
    rows = [row for row in pages.splitlines() if row.endswith("|") and f"| `{protocol.__name__}` |" in row]
    if rows:
        for name, one in methods.items():
            mark = "async " if inspect.iscoroutinefunction(one) else ""
            assert any(f"`{mark}{name}(" in row for row in rows)
        return
    (shown,) = set(re.findall(rf"^class {protocol.__name__}\(Protocol\):\n(?:(?: .*)?\n)+", pages, re.MULTILINE))
    for name, one in methods.items():
        mark = "async " if inspect.iscoroutinefunction(one) else ""
        assert re.search(
            rf'^    {mark}def {name}\((?:.*\n)(?:^     .*\n|^    \).*\n)*?^        """\w', shown, re.MULTILINE
        )


def test_every_optional_protocol_stands_beside_the_capability_that_declares_it():
    page = text_of("kinds/sandboxes.md")
    optional = [one for one in PROTOCOLS if (one.__doc__ or "").startswith("Optional, of a SandboxBackend")]
    assert len(optional) >= 7
    for one in optional:
        assert re.search(rf"^\| `sandbox\.[a-z.]+` \| .* \| `{one.__name__}` \| `async ", page, re.MULTILINE)


def test_every_optional_protocol_of_another_kind_is_shown_on_its_page():
    pages = "".join(text_of(page) for page in PAGES if page.startswith("kinds/"))
    for one in PROTOCOLS:
        if (one.__doc__ or "").startswith("Optional, of a ") and "SandboxBackend" not in one.__doc__.split(":")[0]:
            assert f"class {one.__name__}(Protocol):" in pages


def test_a_protocols_method_without_a_docstring_is_refused(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    source = runpy.run_path(str(ROOT / "tools/docs_source.py"))
    text = 'class P:\n    def told(self):\n        """Told."""\n\n    def untold(self): ...\n'
    told, untold = ast.parse(text).body[0].body
    assert "Told." in source["function"](told, text.splitlines(), "P")
    with pytest.raises(ValueError, match=r"P\.untold has no docstring"):
        source["function"](untold, text.splitlines(), "P")


def test_every_contract_suite_is_named_on_the_page_of_a_kind():
    pages = "".join(text_of(page) for page in PAGES if page.startswith("kinds/"))
    for path in (ROOT / "testkit/src/composer_testing/contracts").glob("*.py"):
        for name in re.findall(r"^class (\w+Contract)\b", path.read_text(), re.MULTILINE):
            assert f"composer_testing.contracts.{path.stem}.{name}`" in pages, name


HOOKS = [name for name in vars(hookspecs) if name.startswith("composer_")]


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_is_shown_with_its_arguments_and_an_example_that_works(name, capsys):
    page = text_of("hooks.md")
    arguments = [
        f"{one.name}: {one.annotation}" for one in inspect.signature(getattr(hookspecs, name)).parameters.values()
    ]
    assert f"`{name}({', '.join(arguments)}) -> " in page
    example = re.search(rf"^### {name}\n.*?^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    module = types.ModuleType("shown")
    exec(example[1], vars(module))
    plugins = Plugins()
    plugins.register(Candidate("shown", "shown", "composer-plugin-shown", "1"), module)
    if name in hookspecs.REGISTRATION_HOOKS:
        assert plugins.loaded[0].components
    elif name == "composer_check":
        runs = [load(ROOT / "examples/fakes/run.toml", [f"seed={seed}"]) for seed in (1, -1)]
        assert [len(plugins.check(hookspecs.RunView(run, {}))) for run in runs] == [0, 1]
    else:
        plugins.process_start(hookspecs.ProcessView("controller", 0, "run", ROOT))
        assert capsys.readouterr().out == "controller 0\n"


def test_the_budget_of_every_kind_stands_in_one_table():
    page = text_of("plugins.md")
    for kind in SPECS:
        assert re.search(
            rf"^\| \[{kind}\]\(kinds/{kind}.md\) \| .* \| {BUDGETS[KINDS[kind]]} \| \d+ \|$", page, re.MULTILINE
        )


def test_every_component_and_command_of_ours_is_in_the_directory(composer_run):
    files = [*ROOT.glob("*/pyproject.toml"), *ROOT.glob("plugins/*/*/pyproject.toml")]
    projects = [tomllib.loads(path.read_text())["project"] for path in files]
    ours = {project["name"] for project in projects}
    rows = [row for row in json.loads(composer_run("plugins", "--json").stdout) if row["dist"] in ours]
    page = text_of("directory.md")
    for component in (component for row in rows for component in row["components"]):
        assert f"| `{component['id']}` |" in page
    for project in projects:
        for command in project.get("entry-points", {}).get("composer.commands", ()):
            assert f"| `composer-run {command}` | {project['name']} |" in page
    assert not [name for name in ours if f"| {name} |" not in page], "a distribution that brings nothing"


@pytest.mark.parametrize("kind", ["tools", "renderers", "algorithms"])
def test_every_component_of_these_kinds_has_a_section(kind):
    dists = {tomllib.loads(path.read_text())["project"]["name"] for path in ROOT.glob("plugins/*/*/pyproject.toml")}
    ours = [one.name for one in candidates().values() if one.dist in dists]
    ids = {entry.id for entry in Plugins().load(select(ours)).registry if entry.spec.kind == kind}
    sections = re.findall(r"^## `(\S+)`$", (DOCS / f"{kind}.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert ids and ids <= set(sections)


def test_the_architectures_listed_are_those_that_can_be_driven():
    source = (ROOT / "plugins/models/hf/src/composer_plugin_hf/routing.py").read_text()
    (table,) = [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ROUTERS"
    ]
    known = set(ast.literal_eval(ast.Tuple(table.keys, ast.Load())))
    assert set(re.findall(r"^\| `(\w+)` \| (?:dense|mixture)", text_of("bring-a-model.md"), re.MULTILINE)) == known


# --- as Markdown, where nothing is built ----------------------------------------------------------------------------


def headings_of(page: str) -> set[str]:
    """Anchors as a code host makes them."""
    text = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    found = [re.sub(r"[^\w\- ]", "", title.lower()) for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    return {title.strip().replace(" ", "-") for title in found}


@pytest.mark.parametrize("page", [README, *PAGES])
def test_every_page_reads_without_the_site(page):
    assert not re.findall(r"^:::", text_of(page), re.MULTILINE), "a directive that only a site builder understands"
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", text_of(page)):
        path = (DOCS / page).parent / target if target else DOCS / page
        assert path.exists(), target
        if anchor and path.suffix == ".md":
            assert anchor in headings_of(os.path.relpath(path, DOCS)), f"{target}#{anchor}"


# --- the site -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built with warnings as errors."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    return target


def test_the_site_has_every_page_and_loads_nothing_from_elsewhere(site):
    built = {path.relative_to(site).with_suffix(".md").as_posix() for path in site.rglob("*.html")}
    assert set(PAGES) <= built
    for path in site.rglob("*.html"):
        assert not EXTERNAL.findall(path.read_text(encoding="utf-8")), path
    for path in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//", path.read_text(encoding="utf-8")), path
