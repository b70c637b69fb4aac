"""The public surface, a line for each name, as `api.txt` holds it: nothing leaves or changes without being seen.

    python tests/test_api.py --write     # after a change that is meant

A new line is an addition. A line that changes or goes can break a plugin: what is deprecated works on for two minor
versions; what cannot work on raises `composer_core.API`; either way it is said in CHANGELOG.md (docs/compatibility.md).
"""

import ast
import difflib
import inspect
import pkgutil
import sys
from functools import singledispatch
from importlib import import_module
from pathlib import Path

import attrs
import pluggy
import pytest

import composer_testing
from composer_core import hookspecs

ROOT = Path(__file__).resolve().parent.parent
FILE = Path(__file__).with_name("api.txt")
WHOLE = (
    "capabilities", "columns", "errors", "events", "footprint", "hookspecs", "protocols", "records", "trees", "types",
)  # fmt: skip
"""Modules of core that are public as a whole."""
PARTS = (
    "assembly", "cli", "config", "credit", "diffs", "episode", "executor", "grading", "history", "hosts", "listing",
    "noise", "opening", "parts", "plugins", "printable", "sandbox", "schema", "stores", "tensors", "traces", "tracking",
)  # fmt: skip
"""Modules of core of which the names in `__all__` are public."""
CORE = ("composer_core", *(f"composer_core.{name}" for name in sorted((*WHOLE, *PARTS))))
ENVKIT = ("composer_envkit", *(f"composer_envkit.agent.{name}" for name in ("files", "frames", "linux", "streams")))
KIT = tuple(
    info.name
    for info in pkgutil.walk_packages(composer_testing.__path__, "composer_testing.")
    if info.name.startswith(("composer_testing.contracts.", "composer_testing.fakes."))
)
HOOKS = {
    **dict.fromkeys(hookspecs.REGISTRATION_HOOKS, ()),
    "composer_check": ("run",),
    "composer_process_start": ("process",),
}
"""Every hook and the names of its arguments: what `@hookimpl` functions out there are written against."""


# --- names --------------------------------------------------------------------------------------------------------


def own(module):
    """Public classes and functions that a module defines itself."""
    return [name for name, value in vars(module).items() if name[0] != "_" and is_defined_in(value, module)]


