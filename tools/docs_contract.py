"""The contract as pages show it: definitions, capabilities, budgets, hooks. Makers for `tools/docs.py`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from docs_settings import markdown_table
from docs_source import fence, methods_of, names_of, stub

from composer_core import hookspecs
from composer_core.capabilities import CAPABILITIES
from composer_core.records import SPECS
from composer_testing.budget import BUDGETS, author_lines
from composer_testing.new import KINDS, SCAFFOLD

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


# --- definitions ------------------------------------------------------------------------------------------------------


def code(*names: str) -> str:
    """Definitions of core ("protocols.Sampler"), or all of a module's ("errors"), in one block."""
    whole = [one for name in names for one in ([name] if "." in name else names_of(name))]
    return fence("pyi", "\n\n".join(map(stub, whole)))


def reference(module: str) -> str:
    """Every class of a module under a heading of its own."""
    return "\n\n".join(f"### {name.rpartition('.')[2]}\n\n{fence('pyi', stub(name))}" for name in names_of(module))


# --- capabilities -----------------------------------------------------------------------------------------------------


def capabilities(prefix: str = "") -> str:
    """The names that begin with `prefix`, and what each means."""
    rows = [(f"`{name}`", text) for name, text in CAPABILITIES.items() if name.startswith(prefix)]
    return markdown_table(("capability", "meaning"), rows)


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


# --- budgets ----------------------------------------------------------------------------------------------------------


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


def singular(kind: str) -> str:
    return KINDS.get(kind, kind)


# --- hooks ------------------------------------------------------------------------------------------------------------


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
