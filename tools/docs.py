"""Write the parts of docs/ that are made from source: contracts, settings, help texts, templates, hooks, the directory.

A made part is committed, so it reads on the repository's web page as it does on the site. It stands between two
comments, the first of which names a function of this module and its words:

    <!-- made: settings core -->
    <!-- end -->

`python tools/docs.py` writes every made part anew; `--check` writes nothing, names the stale pages and ends with 1.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import attrs
from click.testing import CliRunner
from docs_components import sections
from docs_contract import budget, budgets, capabilities, code, hook_examples, hooks, optional, reference, singular
from docs_keys import keys_table
from docs_settings import markdown_table, table_of
from docs_source import fence

from composer_core import config as run_config
from composer_core.cli import COMMAND_GROUP, COMMANDS, group
from composer_core.plugins import Plugins, candidates, select
from composer_core.records import SPECS, RewardSpec, Spec, resolve
from composer_core.registry import Entry
from composer_core.types import Limits
from composer_testing.new import EXAMPLES, SCAFFOLD, named

ROOT = Path(__file__).resolve().parent.parent
PART = re.compile(r"(<!-- made: ([a-z_]+)([^\n]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
WIDTH = 78
"""Of help texts: what click makes of a terminal of 80 columns."""


# --- settings -----------------------------------------------------------------------------------------------------


def keys(name: str) -> str:
    """The table of a class of `composer_core.config`, or of `Limits`."""
    return table_of(Limits if name == "Limits" else getattr(run_config, name))


def class_tables(module: str, *names: str) -> str:
    """Tables of classes of a plugin's module, each below the first line of its docstring."""
    classes = [getattr(import_module(module), name) for name in names]
    return "\n\n".join(f"{inspect.getdoc(cls).splitlines()[0]}\n\n{table_of(cls)}" for cls in classes)  # type: ignore[union-attr]


def metrics(module: str) -> str:
    """What a plugin's module tells Prometheus: its `FIGURES`, by the names that are scraped."""
    found = import_module(module)
    ends = {"counter": ["_total"], "summary": ["_count", "_sum"]}
    rows = []
    for one in found.FIGURES:
        names = (f"`{found.PREFIX}_{one.name}{end}`" for end in ends.get(one.kind, [""]))
        rows.append((", ".join(names), one.kind, ", ".join(one.labels), one.text))
    return markdown_table(("metric", "type", "labels", "meaning"), rows)


def settings(*plugins: str) -> str:
    """A table for each component of the plugins, and for what a trainer reads of a stage's table."""
    parts = []
    for entry in components():
        if entry.plugin not in plugins:
            continue
        stage = getattr(entry.spec, "stage_config", None)
        for cls, where in ((entry.spec.config, ""), (stage, ", in a stage's table")):
            if cls is not None and attrs.fields(cls):
                parts.append(f"**`{entry.id}`** ({entry.spec.kind}{where})\n\n{table_of(cls)}")
    return "\n\n".join(parts)


def reward(id: str) -> str:
    """What a reward's record and its function say: scope, range, weight, the formula with its source, settings."""
    (spec,) = (entry.spec for entry in components() if entry.id == id and isinstance(entry.spec, RewardSpec))
    low, high = spec.range
    facts = f"Scope `{spec.scope}`, range {low:g} to {high:g}, weight {spec.weight:g} unless the run file gives one."
    table = f"\n\n{table_of(spec.config)}" if attrs.fields(spec.config) else "\n\nIt has no settings."
    return f"{facts}\n\n{inspect.getdoc(resolve(spec.function))}{table}"


def rewards(plugin: str) -> str:
    """The rewards of a plugin, each with a link to its page."""
    specs = [entry.spec for entry in components() if entry.plugin == plugin and isinstance(entry.spec, RewardSpec)]
    rows = [
        (
            f"[`{plugin}/{s.name}`]({s.name}.md)",
            s.scope,
            f"{s.range[0]:g} to {s.range[1]:g}",
            f"{s.weight:g}",
            s.summary,
        )
        for s in specs
    ]
    return markdown_table(("reward", "scope", "range", "weight", "what it looks at"), rows)


def kind(name: str) -> str:
    """A section for each component of a kind."""
    return sections(name, components())


# --- commands -----------------------------------------------------------------------------------------------------


def help_texts() -> str:
    """What `composer-run COMMAND --help` prints at 80 columns, for the group and every command of ours."""
    shown = []
    for words in ([], *([name] for name in [*COMMANDS, *(entry.name for entry in commands())])):
        found = CliRunner().invoke(group, [*words, "--help"], prog_name="composer-run", terminal_width=WIDTH)
        shown.append(f"## `{' '.join(['composer-run', *words])}`\n\n{fence('text', found.output)}")
    return "\n\n".join(shown)


# --- plugins ------------------------------------------------------------------------------------------------------


@cache
def our_dists() -> frozenset[str]:
    """The distributions of this repository."""
    files = [*ROOT.glob("*/pyproject.toml"), *ROOT.glob("plugins/*/*/pyproject.toml")]
    return frozenset(tomllib.loads(path.read_text(encoding="utf-8"))["project"]["name"] for path in files)


def is_ours(dist: metadata.Distribution | None) -> bool:
    return dist is not None and dist.name in our_dists()


@cache
def commands() -> tuple[metadata.EntryPoint, ...]:
    """Commands that distributions of this repository add to core's, by name."""
    found = [entry for entry in metadata.entry_points(group=COMMAND_GROUP) if is_ours(entry.dist)]
    return tuple(sorted(found, key=lambda entry: entry.name))


