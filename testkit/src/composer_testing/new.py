"""`composer-run new KIND NAME`: a plugin of one's own as a complete distribution, to be changed from there.

A template is itself a valid distribution whose name is the placeholder `my-name` (`my_name` and `MyName` in Python);
rendering copies its tree and replaces the three spellings in file names and contents. So there is no template
language: linters read templates as plain Python, and the docs show the same files.

Not here: what a plugin must do (`composer_core.protocols`) and the suites that test it (`composer_testing.contracts`).
"""

from __future__ import annotations

import builtins
import keyword
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import click

from composer_core.errors import UserError, did_you_mean
from composer_core.plugins import BUILTIN, candidates

SCAFFOLD = Path(__file__).parent / "scaffold"
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
EXAMPLES: Mapping[str, str] = {
    "tool": "word-count",
    "sandbox": "folders",
    "sampler": "bigrams",
    "reward": "brevity",
    "kernel": "loop-experts",
    "task": "repairs",
    "model": "running-mean",
    "renderer": "json-calls",
    "algorithm": "reinforce",
    "trainer": "descent",
    "executor": "bounded",
    "context": "latest-turns",
    "tracker": "csv-steps",
    "store": "sqlite",
}
"""Every kind, with a name under which its template reads as what it does."""
KINDS: Mapping[str, str] = {f"{kind}{'es' if kind.endswith('x') else 's'}": kind for kind in EXAMPLES}
"""A kind as hooks, docs and `plugins --kind` call it -> as it is called here; either may be given."""


@click.command(name="new", epilog=f"Kinds, in either number: {', '.join(EXAMPLES)}.")
@click.argument("kind")
@click.argument("name")
@click.option("--into", type=click.Path(path_type=Path), help="Folder to write; default ./composer-plugin-NAME.")
def command(kind: str, name: str, into: Path | None) -> None:
    """Write the plugin NAME with a component of KIND: code, README and the kind's contract test."""
    kind = KINDS.get(kind, kind)
    check_kind(kind)
    check_name(name)
    folder = into or Path(f"composer-plugin-{name}")
    check_folder(folder)
    render(kind, name, folder)
    click.echo(f"{folder}: the plugin {name} (kind: {kind}); it works as it is, change it from there:")
    for line in (f"cd {shlex.quote(str(folder))}", "pip install --no-build-isolation -e .", "pytest"):
        click.echo(f"  {line}")
    click.echo("  composer-run plugins")


def render(kind: str, name: str, folder: Path) -> None:
    """Copy the template of `kind` into `folder`, with `name` in the place of the placeholders."""
    root = SCAFFOLD / kind
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            target = folder / named(path.relative_to(root).as_posix(), name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(named(path.read_text(encoding="utf-8"), name), encoding="utf-8")


def named(text: str, name: str) -> str:
    """`text` with the three spellings of the placeholder replaced."""
    title = "".join(part.capitalize() for part in name.split("-"))
    return text.replace("my-name", name).replace("my_name", name.replace("-", "_")).replace("MyName", title)


def check_kind(kind: str) -> None:
    """Raises UserError unless there is a template of this kind."""
    if kind not in EXAMPLES:
        hint = did_you_mean(kind, EXAMPLES)
        raise UserError(f"no kind {kind!r}", where="KIND", expected=", ".join(EXAMPLES), fix=hint)


def check_name(name: str) -> None:
    """Raises UserError unless `name` can be a plugin's, a module's and a function's, and is free here."""
    if not NAME.fullmatch(name):
        better = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        fix = f"try {better!r}" if NAME.fullmatch(better) else f"a name such as {EXAMPLES['tool']!r}"
        expected = "small letters, digits and single dashes, a letter first"
        raise UserError("this cannot be a plugin's name", where="NAME", expected=expected, found=repr(name), fix=fix)
    if keyword.iskeyword(name) or hasattr(builtins, name.replace("-", "_")):
        raise UserError(f"Python has its own {name!r}", where="NAME", fix=f"try 'my-{name}'")
    taken = candidates().get(name)
    if taken or name == BUILTIN:
        who = f"{taken.dist} {taken.version}" if taken else "composer-core"
        raise UserError(f"a plugin {name!r} is installed already", who=who, where="NAME", fix="choose another name")


def check_folder(folder: Path) -> None:
    """Raises UserError if something is there already."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(
            f"{folder} is not empty",
            where=str(folder.resolve()),
            expected="a new or an empty folder",
            fix="choose another with --into FOLDER",
        )
