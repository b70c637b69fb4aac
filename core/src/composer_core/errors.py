"""One tree of errors, named for the boundary they crossed.

Plugin code raises ordinary exceptions. `boundary(kind, plugin)` stands at every edge from the framework into a
plugin: an error of this tree passes through and is told where it came from, anything else becomes a `PluginFault`.
Either way its text names the component, its distribution and the version. Faults inside an episode are recorded as
data on its trace (see `types.Verdict`); they never end a run by themselves.

Whose a component is, is known to the process: `Plugins` records the owner of each plugin it registers, and `who` looks
it up when an error is made. So an id ("plugin/name") is all that has to travel through the loop, workers name what
they have loaded themselves, and an error that was pickled carries its finished text.

Every class is picklable with its fields and notes, since errors travel between processes. To add one: subclass the
boundary it crosses, keep the constructor, give it an `exit_code` only if a person caused it.

This module formats messages; it does not print, log or decide what a fault means for training.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

__all__ = [
    "BackendError",
    "CapabilityError",
    "CheckError",
    "ComposerError",
    "ConfigError",
    "GradingError",
    "IncompatiblePlugin",
    "NoCapacity",
    "PathError",
    "PluginError",
    "PluginFault",
    "PrepareError",
    "QuotaError",
    "RunInterrupted",
    "SamplerError",
    "SandboxError",
    "SandboxGone",
    "SandboxUnreachable",
    "StoreError",
    "TemplateMissing",
    "ToolError",
    "TrainerError",
    "Unsupported",
    "UserError",
    "WorkLost",
    "boundary",
    "did_you_mean",
    "pip_fix",
    "record_owner",
    "who",
]

FIELDS = ("who", "where", "expected", "found", "fix")
_ID = re.compile(r"[\w.-]+/[\w.-]+")
_OWNERS: dict[str, dict[str, None]] = {}
"""Plugin -> "dist version" as registered in this process; a name registered by two is said to be of either."""


def record_owner(plugin: str, dist: str, version: str) -> None:
    """Remember whose a plugin is, for the text of every error that its components cause in this process."""
    _OWNERS.setdefault(plugin, {})[f"{dist} {version}"] = None


def who(plugin: str) -> str:
    """`plugin` (a name, or an id "plugin/name") with the distribution and version behind it, where they are known."""
    owners = _OWNERS.get(plugin.partition("/")[0]) if " " not in plugin else None
    return f"{plugin} of {' or '.join(owners)}" if owners else plugin


class ComposerError(Exception):
    """Base of everything the framework raises on purpose.

    `who` (an id, which is completed with dist and version), `where` (file, key), `expected`, `found` and `fix` are
    optional strings that are appended to the message, one a line.
    """

    exit_code = 1

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = {name: value for name, value in fields.items() if value is not None}
        said = str(self.fields.get("who", ""))
        named = who(said)
        if named != said or _ID.fullmatch(said):
            self.fields = {"plugin": said, **self.fields, "who": named}

    def __str__(self) -> str:
        lines = [f"  {name + ':':<10}{self.fields[name]}" for name in FIELDS if name in self.fields]
        return "\n".join([self.message, *lines])

    def __reduce__(self) -> tuple[Any, ...]:
        notes = getattr(self, "__notes__", None)  # what else failed
        return _rebuild, (type(self), self.message, self.fields), notes and {"__notes__": notes}


def _rebuild(cls: type[ComposerError], message: str, fields: dict[str, Any]) -> ComposerError:
    return cls(message, **fields)


class UserError(ComposerError):
    """Something a person wrote cannot be used; exit code 2, nothing already written is lost."""

    exit_code = 2


class ConfigError(UserError, ValueError):
    """A run file, a `--set` or a component's settings cannot be used."""


class PluginError(UserError):
    """A plugin that was asked for is missing, broken, incompatible or contradicts another."""


class IncompatiblePlugin(PluginError):
    """A plugin was written for another version of the contract."""


class CheckError(UserError):
    """`check` found problems; the message lists all of them."""


class CapabilityError(UserError):
    """A component was asked for something that it cannot do here."""


class PluginFault(ComposerError):
    """A plugin's component raised an exception of its own; `kind` and `plugin` say which."""

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        """A hook that fails is a plugin that cannot be used, found before anything ran."""
        return 2 if self.kind == "hook" else 1

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


class WorkLost(ComposerError):
    """The process that did the work is gone: the episode is void for that cause, and asked for again as it was."""


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


def boundary(kind: str, plugin: str) -> AbstractContextManager[None]:
    """Attribute what goes wrong inside to `plugin` (a "plugin/name" id or a plugin's name) once, at the edge.

    `kind` is a kind of the registry ("tools"), or "hook" or "episode". The innermost edge names the culprit.

    Raises:
        PluginFault: from any exception that is not of this module's tree; one that is passes through and is given the
            fields `plugin` and `who` unless it says whose it is. Cancellation and exits pass through.
    """
    return _Boundary(kind, plugin)


class _Boundary(AbstractContextManager[None]):
    """A class, since it is crossed many times a turn and a generator would cost several times as much."""

    __slots__ = ("kind", "plugin")

    def __init__(self, kind: str, plugin: str) -> None:
        self.kind = kind
        self.plugin = plugin

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, ComposerError):
            if "plugin" not in error.fields:
                said = [str(error.fields["who"])] if "who" in error.fields else []
                error.fields |= {"plugin": self.plugin, "who": ", ".join([*said, who(self.plugin)])}
        elif isinstance(error, Exception):
            text = f"{who(self.plugin)} ({self.kind}) raised {type(error).__name__}: {error}{_line(trace)}"
            raise PluginFault(text, kind=self.kind, plugin=self.plugin) from error


def _line(trace: TracebackType | None) -> str:
    """The last line that is neither core's nor of the standard library: where the author has to look."""
    core, library = (os.path.dirname(path) + os.sep for path in (__file__, os.__file__))
    text = ""
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        theirs = "-packages" in path or not path.startswith(library)
        if theirs and not path.startswith(core) and os.path.isfile(path):
            text = f" ({os.sep.join(path.split(os.sep)[-2:])}:{trace.tb_lineno})"
        trace = trace.tb_next
    return text


def pip_fix(error: BaseException, asked: str) -> str | None:
    """The fix where importing the module `asked` failed for want of another one; None for other causes."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if not missing or missing.partition(".")[0] == asked.partition(".")[0]:
        return None
    return f"pip install the distribution that brings {missing!r}; who imports it names it in its dependencies"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence that suggests the nearest known name, or lists what there is."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(names)}" if names else "none are known"
