"""One tree of errors, named for the boundary they crossed.

Plugin code raises ordinary exceptions. `boundary(kind, plugin)` stands at every edge from the framework into a
plugin: an error of this tree passes through untouched, anything else becomes a `PluginFault` that names the plugin.
Faults inside an episode are recorded as data on its trace (see `types.Verdict`); they never end a run by themselves.

Every class is picklable with its fields, since errors travel between processes. To add one: subclass the boundary it
crosses, keep the constructor, give it an `exit_code` only if a person caused it.

This module formats messages; it does not print, log or decide what a fault means for training.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

FIELDS = ("who", "where", "expected", "found", "fix")


class ComposerError(Exception):
    """Base of everything the framework raises on purpose.

    `who` (plugin, dist, version), `where` (file, key), `expected`, `found` and `fix` are optional strings that are
    appended to the message, one a line.
    """

    exit_code = 1

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = {name: value for name, value in fields.items() if value is not None}

    def __str__(self) -> str:
        lines = [f"  {name + ':':<10}{self.fields[name]}" for name in FIELDS if name in self.fields]
        return "\n".join([self.message, *lines])

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.fields)


def _rebuild(cls: type[ComposerError], message: str, fields: dict[str, Any]) -> ComposerError:
    return cls(message, **fields)


class UserError(ComposerError):
    """Something a person wrote cannot be used; exit code 2, nothing already written is lost."""

    exit_code = 2


class ConfigError(UserError, ValueError):
    """A run file, a `--set` or a component's settings cannot be used."""


class PluginError(UserError):
    """A plugin that was asked for is missing, broken, incompatible or contradicts another."""


class CheckError(UserError):
    """`check` found problems; the message lists all of them."""


class CapabilityError(UserError):
    """A component was asked for something that it cannot do here."""


class PluginFault(ComposerError):
    """A plugin's component raised an exception of its own; `kind` and `plugin` say which."""

    @property
    def kind(self) -> str:
        return str(self.fields.get("kind", ""))

    @property
    def plugin(self) -> str:
        return str(self.fields.get("plugin", ""))


class ToolError(ComposerError):
    """A tool's way to tell the model what went wrong; the message is the text that the model reads."""


class SamplerError(ComposerError):
    """A sampler could not generate (its process died, a log-probability is not a number): the episode is void."""


class TrainerError(ComposerError):
    """A training step cannot be used, for example too many non-finite losses in a row."""


class GradingError(ComposerError):
    """The grader itself failed; the episode is void, never failed."""


class StoreError(ComposerError):
    """A blob is missing or its bytes do not match their checksum."""


class RunInterrupted(ComposerError):
    """The run was asked to stop (SIGINT, SIGTERM) and has written what it had; resume carries on."""

    exit_code = 130


class SandboxError(ComposerError):
    """Base of what a sandbox provider may raise.

    `retryable`: the same call may succeed later. `outcome_unknown`: the call may or may not have had its effect.
    """

    retryable = False
    outcome_unknown = False


class SandboxGone(SandboxError):
    """The sandbox does not exist (any more)."""


class SandboxUnreachable(SandboxError):
    """Contact was lost after a request was sent."""

    retryable = True
    outcome_unknown = True


class NoCapacity(SandboxError):
    """Nothing was changed; there is no room now. `fields['retry_after_s']` says when to ask again."""

    retryable = True


class TemplateMissing(SandboxError):
    """A template or snapshot reference is unknown to this provider; prepare it again."""


class PrepareError(SandboxError):
    """A workspace could not be prepared, for example a needed command is not installed."""


class Unsupported(SandboxError, NotImplementedError):
    """A capability that this backend does not have; never silently replaced by something weaker."""


class PathError(SandboxError, OSError):
    """A path inside the sandbox is missing, escapes the workspace, or is not a regular file."""


class QuotaError(SandboxError):
    """A file or an output is larger than the sandbox's limits allow."""


class BackendError(SandboxError):
    """The provider's machinery failed (mount, spawn, protocol)."""


@contextmanager
def boundary(kind: str, plugin: str) -> Iterator[None]:
    """Attribute a plugin's plain exception to `plugin` (a "plugin/name" id or a plugin name) once, at the edge.

    `kind` is a kind of the registry ("tools"), or "hook" or "episode".

    Raises:
        PluginFault: from any exception that is not of this module's tree. Cancellation and exits pass through.
    """
    try:
        yield
    except (ComposerError, asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except Exception as error:
        text = f"{plugin} ({kind}) raised {type(error).__name__}: {error}"
        raise PluginFault(text, kind=kind, plugin=plugin) from error


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence that suggests the nearest known name, or lists what there is."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(names)}" if names else "none are known"
