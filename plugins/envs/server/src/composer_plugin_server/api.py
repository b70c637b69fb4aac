"""The routes: method, path, what comes in and goes out, and the act behind each.

A route that changes something is *keyed*: it takes an Idempotency-Key and is worked on once. One table serves the
server and the OpenAPI document.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from attrs import frozen

from composer_core.errors import ConfigError, PrepareError
from composer_core.protocols import ExecRequest, ExecResult, TemplateSpec
from composer_core.trees import Patch
from composer_plugin_server import wire
from composer_plugin_server.leases import Lease, Owned
from composer_plugin_server.node import Node
from composer_plugin_server.operations import Undo
from composer_plugin_server.wire import Child, ChildrenReply, Done

SMALL, COMMAND = 1 << 16, 32 << 20
"""Largest bodies in bytes: of a request without files, of a command with its input."""


@frozen
class Call:
    """One request, after everything about it was checked."""

    node: Node
    lease: Any
    """The `Lease`; None where the route needs none."""
    body: Any
    """An instance of the route's body class, or bytes."""
    path: Mapping[str, str]
    query: Mapping[str, str]

    @property
    def id(self) -> str:
        return self.path["id"]

    def number(self, name: str) -> int:
        text = self.query.get(name, "")
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise ConfigError(f"the query needs {name}=NUMBER", found=repr(text[:40]))
        return int(text)

    def text(self, name: str) -> str:
        if name not in self.query:
            raise ConfigError(f"the query needs {name}=TEXT")
        return self.query[name]


@frozen
class Made:
    """A reply, and how to undo what it tells of."""

    reply: Any
    undo: Undo


Act = Callable[[Call], Awaitable[Any]]


@frozen
class Route:
    method: str
    path: str
    does: str
    act: Act
    reply: type
    body: type | None = None
    keyed: bool = False
    leased: bool = True
    limit_bytes: int = SMALL
    """Of the body; 0 for the server's own limit."""
    query: tuple[str, ...] = ()


# --- acts ---------------------------------------------------------------------------------------------------------


async def _describe(call: Call) -> wire.NodeReply:
    node = call.node
    return wire.NodeReply(node.name, node.plugin, wire.API, tuple(sorted(node.capabilities)), node.gate.load, node.says)


async def _open(call: Call) -> wire.LeaseReply:
    body: wire.LeaseRequest = call.body
    secret, lease = call.node.leases.open(body.client, body.lease_s, body.group)
    return wire.LeaseReply(secret, lease.lease_s)


async def _beat(call: Call) -> wire.NodeReply:
    return await _describe(call)


async def _end(call: Call) -> Done:
    await call.node.end(call.lease)
    return Done()


async def _offer(call: Call) -> Done:
    tree = call.body.tree()
    if tree.ref.sha256 != call.path["sha256"]:
        raise PrepareError("these files are not that workspace", expected=call.path["sha256"], found=tree.ref.sha256)
    call.node.templates.offer(tree)
    return Done()


async def _prepare(call: Call) -> wire.TemplateReply:
    return wire.TemplateReply(await call.node.prepare(call.lease, call.body))


async def _create(call: Call) -> Made:
    body: wire.CreateRequest = call.body
    return _made(call, await call.node.create(call.lease, body.source, body.count, body.wait_s))


async def _fork(call: Call) -> Made:
    return _made(call, await call.node.fork(call.lease, call.id, call.body.count, call.body.wait_s))


def _made(call: Call, children: list[Child]) -> Made:
    lease, node = call.lease, call.node

    async def undo() -> None:
        await node.destroy_all(lease, [lease.sandboxes[one.id] for one in children if one.id in lease.sandboxes])

    return Made(ChildrenReply(tuple(children), node.gate.load), undo)


async def _list(call: Call) -> wire.SandboxesReply:
    lease: Lease = call.lease
    return wire.SandboxesReply(tuple(_shown(owned) for owned in lease.sandboxes.values()))


async def _show(call: Call) -> wire.SandboxReply:
    return _shown(call.node.find(call.lease, call.id))


def _shown(owned: Owned) -> wire.SandboxReply:
    return wire.SandboxReply(owned.id, owned.offers, owned.state, time.monotonic() - owned.made_s)


async def _destroy(call: Call) -> Done:
    await call.node.destroy(call.lease, call.id)
    return Done()


async def _exec(call: Call) -> ExecResult:
    return await call.node.call(call.lease, call.id, "exec", lambda backend: backend.exec(call.body))


async def _session(call: Call) -> ExecResult:
    name, body = call.path["name"], call.body
    return await call.node.call(call.lease, call.id, "exec", lambda one: one.session_exec(name, body), "sessions")


async def _read(call: Call) -> bytes:
    path, limit = call.text("path"), call.number("limit_bytes")
    return await call.node.call(call.lease, call.id, "read", lambda backend: backend.read(path, limit))