@cache
def components() -> tuple[Entry, ...]:
    """Every component of this repository's own plugins, by kind in the order of `SPECS`, then by id."""
    names = [one.name for one in candidates().values() if one.dist in our_dists()]
    loaded = Plugins().load(select(names))
    order = list(SPECS)
    return tuple(sorted(loaded.registry, key=lambda entry: (order.index(entry.spec.kind), entry.id)))


def directory() -> str:
    """Our own components, a table for each kind, and commands that are not core's."""
    parts = []
    for kind in SPECS:
        rows = [(f"`{e.id}`", e.dist, offers(e.spec), e.spec.summary) for e in components() if e.spec.kind == kind]
        heading = f"### [{kind}](kinds/{kind}.md)\n\n"
        parts.append(heading + markdown_table(("component", "distribution", "offers", "what it is"), rows))
    rows = [(f"`composer-run {e.name}`", e.dist.name, e.load().get_short_help_str(limit=200)) for e in commands()]
    table = markdown_table(("command", "distribution", "what it does"), rows)
    return "\n\n".join([*parts, f"### [commands](plugins.md#commands)\n\n{table}"])


def offers(spec: Spec) -> str:
    return ", ".join(f"`{name.partition('.')[2]}`" for name in sorted(spec.capabilities))


# --- files --------------------------------------------------------------------------------------------------------


def template(kind: str) -> str:
    """What `composer-run new` writes for one kind under its example's name: Python files, tests last."""
    name = EXAMPLES[singular(kind)]
    folder = SCAFFOLD / singular(kind)
    paths = [path for path in folder.rglob("*.py") if path.name != "__init__.py"]
    ordered = sorted(paths, key=lambda path: ("tests" in path.parts, path.name != "plugin.py", path))
    return "\n\n".join(
        fence(f'python title="{named(path.relative_to(folder).as_posix(), name)}"', named(path.read_text(), name))
        for path in ordered
    )


def file(path: str) -> str:
    """A Python file of this repository, whole."""
    return fence(f'python title="{path}"', (ROOT / path).read_text(encoding="utf-8"))


def project(kind: str) -> str:
    """The project file of a kind's template, under its example's name."""
    text = (SCAFFOLD / kind / "pyproject.toml").read_text(encoding="utf-8")
    return fence('toml title="pyproject.toml"', named(text, EXAMPLES[kind]))


def example(kind: str) -> str:
    """The command that writes it."""
    return fence("sh", f"composer-run new {singular(kind)} {EXAMPLES[singular(kind)]}")


def loop() -> str:
    """The README's drawing of the loop."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return text.partition("## The loop\n")[2].partition("```\n")[2].partition("```")[0].join(["```\n", "```"])


def run_file(path: str, *names: str) -> str:
    """Paragraphs of a run file: `top`, a table's key, or `stages.NAME`."""
    parts = paragraphs((ROOT / path).read_text(encoding="utf-8"))
    return fence("toml", "\n\n".join(parts[name] for name in names))


def explained(path: str) -> str:
    """Every key of a run file, what it says there, and what it means."""
    return keys_table(tomllib.loads((ROOT / path).read_text(encoding="utf-8")), {e.id: e.spec for e in components()})


def paragraphs(text: str) -> dict[str, str]:
    """A run file cut at its blank lines, by what each paragraph sets; equal names are joined."""
    found: dict[str, str] = {}
    for part in text.strip().split("\n\n"):
        name = name_of(tomllib.loads(part))
        found[name] = f"{found[name]}\n\n{part}" if name in found else part
    return found


def name_of(data: Mapping[str, Any]) -> str:
    if "name" in data:
        return "top"
    (key, value), *_ = data.items()
    return f"{key}.{value[0]['name']}" if isinstance(value, list) and "name" in value[0] else key


# --- pages --------------------------------------------------------------------------------------------------------


MAKERS: dict[str, Callable[..., str]] = {
    "code": code,
    "reference": reference,
    "optional": optional,
    "budget": budget,
    "budgets": budgets,
    "keys": keys,
    "class_tables": class_tables,
    "metrics": metrics,
    "settings": settings,
    "reward": reward,
    "rewards": rewards,
    "kind": kind,
    "help": help_texts,
    "directory": directory,
    "capabilities": capabilities,
    "hooks": hooks,
    "hook_examples": hook_examples,
    "template": template,
    "example": example,
    "file": file,
    "project": project,
    "loop": loop,
    "run_file": run_file,
    "explained": explained,
}


def made(page: str) -> str:
    """The page with every made part written anew."""

    def part(match: re.Match[str]) -> str:
        begin, name, words, end = match.groups()
        return f"{begin}\n{MAKERS[name](*words.split())}\n\n{end}"

    written, parts = PART.subn(part, page)
    return formatted(written) if parts else page


def formatted(page: str) -> str:
    """Code blocks as the linter wants them, however they were cut together."""
    command = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", "page.md", "-"]
    return subprocess.run(command, input=page, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def main(check: bool) -> int:
    stale = []
    for path in sorted((ROOT / "docs").rglob("*.md")):
        before = path.read_text(encoding="utf-8")
        after = made(before)
        if after != before:
            stale.append(path.relative_to(ROOT).as_posix())
            if not check:
                path.write_text(after, encoding="utf-8")
    if stale:
        print("stale:" if check else "written:", *stale, *(["(fix: python tools/docs.py)"] if check else []))
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
