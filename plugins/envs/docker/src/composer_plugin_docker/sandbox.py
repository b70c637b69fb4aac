"""One container: how it is made, its calls, and what is left of it when it ends on its own.

A container whose first process ended is judged by what the engine says of it (`endings`). Ended by its own workload,
it stays a sandbox that answers: a command is `lost`, files are out of reach, the patch is empty, so the attempt is
graded and fails. Ended by somebody else (removed, killed from outside, the engine gone), it is an error, and the
attempt is void.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from composer_core.errors import PathError, SandboxError, SandboxGone, SandboxUnreachable
from composer_core.protocols import Created, Entry, ExecRequest, ExecResult, Failed, SnapshotRef
from composer_core.trees import File, Patch
from composer_envkit import Network, Patience
from composer_envkit.agent import frames
from composer_plugin_docker.channel import Channel, Ended
from composer_plugin_docker.endings import cause, lost
from composer_plugin_docker.walls import Capture, Captured, Template, options

if TYPE_CHECKING:
    from composer_plugin_docker.provider import DockerProvider

Children = list[Created | Failed]
Entries = list[Entry]
Words = list[str]
GRACE_S = 10.0
"""How much longer than it was told a command may take to be over; an agent that is later than that serves nobody."""
CALL_S = 60.0
"""Longest a file call may take."""


class DockerSandbox:
    """A `SandboxBackend` with all optional methods but of memory and leases."""

    def __init__(self, provider: DockerProvider, template: Template) -> None:
        self.id = secrets.token_hex(8)
        self._provider, self._template = provider, template
        self._engine = provider.engine
        self._container = ""
        self._channel: Channel | None = None
        self._gone = False
        self._broken = ""
        """How its workload ended it."""
        self._judging: asyncio.Task[None] | None = None
        self._patience = Patience()
        self._network = Network(self._relay)
        self._pausing = asyncio.Lock()

    async def start(self, captured: Captured | None) -> None:
        """Raises SandboxError, and what `captured` raises; leaves no container then."""
        try:
            await self._start(captured)
        except BaseException as error:
            await asyncio.shield(asyncio.ensure_future(self.end()))
            if isinstance(error, Ended):
                words = self._channel.last_words.decode(errors="replace") if self._channel else ""
                raise SandboxUnreachable(f"the agent of a new container ended: {words}") from error
            raise

    async def _start(self, captured: Captured | None) -> None:
        engine, template = self._engine, self._template
        host = engine.api.create_host_config(**options(engine, template, self._provider.cpus))
        self._container = f"composer-{self.id}"  # its name, until it has an id
        made = await engine.call(
            engine.api.create_container, template.image, entrypoint=list(template.start), command=[],
            name=self._container, hostname="sandbox", user="0:0", working_dir="/", stdin_open=True,
            use_config_proxy=False,
            labels=engine.labels("sandbox"), host_config=host,
        )  # fmt: skip
        self._container = made["Id"]
        self._channel = await Channel.open(await engine.attach(self._container))
        await engine.call(engine.api.start, self._container)
        capture = await asyncio.shield(captured) if captured else None  # other children wait for it too
        spec, fields = template.spec, dict(capture.header) if capture else {}
        settings = {"env": dict(template.env), "file_bytes": spec.file_bytes}
        data = capture.data if capture else b""
        await asyncio.wait_for(self._channel.ask("lay", data, settings=settings, **fields), CALL_S)

    # --- calls ------------------------------------------------------------------------------------------------

    async def exec(self, request: ExecRequest) -> ExecResult:
        return await self._run("exec", request, request.stdin, cwd=request.cwd)

    async def session_exec(self, name: str, request: ExecRequest) -> ExecResult:
        return await self._run("session", request, name=name, cwd="")

    async def _run(self, op: str, request: ExecRequest, stdin: bytes = b"", **more: str) -> ExecResult:
        fields = {"argv": request.argv, "env": {**self._network.variables, **request.env}, **more}
        limits = {"timeout_s": request.timeout_s, "output_bytes": request.output_bytes}
        try:
            header, body = await self._ask(op, stdin, patience_s=request.timeout_s + GRACE_S, **fields, **limits)
        except PathError:
            if self._broken:
                return lost(self._broken)
            raise
        return _result(header, body)

    async def read(self, path: str, limit_bytes: int) -> bytes:
        return (await self._ask("read", path=path, limit=limit_bytes))[1]

    async def write(self, path: str, data: bytes) -> None:
        await self._ask("write", data, path=path)

    async def list(self, path: str) -> Entries:
        header, _ = await self._ask("list", path=path)
        return [Entry(str(name), str(kind), int(size)) for name, kind, size in header["entries"]]

    async def changes(self, limit_bytes: int) -> Patch:
        try:
            header, body = await self._ask("changes", limit=limit_bytes)
        except PathError:
            if self._broken:
                return Patch()
            raise
        at, writes = 0, []
        for path, size, executable in header["writes"]:
            writes.append(File(path, body[at : at + size], executable))
            at += size
        return Patch(tuple(writes), tuple(header["deletes"]), tuple(header["skipped"]))

    async def missing(self, names: Words) -> Words:
        """Those of `names` that are no commands here."""
        header, _ = await self._ask("find", names=names, path=self._template.env["PATH"])
        return list(map(str, header["missing"]))

    async def snapshot(self) -> SnapshotRef:
        return self._provider.keep(await self._capture())

    async def fork(self, n: int) -> Children:
        """Containers of the children start while their parent is captured."""
        await self._patience.going()
        captured = asyncio.ensure_future(self._capture())
        try:
            self._alive()
            children = await self._provider.children(self._template, n, captured)
            await captured  # its own error says more than that of children who waited for it
        except PathError:
            if self._broken:
                return [Failed(self._broken, retryable=False)] * n
            raise
        finally:
            captured.cancel()
        return children

    async def _capture(self) -> Capture:
        header, body = await self._ask("capture")
        return Capture(self._template, {key: header[key] for key in ("rows", "changed", "tmp")}, body)

    async def _ask(self, op: str, data: bytes = b"", patience_s: float = CALL_S, **fields: Any) -> frames.Frame:
        """Raises SandboxGone after destroy, PathError from a sandbox that its own workload has ended."""
        await self._patience.going()
        self._alive()
        assert self._channel is not None
        try:
            async with self._patience.within(patience_s):
                return await self._channel.ask(op, data, **fields)
        except TimeoutError:
            await self._abandon("its agent no longer answered in time")
        except Ended:
            await self._judge_once()
        self._alive()
        raise AssertionError("unreachable")

    async def _abandon(self, reason: str) -> None:
        self._broken = reason
        try:
            await self._engine.remove_container(self._container)
        except SandboxError:  # then it is the engine that does not answer
            self._broken = ""
            raise

    def _alive(self) -> None:
        if self._gone:
            raise SandboxGone(f"sandbox {self.id} was destroyed")
        if self._broken:
            raise PathError(f"the sandbox was ended by what ran in it: {self._broken}")

    # --- paused -----------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """The agent stops too, so it is told before: no command is late because of it."""
        async with self._pausing:
            if not self._patience.paused:
                try:
                    await self._ask("pause")
                    self._patience.pause()
                    await self._engine.call(self._engine.api.pause, self._container)
                except BaseException:  # whoever gave up may have been too late
                    with suppress(SandboxError):
                        await self._engine.call(self._engine.api.unpause, self._container)
                    await self._resumed()
                    raise

    async def resume(self) -> None:
        async with self._pausing:
            if self._patience.paused:
                await self._engine.call(self._engine.api.unpause, self._container)
                await self._resumed()

    async def _resumed(self) -> None:
        self._patience.resume()
        await self._ask("resume")

    # --- the way out ------------------------------------------------------------------------------------------

    async def set_network(self, allow: Sequence[str]) -> None:
        """The container stays without any; its agent passes on what comes to a port of its loopback."""
        await self._patience.going()
        self._alive()
        try:
            await self._network.allow(allow)
        except ConnectionResetError:
            await self._judge_once()
            self._alive()

    async def _relay(self, op: str, data: bytes = b"", **fields: Any) -> frames.Frame:
        assert self._channel is not None
        try:
            return await self._channel.ask(op, data, **fields)
        except Ended as error:
            raise ConnectionResetError("the container has ended") from error

    # --- the end ----------------------------------------------------------------------------------------------

    async def _judge_once(self) -> None:
        if self._judging is None:
            self._judging = asyncio.ensure_future(self._judge())
            self._judging.add_done_callback(lambda task: task.cancelled() or task.exception())  # who asked may be gone
        await asyncio.shield(self._judging)

    async def _judge(self) -> None:
        assert self._channel is not None
        if not (self._gone or self._broken):
            try:
                self._broken = await cause(self._engine, self._container, self._channel)
            except SandboxError:
                if not self._gone:
                    raise

    async def destroy(self) -> None:
        await self._provider.forget(self)

    async def end(self) -> None:
        """Safe twice; everything in the container is killed, and it is removed."""
        self._gone = True
        self._patience.resume()
        if self._channel is not None:
            self._channel.close()
        await self._network.close()
        if self._container:
            await self._engine.remove_container(self._container)


def _result(header: dict[str, Any], body: bytes) -> ExecResult:
    split = header["split"]
    names = ("status", "exit_code", "signal", "wall_s", "stdout_bytes", "stderr_bytes")
    told = {name: header[name] for name in names} | {"restarted": bool(header.get("restarted"))}
    return ExecResult(stdout=body[:split], stderr=body[split:], **told)