async def _write(call: Call) -> Done:
    path = call.text("path")
    await call.node.call(call.lease, call.id, "write", lambda backend: backend.write(path, call.body))
    return Done()


async def _folder(call: Call) -> wire.FolderReply:
    path = call.text("path")
    return wire.FolderReply(tuple(await call.node.call(call.lease, call.id, "list", lambda one: one.list(path))))


async def _changes(call: Call) -> Patch:
    limit = call.number("limit_bytes")
    return await call.node.call(call.lease, call.id, "changes", lambda one: one.changes(limit), "changes")


async def _snapshot(call: Call) -> Made:
    lease, node = call.lease, call.node
    name = await node.snapshot(lease, call.id, call.body.full)
    return Made(wire.SnapshotReply(name), lambda: node.release(lease, name))


async def _release(call: Call) -> Done:
    await call.node.release(call.lease, call.id)
    return Done()


async def _pause(call: Call) -> Made:
    lease, node, id = call.lease, call.node, call.id
    await node.pause(lease, id)
    return Made(Done(), lambda: node.resume(lease, id))


async def _resume(call: Call) -> Done:
    await call.node.resume(call.lease, call.id)
    return Done()


async def _network(call: Call) -> Done:
    allow = call.body.allow
    await call.node.call(call.lease, call.id, "network", lambda one: one.set_network(allow), "networks")
    return Done()


async def _renew(call: Call) -> Done:
    call.node.renew(call.lease, call.id, call.body.lease_s)
    return Done()


# --- the table ----------------------------------------------------------------------------------------------------

ONE = "/sandboxes/{id:[a-z0-9-]{1,64}}"
ROUTES = (
    Route("GET", "/node", "What this server is and how full.", _describe, wire.NodeReply, leased=False),
    Route("POST", "/leases", "Open a lease.", _open, wire.LeaseReply, wire.LeaseRequest, leased=False),
    Route("PUT", "/lease", "Keep the lease: a heartbeat.", _beat, wire.NodeReply),
    Route("DELETE", "/lease", "End the lease and destroy all that it holds.", _end, Done),
    Route("PUT", "/workspaces/{sha256:[0-9a-f]{64}}", "Send the files of a workspace.", _offer, Done,
          wire.WorkspaceRequest, limit_bytes=0),
    Route("POST", "/templates", "Prepare a template.", _prepare, wire.TemplateReply, TemplateSpec, keyed=True),
    Route("POST", "/sandboxes", "Make sandboxes of a template or snapshot.", _create, ChildrenReply,
          wire.CreateRequest, keyed=True),
    Route("GET", "/sandboxes", "The lease's sandboxes.", _list, wire.SandboxesReply),
    Route("GET", ONE, "One sandbox.", _show, wire.SandboxReply),
    Route("DELETE", ONE, "Destroy it; safe twice.", _destroy, Done),
    Route("POST", f"{ONE}/exec", "Run a command to its end.", _exec, ExecResult, ExecRequest, keyed=True,
          limit_bytes=COMMAND),
    Route("POST", ONE + "/sessions/{name:[^/]{1,255}}/exec", "Run a command in a named shell.", _session, ExecResult,
          ExecRequest, keyed=True, limit_bytes=COMMAND),
    Route("GET", f"{ONE}/file", "The bytes of a file.", _read, bytes, query=("path", "limit_bytes")),
    Route("PUT", f"{ONE}/file", "Replace a file.", _write, Done, bytes, limit_bytes=0, query=("path",)),
    Route("GET", f"{ONE}/folder", "The entries of a folder.", _folder, wire.FolderReply, query=("path",)),
    Route("GET", f"{ONE}/changes", "The patch since the template.", _changes, Patch, query=("limit_bytes",)),
    Route("POST", f"{ONE}/fork", "Fork it.", _fork, ChildrenReply, wire.ForkRequest, keyed=True),
    Route("POST", f"{ONE}/snapshot", "Capture it.", _snapshot, wire.SnapshotReply, wire.SnapshotRequest, keyed=True),
    Route("DELETE", "/snapshots/{id:[a-z0-9-]{1,64}}", "Free what was captured; safe twice.", _release, Done),
    Route("POST", f"{ONE}/pause", "Pause it.", _pause, Done, keyed=True),
    Route("POST", f"{ONE}/resume", "Let it run on.", _resume, Done, keyed=True),
    Route("PUT", f"{ONE}/network", "Replace its network policy.", _network, Done, wire.NetworkRequest),
    Route("PUT", f"{ONE}/lease", "Give it a lease of its own, or renew that.", _renew, Done, wire.RenewRequest),
)  # fmt: skip
"""Below /v1; all need the token, and those that are not said otherwise the lease."""
