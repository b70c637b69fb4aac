"""A sandbox that is a machine: requests to its agent, results checked, and whose fault it is when it falls silent.

A guest that its own workload has broken (a panic, an agent that no longer answers or answers nonsense) is no fault of
the host: the sandbox stays and answers as such a machine would. Commands are `lost`, files are out of reach, nothing
counts as changed; so the episode fails and is not void. A monitor that ends in any other way is the host's loss.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from composer_core.errors import (
    BackendError,
    PathError,
    QuotaError,
    SandboxError,
    SandboxGone,
    SandboxUnreachable,
)
from composer_core.protocols import Created, ExecRequest, ExecResult, Failed, SnapshotRef
from composer_core.trees import Patch
from composer_envkit import Network, Patience
from composer_plugin_microvm.answers import NONSENSE, Entries, entries, patch, result
from composer_plugin_microvm.channel import Broken, Reply
from composer_plugin_microvm.drivers import Capture
from composer_plugin_microvm.guest.wire import MAX_BODY
from composer_plugin_microvm.machine import Machine

T = TypeVar("T")
Children = list[Created | Failed]
ERRORS: dict[str, type[SandboxError]] = {"path": PathError, "quota": QuotaError}
ANSWER_S = 60.0
"""Longest that a machine may take for a request; a command has this beside its own time."""
TABLE_BYTES = 32 << 20
"""Of a listing, or of the names of what changed."""
END_S = 5.0
"""How long a monitor may take to end once the guest has."""


class Spoilt(PathError):
    """The guest is broken by what ran in it, so none of its files is in reach; the message says how."""


class Maker(Protocol):
    """What a sandbox needs of its provider."""

    commands: asyncio.Semaphore

    async def fork(self, sandbox: MachineSandbox, n: int) -> Children: ...
    async def keep(self, sandbox: MachineSandbox, running: bool) -> SnapshotRef: ...
    def forget(self, sandbox: MachineSandbox) -> None: ...


class MachineSandbox:
    """A `SandboxBackend` with all optional methods but of leases."""

    def __init__(self, name: str, machine: Machine, maker: Maker) -> None:
        self.id = name
        self.machine = machine
        self.spoilt = ""
        """Why the guest is beyond use, if it is so by its own doing."""
        self._maker = maker
        self._destroyed = False
        self._patience = Patience()
        self._pausing = asyncio.Lock()
        self._network = Network(self._relay)

    # --- talking --------------------------------------------------------------------------------------------------

    async def _ask(
        self, op: str, data: bytes = b"", limit: int = TABLE_BYTES, **fields: Any
    ) -> tuple[dict[str, Any], Reply]:
        await self._patience.going()
        number, reply = self._start(op, data, limit, **fields)
        return await self._wait(number, reply, ANSWER_S), reply

    def _start(self, op: str, data: bytes, limit: int, **fields: Any) -> tuple[int, Reply]:
        if self._destroyed:
            raise SandboxGone(f"sandbox {self.id} was destroyed")
        if self.spoilt:
            raise Spoilt(self.spoilt)
        return self.machine.channel.start(op, data, limit, **fields)

    async def _wait(self, number: int, reply: Reply, patience_s: float) -> dict[str, Any]:
        """The header that ends a reply, or the error it stands for."""
        channel = self.machine.channel
        try:
            async with self._patience.within(patience_s):
                header = await channel.wait(number, reply)
        except TimeoutError:
            await self._spoil(f"its agent did not answer within {patience_s:g} s")
            raise Spoilt(self.spoilt) from None
        except Broken as error:
            raise await self._ended(str(error)) from error
        if "error" in header:
            kind = ERRORS.get(str(header["error"]), BackendError)
            raise kind(str(header.get("message"))[:1000])
        return header

    async def _ended(self, why: str) -> Exception:
        """What the end of the conversation was: our own, the guest's doing, or the host's loss."""
        if self._destroyed:
            return SandboxGone(f"sandbox {self.id} was destroyed")
        if self.machine.channel.nonsense:
            await self._spoil(why)
        else:
            await asyncio.wait([self.machine.ended], timeout=END_S)
            if self.machine.guest_ended_itself():
                await self._spoil("what ran in it has ended its system")
        if self.spoilt:
            return Spoilt(self.spoilt)
        return SandboxUnreachable(f"the machine of sandbox {self.id} has ended", found=await self.machine.last_words())

    async def _spoil(self, why: str) -> None:
        self.spoilt = self.spoilt or f"the machine is beyond use: {why}"
        await self.machine.close()

    async def _checked(self, take: Callable[[], T]) -> T:
        """What a guest said of itself, if it can be so."""
        try:
            return take()
        except NONSENSE as error:
            await self._spoil(f"its agent answers nonsense ({type(error).__name__})")
            raise Spoilt(self.spoilt) from error

    # --- commands and files ---------------------------------------------------------------------------------------

    async def exec(self, request: ExecRequest) -> ExecResult:
        async with self._maker.commands:
            return await self._exec(request)

    async def session_exec(self, name: str, request: ExecRequest) -> ExecResult:
        words, cap = self._words(request), request.output_bytes
        fields = {"name": name, "timeout_s": request.timeout_s, "output_bytes": cap}
        async with self._maker.commands:
            await self._patience.going()
            started = self._patience.time()
            try:
                number, reply = self._start("session", words, max(2 * cap, MAX_BODY), **fields)
                header = await self._ended_by(number, reply, request.timeout_s)
                return await self._checked(lambda: result(header, reply, cap, self._patience.time() - started))
            except Spoilt:
                return ExecResult("lost", None, wall_s=self._patience.time() - started)

    async def _exec(self, request: ExecRequest) -> ExecResult:
        await self._patience.going()
        started = self._patience.time()
        words = self._words(request)
        cap = request.output_bytes
        fields = {"words": len(words), "cwd": request.cwd, "timeout_s": request.timeout_s, "output_bytes": cap}
        reply = None
        try:
            number, reply = self._start("exec", words + request.stdin, max(cap, MAX_BODY), **fields)
            header = await self._ended_by(number, reply, request.timeout_s)
            found = reply
            return await self._checked(lambda: result(header, found, cap, self._patience.time() - started))
        except Spoilt:
            out, err = (reply.body(name)[:cap] if reply else b"" for name in ("out", "err"))
            return ExecResult("lost", None, out, err, len(out), len(err), self._patience.time() - started)

    async def _ended_by(self, number: int, reply: Reply, timeout_s: float) -> dict[str, Any]:
        """How a command ended; cancelled, it ends the command."""
        try:
            return await self._wait(number, reply, timeout_s + ANSWER_S)
        except asyncio.CancelledError:
            if not self._destroyed and not self.spoilt:
                number, _ = self.machine.channel.start("kill", number=number)
                self.machine.channel.forget(number)
            raise

    def _words(self, request: ExecRequest) -> bytes:
        return json.dumps([request.argv, {**self._network.variables, **request.env}]).encode()

    async def read(self, path: str, limit_bytes: int) -> bytes:
        _, reply = await self._ask("read", path=path, limit=limit_bytes, most=limit_bytes)
        return reply.body()

    async def write(self, path: str, data: bytes) -> None:
        await self._ask("write", data, path=path)

    async def list(self, path: str) -> Entries:
        _, reply = await self._ask("list", path=path)
        return await self._checked(lambda: entries(reply.body()))

    async def changes(self, limit_bytes: int) -> Patch:
        try:
            header, reply = await self._ask("changes", limit=self.machine.ram_bytes, most=limit_bytes)
            return await self._checked(lambda: patch(header, reply.body()))
        except Spoilt:
            return Patch()

    # --- captured, ended ------------------------------------------------------------------------------------------

    async def fork(self, n: int) -> Children:
        try:
            return await self._captured(self._maker.fork(self, n))
        except Spoilt as error:
            return [Failed(error.message, retryable=False)] * n

    async def snapshot(self) -> SnapshotRef:
        return await self._captured(self._maker.keep(self, running=False))

    async def full_snapshot(self) -> SnapshotRef:
        return await self._captured(self._maker.keep(self, running=True))

    async def capture(self) -> Capture:
        """Its state at a moment in which it is not paused: a machine that stands still cannot fall silent."""
        while True:
            await self._patience.going()
            async with self._pausing:
                if not self._patience.paused:
                    return await self.machine.capture()

    async def _captured(self, call: Coroutine[Any, Any, T]) -> T:
        """What came of stopping this machine, or the error that its end stands for."""
        if self._destroyed or self.spoilt:
            call.close()
            raise Spoilt(self.spoilt) if self.spoilt else SandboxGone(f"sandbox {self.id} was destroyed")
        try:
            return await call
        except Broken as error:
            raise await self._ended(str(error)) from error
        except TimeoutError as error:
            await self._spoil("its agent did not answer")
            raise Spoilt(self.spoilt) from error

    # --- the way out ----------------------------------------------------------------------------------------------

    async def set_network(self, allow: Sequence[str]) -> None:
        """The machine stays without any; its agent passes on what comes to a port of its loopback."""
        await self._patience.going()
        if self._destroyed or self.spoilt:
            raise Spoilt(self.spoilt) if self.spoilt else SandboxGone(f"sandbox {self.id} was destroyed")
        try:
            await self._network.allow(allow)
        except ConnectionResetError as error:
            raise await self._ended(str(error)) from error

    async def _relay(self, op: str, data: bytes = b"", **fields: Any) -> tuple[dict[str, Any], bytes]:
        try:
            header, reply = await self.machine.channel.ask(op, data, **fields)
        except Broken as error:
            raise ConnectionResetError(str(error)) from error
        if "error" in header:
            raise BackendError(str(header.get("message"))[:1000])
        return header, reply.body()

    # --- paused ---------------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        async with self._pausing:
            if not self._patience.paused:
                await self._captured(self._pause())

    async def _pause(self) -> None:
        async with self._patience.within(ANSWER_S):
            await self.machine.pause()
        self._patience.pause()

    async def resume(self) -> None:
        async with self._pausing:
            if self._patience.paused:
                await self._captured(self._resume())

    async def _resume(self) -> None:
        async with self._patience.within(ANSWER_S):
            await self.machine.resume()
        self._patience.resume()

    async def destroy(self) -> None:
        """Safe twice."""
        self._destroyed = True
        self._patience.resume()
        self._maker.forget(self)
        await self.machine.close()
        await self._network.close()
