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
import sys
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs
from click.testing import CliRunner
from docs_settings import markdown_table, table_of
from docs_source import methods_of, names_of, stub

from composer_core import config as run_config
from composer_core import hookspecs
from composer_core.capabilities import CAPABILITIES
from composer_core.cli import COMMAND_GROUP, COMMANDS, group
from composer_core.plugins import Plugins, candidates, select
from composer_core.records import SPECS, Spec
from composer_core.registry import Entry
from composer_core.types import Limits
from composer_testing.budget import BUDGETS, author_lines
from composer_testing.new import EXAMPLES, KINDS, SCAFFOLD, named

ROOT = Path(__file__).resolve().parent.parent
PART = re.compile(r"(<!-- made: ([a-z_]+)([^\n]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
WIDTH = 78
"""Of help texts: what click makes of a terminal of 80 columns."""
OPTIONAL: Mapping[str, tuple[str, ...]] = {
    "sandbox.forks": ("Forks.fork",),
    "sandbox.snapshots.files": ("Forks.snapshot",),
    "sandbox.snapshots.full": ("FullSnapshots.full_snapshot",),
    "sandbox.sessions": ("Sessions.session_exec",),
    "sandbox.pauses": ("Pauses.pause", "Pauses.resume"),
    "sandbox.networks": ("Networks.set_network",),
    "sandbox.leases": ("Leases.renew",),
    "sandbox.changes": ("Changes.changes",),
}
"""Capability -> the methods of an optional Protocol that a component has if it declares it."""


# --- the contract -------------------------------------------------------------------------------------------------


def code(*names: str) -> str:
    """Definitions of core ("protocols.Sampler"), or all of a module's ("errors"), in one block."""
    whole = [one for name in names for one in ([name] if "." in name else names_of(name))]
    return fence("pyi", "\n\n".join(map(stub, whole)))


def reference(module: str) -> str:
    """Every class of a module under a heading of its own."""
    return "\n\n".join(f"### {name.rpartition('.')[2]}\n\n{fence('pyi', stub(name))}" for name in names_of(module))


def optional(prefix: str) -> str:
    """What a component may declare, and the methods that it has then."""
    rows = []
    for name, text in CAPABILITIES.items():
        if name.startswith(prefix):
            methods = [one.partition(".") for one in OPTIONAL.get(name, ())]
            protocol = " ".join(dict.fromkeys(f"`{first}`" for first, _, _ in methods))
            shown = "; ".join(f"`{methods_of(f'protocols.{first}')[last]}`" for first, _, last in methods)
            rows.append((f"`{name}`", text, protocol, shown))
    return markdown_table(("capability", "meaning", "Protocol", "methods"), rows)


def budget(kind: str) -> str:
    """What an author of this kind writes at most."""
    one = singular(kind)
    return (
        f"At most {BUDGETS[one]} logical lines, project file included; the template has "
        f"{author_lines(SCAFFOLD / one)} ([how they are counted](../plugins.md#the-kinds))."
    )


def budgets() -> str:
    """Every kind with what a record of it is, and the same numbers."""
    rows = []
    for kind, spec in SPECS.items():
        said = (spec.__doc__ or "").partition("\n")[0].partition(" (`")[0].rstrip(".")
        numbers = str(BUDGETS[singular(kind)]), str(author_lines(SCAFFOLD / singular(kind)))
        rows.append((f"[{kind}](kinds/{kind}.md)", said[0].lower() + said[1:], *numbers))
    return markdown_table(("kind", "a component is or does", "lines, at most", "the template"), rows)


# --- settings -----------------------------------------------------------------------------------------------------


def keys(name: str) -> str:
    """The table of a class of `composer_core.config`, or of `Limits`."""
    return table_of(Limits if name == "Limits" else getattr(run_config, name))


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


def capabilities(prefix: str = "") -> str:
    """The names that begin with `prefix`, and what each means."""
    rows = [(f"`{name}`", text) for name, text in CAPABILITIES.items() if name.startswith(prefix)]
    return markdown_table(("capability", "meaning"), rows)


def hooks() -> str:
    """Every hook with its exact arguments."""
    rows = []
    for name, hook in hooks_of().items():
        kind = hookspecs.REGISTRATION_HOOKS.get(name)
        page = f"[{kind}](kinds/{kind}.md)" if kind else "life cycle"
        rows.append((f"[`{signature_of(hook)}`](#{name})", page, said_of(hook)[0].partition("\n")[0]))
    return markdown_table(("hook", "kind", "what it does"), rows)


def hook_examples(phase: str) -> str:
    """Every hook of a phase, registration or life_cycle, with the smallest plugin that has it."""
    parts = []
    for name, hook in hooks_of().items():
        if (name in hookspecs.REGISTRATION_HOOKS) != (phase == "registration"):
            continue
        parts.append(f"### {name}\n\n`{signature_of(hook)}`\n\n{said_of(hook)[1]}")
    return "\n\n".join(parts)


def hooks_of() -> dict[str, Callable[..., Any]]:
    return {name: hook for name, hook in vars(hookspecs).items() if name.startswith("composer_")}


def said_of(hook: Callable[..., Any]) -> tuple[str, str]:
    """What a hook's docstring says, and the example that it ends with."""
    text, fenced, example = (inspect.getdoc(hook) or "").partition("```python")
    return text.strip(), (fenced + example).strip()


def signature_of(hook: Callable[..., Any]) -> str:
    return f"{hook.__name__}{inspect.signature(hook)}".replace("'", "")


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


def project(kind: str) -> str:
    """The project file of a kind's template, under its example's name."""
    text = (SCAFFOLD / kind / "pyproject.toml").read_text(encoding="utf-8")
    return fence('toml title="pyproject.toml"', named(text, EXAMPLES[kind]))


def example(kind: str) -> str:
    """The command that writes it."""
    return fence("sh", f"composer-run new {singular(kind)} {EXAMPLES[singular(kind)]}")


def singular(kind: str) -> str:
    return KINDS.get(kind, kind)


def loop() -> str:
    """The README's drawing of the loop."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return text.partition("## The loop\n")[2].partition("```\n")[2].partition("```")[0].join(["```\n", "```"])


def run_file(path: str, *names: str) -> str:
    """Paragraphs of a run file: `top`, a table's key, or `stages.NAME`."""
    parts = paragraphs((ROOT / path).read_text(encoding="utf-8"))
    return fence("toml", "\n\n".join(parts[name] for name in names))


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


def fence(header: str, text: str) -> str:
    return f"```{header}\n{text.strip(chr(10))}\n```"


MAKERS: dict[str, Callable[..., str]] = {
    "code": code,
    "reference": reference,
    "optional": optional,
    "budget": budget,
    "budgets": budgets,
    "keys": keys,
    "settings": settings,
    "help": help_texts,
    "directory": directory,
    "capabilities": capabilities,
    "hooks": hooks,
    "hook_examples": hook_examples,
    "template": template,
    "example": example,
    "project": project,
    "loop": loop,
    "run_file": run_file,
}


def made(page: str) -> str:
    """The page with every made part written anew."""

    def part(match: re.Match[str]) -> str:
        begin, name, words, end = match.groups()
        return f"{begin}\n{MAKERS[name](*words.split())}\n\n{end}"

    return PART.sub(part, page)


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
