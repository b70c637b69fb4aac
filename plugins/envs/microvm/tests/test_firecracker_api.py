"""What the strict server refuses, so that what it takes is what is published; and what our client makes of answers."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from strict import api

from composer_core.errors import BackendError
from composer_plugin_microvm import rest, vsock
from composer_plugin_microvm.config import FirecrackerConfig

DRIVE = {"drive_id": "root", "path_on_host": "file", "is_root_device": False, "is_read_only": True}
MACHINE = {"vcpu_count": 1, "mem_size_mib": 128}
LOAD = {"snapshot_path": "file", "mem_backend": {"backend_type": "File", "backend_path": "file"}}
SAVE = {"snapshot_path": "s", "mem_file_path": "m"}


@contextmanager
def running(config: FirecrackerConfig, folder: Path) -> Iterator[rest.Api]:
    """A fresh process that has booted nothing."""
    (folder / "file").write_text("file")
    words = [config.firecracker, "--id", "test", "--api-sock", "api.sock"]
    fd = os.open(folder, os.O_RDONLY)
    with subprocess.Popen(words, cwd=folder) as process:
        while not rest.there(fd, "api.sock"):
            assert process.poll() is None
            time.sleep(0.01)
        found = rest.Api(fd, "api.sock")
        yield found
        found.close()
        process.kill()
    os.close(fd)


@pytest.fixture(scope="module")
def server(strict: FirecrackerConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[rest.Api]:
    with running(strict, tmp_path_factory.mktemp("server")) as found:
        yield found


def told(server: rest.Api, *calls: tuple[str, str, Any]) -> str:
    """All but the last are taken; what is said of the last."""

    async def whole() -> str:
        *before, last = calls
        for call in before:
            await server.ask(*call)
        with pytest.raises(BackendError) as caught:
            await server.ask(*last)
        return str(caught.value)

    return asyncio.run(whole())


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (("PUT", "/machine-config", MACHINE | {"cpus": 1}), "unknown field `cpus`"),
        (("PUT", "/machine-config", {"vcpu_count": 1}), "missing field `mem_size_mib`"),
        (("PUT", "/machine-config", MACHINE | {"mem_size_mib": "128"}), "invalid type of `mem_size_mib`"),
        (("PUT", "/machine-config", MACHINE | {"vcpu_count": 0}), "invalid value of `vcpu_count`"),
        (("PUT", "/drives/root", DRIVE | {"io_engine": "Fast"}), "unknown variant 'Fast'"),
        (("PUT", "/drives/other", DRIVE), "does not match the id"),
        (("PUT", "/drives/root-1", DRIVE), "alphanumeric"),
        (("PUT", "/drives/root", DRIVE | {"path_on_host": "missing"}), "No such file"),
        (("PUT", "/drives/root", DRIVE | {"path_on_host": "../file"}), "leads out of the jail"),
        (("PUT", "/vsock", {"guest_cid": 2, "uds_path": "v"}), "invalid value of `guest_cid`"),
        (("PUT", "/vsock", {"guest_cid": 3, "uds_path": "file"}), "Address in use"),
        (("PUT", "/vsock", None), "Empty PUT request"),
        (("GET", "/version", {}), "cannot have a body"),
        (("POST", "/vm", {}), "Invalid HTTP request"),
        (("PUT", "/vm", {"state": "Paused"}), "Invalid request method and/or path: PUT /vm"),
        (("PUT", "/snapshots", {}), "Invalid request method and/or path"),
        (("PATCH", "/vm", {"state": "Paused"}), "before starting the microVM"),
        (("PUT", "/snapshot/create", SAVE), "before starting the microVM"),
        (("PUT", "/actions", {"action_type": "FlushMetrics"}), "before starting the microVM"),
        (("PUT", "/actions", {"action_type": "InstanceStart"}), "without kernel"),
        (("PUT", "/snapshot/load", LOAD | {"mem_file_path": "file"}), "unknown field `mem_file_path`"),
        (("PUT", "/boot-source", {"kernel_image_path": "x" * 60_000}), "Payload too large"),
    ],
)
def test_what_the_published_api_does_not_allow_is_refused(server: rest.Api, call: Any, said: str) -> None:
    assert said in told(server, call)


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ([("PUT", "/logger", {"log_path": "file"})] * 2, "configured already"),
        ([("PUT", "/metrics", {"metrics_path": "file"})] * 2, "configured already"),
        ([("PUT", "/entropy", {}), ("PUT", "/snapshot/load", LOAD)], "not allowed after configuring"),
        ([("PUT", "/logger", {"log_path": "file"}), ("PUT", "/snapshot/load", LOAD)], "Load snapshot error"),
    ],
    ids=["logger", "metrics", "configured", "no snapshot"],
)
def test_what_the_published_api_does_not_allow_then_is_refused(
    strict: FirecrackerConfig,
    tmp_path: Path,
    calls: Any,
    said: str,
) -> None:
    with running(strict, tmp_path) as fresh:
        assert said in told(fresh, *calls)


def test_every_operation_names_a_body_that_is_described() -> None:
    bodies = {operation.body for operation in api.OPERATIONS.values()} - {None}
    nested = {field.kind for fields in api.BODIES.values() for field in fields.values() if isinstance(field.kind, str)}
    assert bodies | nested == set(api.BODIES)


# --- our client ---------------------------------------------------------------------------------------------------


def answered(tmp_path: Path, data: bytes) -> BackendError:
    """What the client makes of these bytes."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, suppress(BrokenPipeError):
                connection.recv(1 << 16)
                connection.sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        folder = os.open(tmp_path, os.O_RDONLY)
        client = rest.Api(folder, "s")
        try:
            with pytest.raises(BackendError) as caught:
                asyncio.run(client.ask("GET", "/version"))
        finally:
            client.close()
            os.close(folder)
            thread.join()
    return caught.value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe\r\n\r\n",
        b"HTTP/1.1 200 \r\nContent-Length: 9\r\n\r\n{",
        b"HTTP/1.1 200 \r\nContent-Length: 1\r\n\r\n{",
        b"HTTP/1.1 200 \r\n" + b"a: b\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 \r\nContent-Length: 2000000\r\n\r\n" + b" " * 1_100_000,
        b"HTTP/1.1 200 \r\nContent-Length: 100000\r\n\r\n" + b"[" * 100_000,
        b"HTTP/1.1 " + b"9" * 100_000,
    ],
    ids=["nothing", "no text", "half", "no JSON", "headers", "too long", "too deep", "no line"],
)
def test_answers_of_no_sense_are_one_kind_of_error(tmp_path: Path, data: bytes) -> None:
    assert "did not answer GET /version" in str(answered(tmp_path, data))


