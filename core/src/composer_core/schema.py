"""From a typed function to a tool: its schema, the binding of a model's arguments, and the call.

The schema is made of the signature, the type hints and the docstring, so a tool author writes nothing twice. Binding
casts by type because some wire formats carry text only ("3" is 3 where an int is expected), and is otherwise strict:
an argument that is unknown, missing or of another type is a `ToolError` whose text the model can act on.

Understood hints: str, int, float, bool, Literal, list, dict with str keys, X | None, unions, TypedDict, attrs classes.
Not here: which tools a run has, when a call runs, and how long its result may be (`episode`).
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any

from attrs import evolve, frozen

from composer_core.casts import Mismatch, cast, exact, json_type
from composer_core.errors import ConfigError, PluginError, ToolError, did_you_mean
from composer_core.protocols import ToolContext, ToolOutput, ToolSchema
from composer_core.records import ToolSpec, resolve

__all__ = [
    "bind",
    "call_tool",
    "schema_of",
]

TOOL_THREADS = 16
"""Plain `def` tools of one process that may run at the same time."""


@frozen
class Signature:
    """What a tool's function takes, its `ToolContext` excepted."""

    hints: Mapping[str, Any]
    required: tuple[str, ...]
    takes_context: bool
    is_async: bool
    description: str
    notes: Mapping[str, str]
    """Argument -> its description, from the docstring's `Args:` section."""

    def without(self, names: Collection[str]) -> Signature:
        return evolve(self, hints={name: hint for name, hint in self.hints.items() if name not in names})


def schema_of(spec: ToolSpec, without: Collection[str] = ()) -> ToolSchema:
    """The tool as the model is told about it; `without` are optional arguments that it is not told of.

    Raises:
        PluginError: the function has a parameter without a type, of a type with no schema, or *args / **kwargs.
        ConfigError: `without` names an argument that the tool does not have, or needs.
    """
    signature = _signature(resolve(spec.function))
    optional = set(signature.hints) - set(signature.required)
    if wrong := sorted(set(without) - optional):
        fix = did_you_mean(wrong[0], optional)
        raise ConfigError("no optional argument", where="tools.without", who=spec.name, found=", ".join(wrong), fix=fix)
    properties = {}
    for name, hint in signature.without(without).hints.items():
        note = {"description": signature.notes[name]} if name in signature.notes else {}
        properties[name] = {**json_type(hint), **note}
    parameters = {"type": "object", "properties": properties, "required": list(signature.required)}
    return ToolSchema(spec.name, signature.description or spec.summary, parameters)


def bind(
    spec: ToolSpec, arguments: Mapping[str, Any], without: Collection[str] = (), strict: bool = False
) -> dict[str, Any]:
    """The arguments as the function takes them, cast by its type hints; those not given are left out.

    Raises:
        ToolError: an argument is unknown (or one of `without`), missing, or cannot be cast; with `strict`, its text is
            not the value's own JSON.
    """
    signature = _signature(resolve(spec.function)).without(without)
    for name in arguments:
        if name not in signature.hints:
            raise ToolError(f"{spec.name} has no argument {name!r}; {_known(name, signature)}")
    missing = [name for name in signature.required if name not in arguments]
    if missing:
        raise ToolError(f"{spec.name} needs {_listed(missing)}; {_usage(signature)}")
    bound = {}
    for name, value in arguments.items():
        try:
            bound[name] = cast(signature.hints[name], value)
            if strict:
                exact(value, bound[name])
        except Mismatch as error:
            where = name + error.where
            raise ToolError(f"{spec.name}: {where} must be {error.expected}, found {error.found}") from None
    return bound


