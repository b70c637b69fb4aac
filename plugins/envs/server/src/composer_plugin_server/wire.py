"""The bodies of requests and replies, and errors as bodies. JSON; bytes are base64; unknown keys are errors.

What core's Protocols already have a class for (`ExecRequest`, `ExecResult`, `Patch`, `TemplateSpec`) travels as that
class. The OpenAPI document is made of these classes, so it cannot say anything else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import Factory, field, frozen

from composer_core import errors
from composer_core.errors import ComposerError
from composer_core.protocols import Changes as HasChanges
from composer_core.protocols import Entry, FullSnapshots, Networks, Pauses, Sessions
from composer_core.protocols import Forks as HasForks
from composer_core.trees import File, Tree
from composer_plugin_server.strict import plain

API = "v1"
LEASE_HEADER, KEY_HEADER = "Composer-Lease", "Idempotency-Key"
OFFERS: Mapping[str, Any] = {
    "forks": HasForks,
    "changes": HasChanges,
    "full_snapshots": FullSnapshots,
    "sessions": Sessions,
    "pauses": Pauses,
    "networks": Networks,
}
"""Word of a reply -> the optional Protocol that a sandbox's backend has."""


@frozen
class LeaseRequest:
    """Who asks, and for how long without a sign of life."""

    lease_s: float = 60.0
    """Seconds after the last heartbeat at which everything of the lease is destroyed."""
    group: int = 0
    """Sandboxes of each recent template to keep ready for this client."""
    client: str = ""
    """Name for people, on the page."""


@frozen
class LeaseReply:
    lease: str = field(repr=False)
    """The secret for the header Composer-Lease."""
    lease_s: float
    """As granted."""


@frozen
class NodeReply:
    """What this server is."""

    node: str
    """In front of all ids."""
    provider: str
    """Component id of the provider behind it."""
    version: str
    capabilities: tuple[str, ...]
    """What was found to work when the server started."""
    load: float
    """0 for an empty node, 1 for a full one, more with a queue."""
    says: str = ""
    """What the provider said of the machine when the server started."""


@frozen
class WorkspaceRequest:
    files: tuple[File, ...]

    def tree(self) -> Tree:
        return Tree(self.files)


@frozen
class TemplateReply:
    id: str


@frozen
class CreateRequest:
    source: str
    """Id of a template or snapshot."""
    count: int = 1
    wait_s: float = 0.0
    """How long to stand in the queue for room."""


@frozen
class ForkRequest:
    count: int = 1
    wait_s: float = 0.0
    """How long to stand in the queue for room."""


@frozen
class Child:
    """A new sandbox, or why there is none."""

    id: str = ""
    offers: tuple[str, ...] = ()
    """forks, changes, full_snapshots, sessions, pauses, networks: what its backend can do."""
    error: str = ""
    retryable: bool = True


@frozen
class ChildrenReply:
    children: tuple[Child, ...]
    load: float = 0.0
    """The node's, see NodeReply."""


@frozen
class SandboxReply:
    id: str
    offers: tuple[str, ...]
    state: str
    age_s: float


@frozen
class SandboxesReply:
    sandboxes: tuple[SandboxReply, ...]


@frozen
class FolderReply:
    entries: tuple[Entry, ...]


@frozen
class SnapshotRequest:
    full: bool = False
    """Memory and processes too."""


@frozen
class SnapshotReply:
    id: str


@frozen
class RenewRequest:
    lease_s: float
    """The sandbox is destroyed so long from now, unless this is said again."""


@frozen
class NetworkRequest:
    allow: tuple[str, ...]
    """Hosts that can be reached from now on, and no others."""


@frozen
class Done:
    """Nothing to tell."""


@frozen
class ErrorReply:
    """Any answer with a status of 400 or more."""

    error: str
    """Name of the class in composer_core.errors."""
    message: str
    fields: Mapping[str, Any] = Factory(dict)
    """retry_after_s of NoCapacity, and what else the error says of itself."""


class WorkspaceMissing(errors.TemplateMissing):
    """The files of a workspace were not sent yet (or are no longer held); PUT them and ask again."""


class LeaseGone(errors.SandboxGone):
    """The lease has ended, or the server was restarted since; open another."""


class Refused(errors.ConfigError):
    """A request that no retry mends: not authenticated, unknown, too large or malformed. `fields['status']`."""


KINDS: dict[str, tuple[type[ComposerError], int]] = {
    cls.__name__: (cls, status)
    for cls, status in (
        (errors.SandboxGone, 410),
        (LeaseGone, 410),
        (errors.SandboxUnreachable, 502),
        (errors.NoCapacity, 503),
        (errors.TemplateMissing, 404),
        (WorkspaceMissing, 404),
        (errors.PrepareError, 422),
        (errors.Unsupported, 501),
        (errors.PathError, 422),
        (errors.QuotaError, 413),
        (errors.BackendError, 500),
        (errors.ConfigError, 400),
        (Refused, 400),
        (errors.PluginFault, 500),
    )
}
"""Errors that travel: name -> class and status of the answer."""


def encoded(value: Any) -> bytes:
    """Lone surrogates, which names of files and words of commands may hold, are spelled as escapes."""
    return json.dumps(plain(value), separators=(",", ":")).encode()


def error_answer(error: ComposerError) -> tuple[int, bytes]:
    """Status and body; an error that has no class here travels as a BackendError."""
    cls = next((kind for kind in type(error).__mro__ if kind.__name__ in KINDS), errors.BackendError)
    fields = {name: value for name, value in error.fields.items() if isinstance(value, str | int | float)}
    status = int(fields.pop("status", KINDS[cls.__name__][1]))
    return status, encoded(ErrorReply(cls.__name__, error.message, fields))


def error_of(reply: ErrorReply) -> ComposerError:
    """The error that the server raised."""
    cls, _ = KINDS.get(reply.error, (errors.BackendError, 500))
    return cls(reply.message, **reply.fields)