@pytest.mark.parametrize("body", [{"fault_message": "because"}, "because", ["because"]])
def test_a_refusal_says_why(tmp_path: Path, body: Any) -> None:
    data = json.dumps(body).encode()
    error = answered(tmp_path, b"HTTP/1.1 400 \r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    assert "refused GET /version" in str(error) and "because" in str(error)


# --- the way to a port --------------------------------------------------------------------------------------------


def reached(tmp_path: Path, *answers: bytes) -> tuple[bytes, list[bytes]]:
    """What follows the handshake, and what was asked; each connection gets one answer, the last is kept open."""
    asked = []

    async def whole() -> bytes:
        left = list(answers)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readline())
            for byte in left.pop(0) if left else b"":
                writer.write(bytes([byte]))
                await writer.drain()
            writer.close()

        server = await asyncio.start_unix_server(serve, str(tmp_path / "v"))
        folder = os.open(tmp_path, os.O_RDONLY)
        try:
            ended = asyncio.get_running_loop().create_future()
            found = await vsock.connect(folder, "v", 1000, 0.3, ended)
            data = b""
            while part := await asyncio.get_running_loop().sock_recv(found, 100):
                data += part
            found.close()
            return data
        finally:
            os.close(folder)
            server.close()

    return asyncio.run(whole()), asked


def test_nothing_of_what_the_agent_says_is_taken_for_the_handshake(tmp_path: Path) -> None:
    data, asked = reached(tmp_path, b"OK 1073741824\nthe agent's")
    assert (data, asked) == (b"the agent's", [b"CONNECT 1000\n"])


def test_a_port_is_tried_again_until_somebody_listens(tmp_path: Path) -> None:
    data, asked = reached(tmp_path, b"", b"", b"OK 1\n")
    assert (data, len(asked)) == (b"", 3)


@pytest.mark.parametrize("answer", [b"", b"OK\n", b"OK one\n", b"NO 1\n", b"O" * 100, b"OK 1"])
def test_an_answer_that_is_no_handshake_is_no_connection(tmp_path: Path, answer: bytes) -> None:
    with pytest.raises(BackendError, match="cannot be reached"):
        reached(tmp_path, *[answer] * 50)
