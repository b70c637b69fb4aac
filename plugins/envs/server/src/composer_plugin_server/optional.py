"""A sandbox on a server, with exactly the optional methods that its backend has there.

`Unsupported`, and a patch that is found by walking, are decided in core by which methods a backend has. So each offer
of a server adds the class with its methods, and nothing else differs from a backend on this machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any
from urllib.parse import quote

from composer_core.errors import NoCapacity
from composer_core.protocols import Created, Entry, ExecRequest, ExecResult, Failed, SnapshotRef
from composer_core.trees import Patch
from composer_plugin_server import wire
from composer_plugin_server.connection import Connection

Entries = list[Entry]


class RemoteSandbox:
    """A `SandboxBackend`, with Leases; holds nothing but its id."""

    def __init__(self, connection: Connection, id: str) -> None:
        self.id = id
        self._connection = connection
        self._path = f"/sandboxes/{quote(id, safe='')}"

    async def exec(self, request: ExecRequest) -> ExecResult:
        return await self._connection.ask("POST", f"{self._path}/exec", ExecResult, request, keyed=True)

    async def read(self, path: str, limit_bytes: int) -> bytes:
        query = {"path": path, "limit_bytes": str(limit_bytes)}
        return await self._connection.ask("GET", f"{self._path}/file", bytes, query=query)

    async def write(self, path: str, data: bytes) -> None:
        await self._connection.ask("PUT", f"{self._path}/file", wire.Done, bytes(data), query={"path": path})

    async def list(self, path: str) -> Entries:
        reply = await self._connection.ask("GET", f"{self._path}/folder", wire.FolderReply, query={"path": path})
        return list(reply.entries)

    async def destroy(self) -> None:
        await self._connection.ask("DELETE", self._path, wire.Done)

    async def renew(self, lease_s: float) -> None:
        await self._connection.ask("PUT", f"{self._path}/lease", wire.Done, wire.RenewRequest(lease_s))

    async def _snapshot(self, full: bool) -> SnapshotRef:
        body = wire.SnapshotRequest(full)
        reply = await self._connection.ask("POST", f"{self._path}/snapshot", wire.SnapshotReply, body, keyed=True)
        return SnapshotRef(reply.id)


class _Forks(RemoteSandbox):
    async def snapshot(self) -> SnapshotRef:
        return await self._snapshot(False)

    async def fork(self, n: int) -> Sequence[Created | Failed]:
        """That there is no room is each child's reason, as Forks wants it."""
        body = wire.ForkRequest(n, self._connection.config.wait_s)
        path = f"{self._path}/fork"
        try:
            reply = await self._connection.ask("POST", path, wire.ChildrenReply, body, keyed=True, starts=True)
        except NoCapacity as error:
            return [Failed(str(error))] * n
        return children(self._connection, reply)


class _Changes(RemoteSandbox):
    async def changes(self, limit_bytes: int) -> Patch:
        query = {"limit_bytes": str(limit_bytes)}
        return await self._connection.ask("GET", f"{self._path}/changes", Patch, query=query)


class _FullSnapshots(RemoteSandbox):
    async def full_snapshot(self) -> SnapshotRef:
        return await self._snapshot(True)


class _Sessions(RemoteSandbox):
    async def session_exec(self, name: str, request: ExecRequest) -> ExecResult:
        path = f"{self._path}/sessions/{quote(name, safe='')}/exec"
        return await self._connection.ask("POST", path, ExecResult, request, keyed=True)


class _Pauses(RemoteSandbox):
    async def pause(self) -> None:
        await self._connection.ask("POST", f"{self._path}/pause", wire.Done, keyed=True)

    async def resume(self) -> None:
        await self._connection.ask("POST", f"{self._path}/resume", wire.Done, keyed=True)


class _Networks(RemoteSandbox):
    async def set_network(self, allow: Sequence[str]) -> None:
        await self._connection.ask("PUT", f"{self._path}/network", wire.Done, wire.NetworkRequest(tuple(allow)))


KINDS: dict[str, type[RemoteSandbox]] = {
    "forks": _Forks,
    "changes": _Changes,
    "full_snapshots": _FullSnapshots,
    "sessions": _Sessions,
    "pauses": _Pauses,
    "networks": _Networks,
}
"""An offer -> the methods it means."""


@cache
def kind_of(offers: frozenset[str]) -> type[Any]:
    """The class of a sandbox with these offers; those that this version does not know are not missed."""
    bases = tuple(kind for offer, kind in KINDS.items() if offer in offers)
    return type("RemoteSandbox", bases or (RemoteSandbox,), {})


def sandbox_of(connection: Connection, id: str, offers: Sequence[str]) -> RemoteSandbox:
    made: RemoteSandbox = kind_of(frozenset(offers))(connection, id)
    return made


def children(connection: Connection, reply: wire.ChildrenReply) -> list[Created | Failed]:
    connection.load = reply.load
    return [
        Failed(child.error, child.retryable) if child.error else Created(sandbox_of(connection, child.id, child.offers))
        for child in reply.children
    ]
