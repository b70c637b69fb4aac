"""`server/remote`: a provider that asks the servers of one or more nodes.

A template has one id on all nodes and is prepared where sandboxes of it are made; spec and files are remembered here,
so a node that has never seen it, or was restarted, is given it then. A snapshot lives on its node. With several nodes
the less loaded of two is asked first and the next when it has no room at once; only the last of them is waited for.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from composer_core.errors import ConfigError, NoCapacity, SandboxError, SandboxGone, SandboxUnreachable, TemplateMissing
from composer_core.protocols import (
    BuildContext,
    Created,
    Failed,
    SnapshotRef,
    TemplateRef,
    TemplateSpec,
)
from composer_core.trees import Tree
from composer_plugin_server import wire
from composer_plugin_server.config import RemoteConfig
from composer_plugin_server.connection import Connection
from composer_plugin_server.optional import RemoteSandbox, children, sandbox_of
from composer_plugin_server.tokens import read_token
from composer_plugin_server.wire import LeaseGone, WorkspaceMissing

T = TypeVar("T")


def build(config: RemoteConfig, build: BuildContext) -> RemoteProvider:
    """Raises ConfigError when there is no token."""
    return RemoteProvider(config, read_token(config.token_file))


class RemoteProvider:
    """A `SandboxProvider`; it connects with the first request."""

    def __init__(self, config: RemoteConfig, token: str) -> None:
        self._config = config
        self._nodes = [Connection(url, token, config) for url in config.urls]
        self._specs: dict[str, tuple[TemplateSpec, Tree]] = {}

    @property
    def leases(self) -> dict[str, str]:
        """URL -> the lease held there, for another process to join as `sandbox.lease`."""
        return {node.url: node.lease for node in self._nodes if node.lease}

    async def probe(self) -> frozenset[str]:
        """What every node offers.

        Raises:
            ConfigError: a node does not answer, or does not offer what this run insists on.
        """
        try:
            await asyncio.gather(*(node.known() for node in self._nodes))
        except SandboxUnreachable as error:
            raise ConfigError(error.message, **error.fields) from None
        for node in self._nodes:
            missing = [name for name in self._config.needs if f"sandbox.{name}" not in node.capabilities]
            if missing:
                raise ConfigError(
                    f"the sandboxes of {node.provider} there do not offer {', '.join(missing)}",
                    where=node.url,
                    expected=f"sandbox.needs = {list(self._config.needs)}",
                    fix="serve a provider that does, or leave them out of sandbox.needs if you trust what will run",
                )
        return frozenset.intersection(*(node.capabilities for node in self._nodes))

    def describe(self) -> str:
        """Of each node: whose sandboxes, where, and what their provider says of its machine."""
        told = (": ".join(filter(None, (f"{node.provider} at {node.url}", node.says))) for node in self._nodes)
        return "; ".join(told)

    # --- templates ------------------------------------------------------------------------------------------------

    async def prepare(self, spec: TemplateSpec, workspace: Tree) -> TemplateRef:
        """Prepared on one node now, so that what is wrong with it is told now; on others when they are chosen."""
        errors: list[SandboxError] = []
        for node in self._by_load():
            try:
                id = await self._again(node, lambda node=node: self._prepare(node, spec, workspace))  # type: ignore[misc]
            except SandboxUnreachable as error:
                errors.append(error)
                continue
            self._specs[id] = (spec, workspace)
            return TemplateRef(id)
        raise errors[0]

    async def _prepare(self, node: Connection, spec: TemplateSpec, workspace: Tree) -> str:
        try:
            return await self._template(node, spec)
        except WorkspaceMissing:
            path = f"/workspaces/{spec.workspace.sha256}"
            await node.ask("PUT", path, wire.Done, wire.WorkspaceRequest(workspace.files))
            return await self._template(node, spec)

    async def _template(self, node: Connection, spec: TemplateSpec) -> str:
        return (await node.ask("POST", "/templates", wire.TemplateReply, spec, keyed=True)).id

    # --- sandboxes ------------------------------------------------------------------------------------------------

    async def create(self, source: TemplateRef | SnapshotRef, n: int = 1) -> list[Created | Failed]:
        if isinstance(source, SnapshotRef):
            return await self._create(await self._node_of(source.id), source.id, n, self._config.wait_s)
        *first, last = self._by_load()
        for node in first:
            try:
                return await self._create(node, source.id, n, 0.0)
            except (NoCapacity, SandboxUnreachable):
                node.load += 1.0  # until it says otherwise
        return await self._create(last, source.id, n, self._config.wait_s)

    async def _create(self, node: Connection, source: str, n: int, wait_s: float) -> list[Created | Failed]:
        body = wire.CreateRequest(source, n, wait_s)

        async def create() -> wire.ChildrenReply:
            return await node.ask("POST", "/sandboxes", wire.ChildrenReply, body, keyed=True, starts=True)

        try:
            reply = await self._again(node, create)
        except TemplateMissing:
            if source not in self._specs:
                raise
            await self._prepare(node, *self._specs[source])
            reply = await create()
        return children(node, reply)

    async def release(self, ref: SnapshotRef) -> None:
        """Safe twice; what a lease held that has ended is gone already."""
        with suppress(SandboxGone):
            node = await self._node_of(ref.id)
            await node.ask("DELETE", f"/snapshots/{_name(ref.id)}", wire.Done)

    async def attach(self, sandbox_id: str) -> RemoteSandbox:
        node = await self._node_of(sandbox_id)
        try:
            found = await node.ask("GET", f"/sandboxes/{_name(sandbox_id)}", wire.SandboxReply)
        except LeaseGone as error:
            raise SandboxGone(f"there is no sandbox {sandbox_id}") from error
        return sandbox_of(node, found.id, found.offers)

    async def close(self) -> None:
        """Every node is told, whichever does not answer; the first error is raised at the end."""
        found = await asyncio.gather(*(node.close() for node in self._nodes), return_exceptions=True)
        self._specs.clear()
        for error in filter(None, found):
            raise error

    # --- nodes ----------------------------------------------------------------------------------------------------

    def _by_load(self) -> list[Connection]:
        """The less loaded of two that are drawn, then the others."""
        nodes = random.sample(self._nodes, len(self._nodes))
        return sorted(nodes[:2], key=lambda node: node.load) + nodes[2:]

    async def _node_of(self, id: str) -> Connection:
        """The node whose name stands in front."""
        await asyncio.gather(*(node.known() for node in self._nodes), return_exceptions=len(self._nodes) > 1)
        for node in self._nodes:
            if node.node and id.startswith(f"{node.node}-"):
                return node
        raise SandboxGone(f"no node of this provider has made {id!r}")

    async def _again(self, node: Connection, act: Callable[[], Awaitable[T]]) -> T:
        """What needs no earlier state goes on with a fresh lease where the old one is gone."""
        try:
            return await act()
        except LeaseGone:
            node.forget()
            return await act()


def _name(id: str) -> str:
    """An id as it may stand in a path."""
    if not all(char.isascii() and (char.isalnum() or char == "-") for char in id):
        raise SandboxGone(f"there is no sandbox {id!r}")
    return id