def is_defined_in(value, module):
    return (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ == module.__name__


def public(module):
    return sorted(getattr(module, "__all__", None) or own(module))


def surface():
    """All lines, sorted."""
    lines = [
        line
        for name in (*CORE, *ENVKIT, *KIT)
        for module in [import_module(name)]
        for attribute in public(module)
        for line in lines_of(f"{name}.{attribute}", getattr(module, attribute), module)
    ]
    return sorted(set(lines))


def lines_of(path, value, module):
    if module.__name__ == "composer_core" and getattr(value, "__module__", "composer_core") != "composer_core":
        return [f"{path}: {value.__module__}.{value.__name__}" if hasattr(value, "__name__") else path]
    if inspect.isclass(value):
        return class_lines(path, value)
    if inspect.isfunction(value):
        return [f"{path}: {signature(value)}"]
    if path.endswith(".CAPABILITIES"):
        return [f"{path}[{name!r}]" for name in value]
    return [f"{path} = {shown(value)}"]


# --- classes ------------------------------------------------------------------------------------------------------


def class_lines(path, cls):
    bases = ", ".join(base.__name__ for base in cls.__bases__ if base is not object)
    fields = {field.name for field in attrs.fields(cls)} if attrs.has(cls) else set()
    lines = [f"{path}: class{bases and f'({bases})'}{constructor(cls)}"]
    for name, annotation in inspect.get_annotations(cls).items():
        if name[0] != "_" and name not in fields and name not in vars(cls):
            lines.append(f"{path}.{name}: {annotated(annotation)}")
    for name, member in vars(cls).items():
        if name[0] != "_" and not name.startswith("test_") and name not in fields:
            lines += member_lines(f"{path}.{name}", member)
    return lines


def constructor(cls):
    """What the class is made from: its fields as written (cattrs resolves their types), or `__init__`'s parameters."""
    if attrs.has(cls):
        fields = [field for field in attrs.fields(cls) if field.init]
        written = {name: text for base in reversed(cls.__mro__) for name, text in inspect.get_annotations(base).items()}
        texts, starred = [], False
        for field in fields:
            texts += ["*"] if field.kw_only and not starred else []
            starred = starred or field.kw_only
            default = "" if field.default is attrs.NOTHING else f" = {shown(field.default)}"
            texts.append(f"{field.alias}: {annotated(written[field.name])}{default}")
        return f" made from ({', '.join(texts)})"
    init = vars(cls).get("__init__")
    protocol = getattr(cls, "_is_protocol", False)
    return f" made from {signature(init)}" if inspect.isfunction(init) and not protocol else ""


def member_lines(path, member):
    if isinstance(member, property):
        return [f"{path}: property{signature(member.fget)[2:]}"]
    if isinstance(member, (classmethod, staticmethod)):
        return [f"{path}: {type(member).__name__}{signature(member.__func__)}"]
    if inspect.isfunction(member):
        return [f"{path}: {signature(member)}"]
    if not hasattr(type(member), "__get__"):
        return [f"{path} = {shown(member)}"]
    return [path]  # a fixture, for example


# --- text ---------------------------------------------------------------------------------------------------------


def signature(function):
    found = inspect.signature(function)
    parameters, texts = [p for p in found.parameters.values() if p.name not in ("self", "cls")], []
    starred = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            texts.append("*")
        starred = starred or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        mark = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        kind = "" if parameter.annotation is parameter.empty else f": {annotated(parameter.annotation)}"
        default = "" if parameter.default is parameter.empty else f" = {shown(parameter.default)}"
        texts.append(f"{mark}{parameter.name}{kind}{default}")
    returns = "" if found.return_annotation is found.empty else f" -> {annotated(found.return_annotation)}"
    word = "async " if inspect.iscoroutinefunction(function) else ""
    return f"{word}({', '.join(texts)}){returns}"


def annotated(annotation):
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return " ".join(text.split())


@singledispatch
def shown(value):
    """A default or a constant; "..." where its text would depend on the run or on a library's version."""
    return value.__name__ if inspect.isclass(value) else "..."


for kind in (int, float, bool, bytes, type(None)):
    shown.register(kind, repr)
shown.register(str, lambda value: repr(str(value)))
shown.register(tuple, lambda value: f"({', '.join(map(shown, value))})")
shown.register(frozenset, lambda value: f"{{{', '.join(sorted(map(shown, value)))}}}")


# --- tests --------------------------------------------------------------------------------------------------------


def test_the_public_surface_is_what_api_txt_says():
    recorded, now = FILE.read_text().splitlines(), surface()
    changed = list(difflib.unified_diff(recorded, now, "api.txt", "the code", n=0, lineterm=""))[2:]
    gone = [line for line in changed if line.startswith("-")]
    advice = "python tests/test_api.py --write, and a line in CHANGELOG.md"
    if gone:
        advice += "; a plugin may rely on what changed or went: deprecate it for two minor versions, or raise API"
    assert not changed, "\n".join(["the public surface has changed:", *changed, f"if that is meant: {advice}"])


@pytest.mark.parametrize("name", [f"composer_core.{name}" for name in WHOLE])
def test_a_public_module_names_all_that_it_defines(name):
    module = import_module(name)
    assert set(own(module)) - set(module.__all__) == set()


@pytest.mark.parametrize("name", [f"composer_core.{name}" for name in (*WHOLE, *PARTS) if name != "tensors"])
def test_no_module_passes_on_what_it_imports(name):
    module = import_module(name)
    assert module.__all__
    for attribute in module.__all__:
        value = getattr(module, attribute)
        foreign = inspect.ismodule(value) or inspect.isclass(value) or inspect.isfunction(value)
        assert not foreign or getattr(value, "__module__", "") == name, attribute


def imports(folder):
    """(file, module, name) of everything that is imported from core by name."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "composer_core":
                yield from ((path.relative_to(ROOT).as_posix(), node.module, alias.name) for alias in node.names)


AUTHORS = [
    ROOT / "envkit/src",
    ROOT / "reference/src",
    *ROOT.glob("plugins/*/*/src"),
    *ROOT.glob("examples/plugins/*/src"),
    ROOT / "testkit/src/composer_testing/fakes",
    ROOT / "testkit/src/composer_testing/scaffold",
]


@pytest.mark.parametrize("folder", AUTHORS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_plugins_of_ours_use_public_names_alone(folder):
    found = list(imports(folder))
    assert found
    for path, module, name in found:
        submodule = f"{module}.{name}" in CORE
        assert module in CORE and (submodule or name in import_module(module).__all__), f"{path}: {module}.{name}"


def test_every_hook_has_its_name_and_arguments():
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    specified = {name: caller.spec.argnames for name, caller in vars(manager.hook).items() if name[0] != "_"}
    assert specified == HOOKS


def test_no_line_depends_on_the_run():
    assert not [line for line in surface() if " object at 0x" in line or "NOTHING" in line]


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("python tests/test_api.py --write")
    FILE.write_text("\n".join(surface()) + "\n")
    print(f"{FILE}: {len(surface())} lines")