async def call_tool(
    spec: ToolSpec, function: Callable[..., Any], context: ToolContext, arguments: Mapping[str, Any]
) -> ToolOutput:
    """Call `function`, the resolved `spec.function`, with arguments that `bind` returned.

    Coroutine functions run on the event loop, plain ones in a bounded thread pool. Exceptions pass through.

    Raises:
        TypeError: the tool returned neither text nor a `ToolOutput`.
    """
    signature = _signature(function)
    call = partial(function, context, **arguments) if signature.takes_context else partial(function, **arguments)
    output = await call() if signature.is_async else await _in_thread(call)
    if isinstance(output, str):
        return ToolOutput(output)
    if isinstance(output, ToolOutput):
        return output
    raise TypeError(f"tool {spec.name} returned {type(output).__name__}; expected str or ToolOutput")


async def _in_thread(call: Callable[[], Any]) -> Any:
    context = contextvars.copy_context()

    def run() -> Any:
        try:
            return context.run(call)
        except StopIteration as error:  # a future cannot carry it
            raise RuntimeError("the tool raised StopIteration") from error

    return await asyncio.get_running_loop().run_in_executor(_pool(), run)


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(TOOL_THREADS, thread_name_prefix="composer-tool")


@lru_cache(maxsize=1024)
def _signature(function: Callable[..., Any]) -> Signature:
    where = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', function)}"
    try:
        hints = typing.get_type_hints(function if inspect.isroutine(function) else type(function).__call__)
        parameters = list(inspect.signature(function).parameters.values())
    except (NameError, TypeError, ValueError) as error:
        raise PluginError("a tool's signature cannot be read", where=where, found=str(error)) from error
    takes_context = bool(parameters) and _is_context(parameters[0], hints)
    parameters = parameters[1:] if takes_context else parameters
    for parameter in parameters:
        _check(parameter, hints, where)
    description, notes = _docstring(inspect.getdoc(function) or "")
    return Signature(
        hints={parameter.name: hints[parameter.name] for parameter in parameters},
        required=tuple(parameter.name for parameter in parameters if parameter.default is parameter.empty),
        takes_context=takes_context,
        is_async=inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__),
        description=description,
        notes=notes,
    )


def _is_context(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> bool:
    return hints.get(parameter.name, ToolContext if parameter.name == "context" else None) is ToolContext


def _check(parameter: inspect.Parameter, hints: Mapping[str, Any], where: str) -> None:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise PluginError(
            "a tool takes named parameters only", where=where, found=str(parameter), fix="name each argument"
        )
    if parameter.name not in hints:
        raise PluginError("a tool's parameter has no type", where=where, found=parameter.name, fix="annotate it")
    try:
        json_type(hints[parameter.name])
    except TypeError as error:
        raise PluginError(
            "a tool's parameter has a type that no schema can be made of",
            where=f"{where}, parameter {parameter.name}",
            expected="str, int, float, bool, Literal, list, dict[str, ...], X | None, TypedDict or an attrs class",
            found=str(error),
        ) from error


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """The text before its first section, and the entries of the `Args:` section."""
    head, _, rest = text.partition("\nArgs:\n")
    notes: dict[str, str] = {}
    name, deeper = "", rest[: len(rest) - len(rest.lstrip())] + " "
    for line in rest.splitlines():
        if line and not line.startswith(" "):
            break
        key, colon, note = line.strip().partition(":")
        if colon and key.isidentifier() and not line.startswith(deeper):
            name, notes[key] = key, note.strip()
        elif name and line.strip():
            notes[name] += " " + line.strip()
    for section in ("\nReturns:", "\nRaises:"):
        head = head.partition(section)[0]
    return head.strip(), notes


def _known(name: str, signature: Signature) -> str:
    hint = did_you_mean(name, signature.hints)
    return hint if hint.startswith("known") else f"{hint} {_usage(signature)}"


def _usage(signature: Signature) -> str:
    if not signature.hints:
        return "it takes none"
    words = [name if name in signature.required else f"{name} (optional)" for name in signature.hints]
    return f"known: {', '.join(words)}"


def _listed(names: list[str]) -> str:
    return f"argument{'s' if len(names) > 1 else ''} {', '.join(map(repr, names))}"
