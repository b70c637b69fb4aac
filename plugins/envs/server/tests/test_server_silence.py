"""What neither answers nor hangs up: a connection that goes dead without a word, a server that stands still."""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
from contextlib import asynccontextmanager

import pytest
from inprocess import TOKEN, create, served, until

from composer_core.errors import SandboxUnreachable
from composer_core.protocols import ExecRequest
from composer_plugin_server import connection
from composer_plugin_server.config import RemoteConfig
from composer_plugin_server.remote import RemoteProvider
from composer_testing.fakes.sandbox import MemoryProvider, MemorySandbox


class Wire:
    """Carries bytes both ways until it is `cut`; then connections stay open, and nothing arrives any more."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cut = asyncio.Event()
        self.heals = False
        """Whether connections that are made from now on are good ones."""
        self._writers: list[asyncio.StreamWriter] = []

    def deafen(self):
        """What arrives on the connections that there are is dropped, and not even acknowledged."""
        drop = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # a BPF program: keep no byte
        program = struct.pack("HP", 1, ctypes.addressof(drop))
        for writer in self._writers[::2]:
            end = writer.get_extra_info("socket")
            end.setsockopt(socket.SOL_SOCKET, 26, program)  # SO_ATTACH_FILTER

    async def serve(self, reader, writer):
        there = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers += [writer, there[1]]
        cut = asyncio.Event() if self.heals else self.cut
        await asyncio.gather(self._carry(reader, there[1], cut), self._carry(there[0], writer, cut))

    async def _carry(self, reader, writer, cut):
        while data := await reader.read(1 << 16):
            if not cut.is_set():
                writer.write(data)
        writer.close()

    def close(self):
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def far_away(running, lease_s):
    """A wire to the server, and a client that knows only that."""
    wire = Wire(int(running.url.rpartition(":")[2]))
    async with await asyncio.start_server(wire.serve, "127.0.0.1", 0) as front:
        url = f"http://127.0.0.1:{front.sockets[0].getsockname()[1]}"
        provider = RemoteProvider(RemoteConfig(urls=(url,), lease_s=lease_s), TOKEN)
        try:
            yield wire, provider
        finally:
            wire.close()
            front.close()
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(connection, "TRIES", 1)
                patched.setattr(connection, "RETRY_S", 0.0)
                await asyncio.gather(provider.close(), return_exceptions=True)


def provider_that_runs(commands, shut=None):
    async def run(files, argv, stdin):
        commands.append(argv)
        await (shut.wait() if shut else asyncio.sleep(0.2))
        return await MemorySandbox.exec(await echoing(), ExecRequest(("echo", "done")))

    async def echoing():
        (child,) = await create(MemoryProvider())
        return child

    return MemoryProvider({"run": run})


def test_a_command_whose_wire_was_dead_for_a_while_gets_its_answer_and_runs_once(tmp_path, monkeypatch):
    async def main():
        commands = []
        behind = provider_that_runs(commands)
        async with served(tmp_path, monkeypatch, behind) as running, far_away(running, 4.0) as (wire, provider):
            (box,) = await create(provider)
            asked = asyncio.ensure_future(box.exec(ExecRequest(("run",))))
            await until(lambda: commands)
            wire.cut.set()
            for lease in running.node.leases:
                lease.until_s += 60.0  # however slow this machine is
            async with asyncio.timeout(20):
                while not provider._nodes[0]._unanswered:
                    await asyncio.sleep(0.05)
            wire.heals = True
            assert (await asyncio.wait_for(asked, 20)).stdout == b"done\n"
            assert len(commands) == 1

    asyncio.run(main())


def test_a_dead_connection_is_found_while_others_live_and_its_command_runs_once(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "ALIVE_S", {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1})
    monkeypatch.setattr(connection, "DEAD_S", 2)

    async def main():
        commands, shut = [], asyncio.Event()
        behind = provider_that_runs(commands, shut)
        async with served(tmp_path, monkeypatch, behind) as running, far_away(running, 60.0) as (wire, provider):
            (box,) = await create(provider)
            asked = asyncio.ensure_future(box.exec(ExecRequest(("run",))))
            await until(lambda: commands)
            wire.deafen()
            wire.cut.set()
            wire.heals = True
            shut.set()
            assert (await asyncio.wait_for(asked, 20)).stdout == b"done\n"
            assert len(commands) == 1

    asyncio.run(main())


def test_a_command_on_a_server_that_stands_still_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "RETRY_S", 1.0)

    async def main():
        commands = []
        behind = provider_that_runs(commands)
        async with served(tmp_path, monkeypatch, behind) as running, far_away(running, 2.0) as (wire, provider):
            (box,) = await create(provider)
            asked = asyncio.ensure_future(box.exec(ExecRequest(("run",))))
            await until(lambda: commands)
            wire.cut.set()
            with pytest.raises(SandboxUnreachable, match="does not answer"):
                await asyncio.wait_for(asked, 20)

    asyncio.run(main())


def test_a_round_that_fails_keeps_no_later_one_from_ending_what_is_silent(tmp_path, monkeypatch, caplog):
    async def main():
        async with served(tmp_path, monkeypatch) as running:
            secret, lease = running.node.leases.open("silent", 1.0, 0)
            look = running.node.machine.look
            failed = []

            def fails():
                failed.append(1)
                monkeypatch.setattr(type(running.node.machine), "look", lambda self: look())
                raise ValueError("a file of the kernel that cannot be read")

            monkeypatch.setattr(type(running.node.machine), "look", lambda self: fails())
            await until(lambda: failed)
            lease.until_s = 0.0
            await until(lambda: lease.ended)
            assert "a file of the kernel" in caplog.text and secret not in caplog.text

    asyncio.run(main())
