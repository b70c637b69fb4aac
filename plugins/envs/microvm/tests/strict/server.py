"""The strict server as a program: Firecracker's arguments, its API socket, its exit status."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 - at once: a jailed user may not be let into Python's own folder later
import json
import os
import re
import socket
import sys
from typing import Any

from composer_core.errors import BackendError
from strict import api
from strict.vm import Vm, _inside, _opened

VERSION = "1.14.1"
MAX_BYTES = 51_200
GOOD = ("application/json", "text/plain", "*/*")
BAD_ARGUMENTS, GENERIC = 153, 1


class Server:
    """One Firecracker."""

    def __init__(self, name: str, loopback: bytes) -> None:
        self.name, self.loopback = name, loopback
        self.vm: Vm | None = None
        self.paused = self.tracked = self.configured = False
        self.once: set[str] = set()
        self.info: dict[str, Any] = {"mem_size_mib": 128}
        self.metrics = -1
        self.logged = -1
        self.over: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def answer(self, method: str, path: str, body: Any) -> Any:
        """What is said on success. Raises Refused."""
        described, found, name = api.operation(method, path)
        if found.body is None:
            if body is not None:
                raise api.Refused("GET request cannot have a body.")
        else:
            if body is None:
                raise api.Refused(f"Empty {method} request.")
            body = api.checked(found.body, body)
        api.allowed(found, self.vm is not None)
        self.configured = self.configured or found.configures
        words = [method.lower(), *re.findall(r"[a-z]+", described.replace("{id}", ""))]
        done = getattr(self, "_".join(words))
        return await (done(body, name) if name else done(body))

    # --- always ---

    async def get(self, body: None) -> Any:
        state = "Not started" if self.vm is None else "Paused" if self.paused else "Running"
        return {"app_name": "Firecracker", "id": self.name, "state": state, "vmm_version": VERSION}

    async def get_version(self, body: None) -> Any:
        return {"firecracker_version": VERSION}

    async def get_machine_config(self, body: None) -> Any:
        return {"vcpu_count": 1, "mem_size_mib": self.info["mem_size_mib"]}

    async def put_actions(self, body: dict[str, Any]) -> None:
        action = body["action_type"]
        if action == "InstanceStart":
            if self.vm is not None:
                raise api.Refused(api.POSTBOOT)
            await self._boot()
        elif self.vm is None:
            raise api.Refused(api.PREBOOT)
        elif action == "FlushMetrics" and self.metrics >= 0:
            said = {"utc_timestamp_ms": 0, "latencies_us": {"load_snapshot": 1}, "put_api_requests": {}}
            os.write(self.metrics, json.dumps(said).encode() + b"\n")

    # --- before the boot ---

    async def put_logger(self, body: dict[str, Any]) -> None:
        self._once("logger")
        self.logged = _writable(body["log_path"])
        os.write(self.logged, f"{self.name}: the strict server runs\n".encode())

    async def put_metrics(self, body: dict[str, Any]) -> None:
        self._once("metrics")
        self.metrics = _writable(body["metrics_path"])

    def _once(self, what: str) -> None:
        if what in self.once:
            raise api.Refused(f"The {what} is configured already.")
        self.once.add(what)

    async def put_machine_config(self, body: dict[str, Any]) -> None:
        if body["vcpu_count"] != 1:
            raise api.Refused("the strict server has one processor")
        self.info["mem_size_mib"] = body["mem_size_mib"]
        self.tracked = body.get("track_dirty_pages", False)

    async def put_boot_source(self, body: dict[str, Any]) -> None:
        for key in ("kernel_image_path", "initrd_path"):
            os.close(_opened(body[key]))
        if "nomodule" in body.get("boot_args", "nomodule").split():
            raise api.Refused("a kernel of modules would not boot with this line")
        self.info |= body

    async def put_drives(self, body: dict[str, Any], name: str) -> None:
        if body["drive_id"] != name:
            raise api.Refused("The id from the path does not match the id from the body!")
        if body.get("is_read_only") is None or "path_on_host" not in body or "socket" in body:
            raise api.Refused("a block device needs is_read_only and path_on_host, and no socket")
        if body["is_root_device"] or not body["is_read_only"]:
            raise api.Refused("the strict server's drive is read-only and no root device, as beside an initrd")
        os.close(_opened(body["path_on_host"]))
        self.info["root"] = body["path_on_host"]

    async def put_vsock(self, body: dict[str, Any]) -> None:
        if os.path.lexists(_inside(body["uds_path"])):
            raise api.Refused("Vsock config error: Cannot create backend for vsock device: Address in use")
        self.info |= {"uds_path": _inside(body["uds_path"]), "guest_cid": body["guest_cid"]}

    async def put_entropy(self, body: dict[str, Any]) -> None:
        self.info["entropy"] = True

    async def _boot(self) -> None:
        for needed, said in (("kernel_image_path", "kernel configuration"), ("root", "drive"), ("uds_path", "vsock")):
            if needed not in self.info:
                raise api.Refused(f"Start microvm error: Cannot start microvm without {said}")
        self.vm = await Vm.boot(self.info, self.loopback)
        asyncio.ensure_future(self.vm.ended()).add_done_callback(self._ended)

    async def put_snapshot_load(self, body: dict[str, Any]) -> None:
        if self.configured:
            raise api.Refused(
                "Load snapshot error: Loading a microVM snapshot not allowed after configuring boot-specific resources."
            )
        if body["mem_backend"]["backend_type"] != "File":
            raise api.Refused("the strict server loads files")
        self.tracked = body.get("track_dirty_pages", False)
        try:
            vm = await Vm.load(body["snapshot_path"], body["mem_backend"]["backend_path"])
        except (OSError, ValueError, BackendError, api.Refused) as error:
            self.over.set_result(GENERIC)  # a process that failed to load is not used any more
            raise api.Refused(f"Load snapshot error: {error}") from error
        asyncio.ensure_future(vm.ended()).add_done_callback(self._ended)
        self.vm, self.paused = vm, True
        if body.get("resume_vm"):
            await self.patch_vm({"state": "Resumed"})

    def _ended(self, task: asyncio.Future[int]) -> None:
        if not self.over.done():
            self.over.set_result(task.result())

    # --- after it ---

    async def patch_vm(self, body: dict[str, Any]) -> None:
        assert self.vm is not None
        if body["state"] == "Paused":
            await self.vm.pause()
        else:
            await self.vm.resume()
        self.paused = body["state"] == "Paused"

    async def put_snapshot_create(self, body: dict[str, Any]) -> None:
        assert self.vm is not None
        if not self.paused:
            raise api.Refused("Create snapshot error: Cannot save the microVM state: Operation not allowed: not paused")
        kind = body.get("snapshot_type", "Full")
        if kind == "Diff" and not self.tracked:
            raise api.Refused("a difference that is not tracked is guessed, and wrong where there is swap")
        await self.vm.save(kind, body["snapshot_path"], body["mem_file_path"])

    # --- HTTP ---

    async def serve(self, path: str) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(_inside(path))
        await asyncio.start_unix_server(self._connection, sock=listener)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                status, data = await self._request(reader)
                writer.write(_response(status, data))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _request(self, reader: asyncio.StreamReader) -> tuple[int, Any]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
        first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        data = await reader.readexactly(length) if length <= MAX_BYTES else b""
        try:
            match = re.fullmatch(r"(GET|PUT|PATCH|DELETE) (/\S*) HTTP/1\.[01]", first)
            if match is None:
                raise api.Refused("Invalid HTTP request.")
            if length > MAX_BYTES:
                raise api.Refused("Payload too large.")
            if headers.get("accept", "*/*") not in GOOD or headers.get("content-type", "*/*") not in GOOD:
                raise api.Refused("Unsupported media type.")
            try:
                body = json.loads(data) if data else None
            except ValueError as error:
                raise api.Refused(f"An error occurred when deserializing the json body: {error}.") from error
            said = await self.answer(match[1], match[2], body)
        except api.Refused as refused:
            return 400, {"fault_message": str(refused)}
        except Exception as error:  # a fault of this server is seen by whoever asked
            return 400, {"fault_message": f"{type(error).__name__}: {error!r}"}
        return (204, None) if said is None else (200, said)


def _response(status: int, said: Any) -> bytes:
    head = f"HTTP/1.1 {status} \r\nServer: Firecracker API\r\nConnection: keep-alive\r\n"
    if said is None:
        return f"{head}\r\n".encode()
    data = json.dumps(said)
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n{data}".encode()


def _writable(path: str) -> int:
    try:
        return os.open(_inside(path), os.O_WRONLY | os.O_NONBLOCK | os.O_APPEND | os.O_CLOEXEC)
    except OSError as error:
        raise api.Refused(f"{path}: {error}") from error


def main(words: list[str], loopback: bytes) -> None:
    """In the folder that is its root."""
    if words == ["--version"]:
        print(f"Firecracker v{VERSION}\n")
        return
    if len(words) % 2:
        sys.exit(BAD_ARGUMENTS)
    given = dict(zip(words[::2], words[1::2], strict=True))
    known = {"--id", "--api-sock", "--start-time-us", "--start-time-cpu-us", "--parent-cpu-time-us"}
    if set(given) - known or not re.fullmatch(r"[A-Za-z0-9-]{1,64}", given.get("--id", "anonymous-instance")):
        print(f"Arguments parsing error: {words}", file=sys.stderr)
        sys.exit(BAD_ARGUMENTS)
    os._exit(asyncio.run(_run(given, loopback)))


async def _run(given: dict[str, str], loopback: bytes) -> int:
    server = Server(given.get("--id", ""), loopback)
    await server.serve(given.get("--api-sock", "/run/firecracker.socket"))
    status = await server.over
    if server.metrics >= 0:
        counts = {"seccomp": {"num_faults": 0}, "signals": {"sigsegv": 0}, "vcpu": {"failures": int(status != 0)}}
        os.write(server.metrics, json.dumps(counts).encode() + b"\n")
    await asyncio.sleep(0.05)  # what was refused last is still said
    return status
