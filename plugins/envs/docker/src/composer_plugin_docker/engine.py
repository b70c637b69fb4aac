"""The engine's API as coroutines: the docker SDK in threads of its own, its errors as ours, its objects labelled.

Everything made here carries the label of its owner (`owners.py`). Base images alone have none: they are named by their
content and kept, since every run of this machine can use them.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, TypeVar

import docker
from docker.errors import APIError, DockerException, NotFound
from requests.exceptions import RequestException

from composer_core.errors import (
    BackendError,
    ConfigError,
    NoCapacity,
    SandboxError,
    SandboxGone,
    SandboxUnreachable,
)

T = TypeVar("T")
THREADS = 16
PATIENCE_S = 300
DEFAULT = "unix:///var/run/docker.sock"
OWNER, KIND = "composer.owner", "composer.kind"
FIX = (
    "install an engine (apt install docker.io), start it, and be a member of the group docker or root; or name its "
    "socket in sandbox.engine; or choose sandbox.use = 'local/namespaces'"
)
FULL = ("no space left", "too many open files", "cannot allocate memory", "resource temporarily unavailable")


class Missing(SandboxError):
    """The engine knows no such container or image."""


class Engine:
    """One connection to an engine; made by `connect`, `close` is safe twice."""

    def __init__(self, api: docker.APIClient, owner: str) -> None:
        self.api, self.owner = api, owner
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="docker")

    @classmethod
    async def connect(cls, address: str, owner: str) -> Engine:
        """Raises ConfigError when there is no engine to talk to."""

        def open_api() -> docker.APIClient:
            settings = {"base_url": address} if address else docker.utils.kwargs_from_env()
            _knock(settings.get("base_url") or DEFAULT)
            api = docker.APIClient(version="auto", timeout=PATIENCE_S, **settings)
            api.headers["Connection"] = "close"  # else one stays open for each of the last URLs, which all differ
            return api

        try:
            return cls(await asyncio.to_thread(open_api), owner)
        except (DockerException, RequestException, OSError) as error:
            where = address or "DOCKER_HOST, or /run/docker.sock"
            raise ConfigError("no container engine answers", where=where, found=str(error), fix=FIX) from error

    async def call(self, function: Callable[..., T], *words: Any, **options: Any) -> T:
        """Run one of the SDK's methods in a thread; cancelling it waits, so what it makes can be removed."""
        return await self._call(lambda made: None, lambda: function(*words, **options))

    async def _call(self, drop: Callable[[T], object], function: Callable[[], T]) -> T:
        """The same; `drop` is given what was made when nobody wants it any more."""
        try:
            work = asyncio.get_running_loop().run_in_executor(self._threads, function)
        except RuntimeError as error:  # its threads are no more
            raise SandboxGone("the provider was closed") from error
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])
            if not work.exception():  # which is of no more interest
                drop(work.result())
            raise
        except NotFound as error:
            raise Missing(str(error.explanation or error)) from error
        except APIError as error:
            raise _typed(str(error.explanation or error)) from error
        except (DockerException, RequestException, OSError) as error:
            raise SandboxUnreachable(f"the engine did not answer: {error}") from error

    def labels(self, kind: str) -> dict[str, str]:
        return {OWNER: self.owner, KIND: kind}

    # --- images -----------------------------------------------------------------------------------------------

    async def image(self, reference: str) -> dict[str, Any] | None:
        """What the engine says of an image, None if it has none such."""
        try:
            found: dict[str, Any] = await self.call(self.api.inspect_image, reference)
        except Missing:
            return None
        return found

    async def import_image(self, archive: IO[bytes], name: str) -> None:
        changes = [f"LABEL {KIND}=base"]
        repository, _, tag = name.partition(":")
        await self.call(self.api.import_image, src=archive, repository=repository, tag=tag, changes=changes)

    async def add_layer(self, image: str, archive: bytes, name: str, labels: Mapping[str, str]) -> str:
        """An image that is `image` with an archive unpacked over it; returns its id."""
        layer, labeled = f"composer-layer-{secrets.token_hex(8)}", self.labels("layer")
        try:
            await self.call(self.api.create_container, image, command=["-"], name=layer, labels=labeled)
            await self.call(self.api.put_archive, layer, "/", archive)
            changes = [f'LABEL {key}="{value}"' for key, value in labels.items()]
            repository, _, tag = name.partition(":")
            committed = await self.call(self.api.commit, layer, repository, tag, pause=False, changes=changes)
        finally:
            await self.remove_container(layer)
        return str(committed["Id"])

    async def remove_image(self, image: str) -> None:
        try:
            await self.call(self.api.remove_image, image, force=True)
        except Missing:
            return

    # --- containers -------------------------------------------------------------------------------------------

    async def remove_container(self, container: str) -> None:
        """Kill and remove; one that is gone, or is just being removed, is no error."""
        try:
            await self.call(self.api.remove_container, container, v=True, force=True)
        except Missing:
            return
        except SandboxError as error:
            if "already in progress" not in error.message:
                raise

    async def attach(self, container: str) -> Any:
        """The response whose socket carries a container's standard streams."""
        streams = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        return await self._call(close_response, lambda: self.api.attach_socket(container, streams))

    async def owned(self) -> list[tuple[str, str, str]]:
        """(container or image, id, owner) of everything here that has an owner."""
        wanted = {"label": OWNER}
        containers: Iterable[dict[str, Any]] = await self.call(self.api.containers, all=True, filters=wanted)
        images: Iterable[dict[str, Any]] = await self.call(self.api.images, filters=wanted)
        rows = [("container", row["Id"], row["Labels"][OWNER]) for row in containers]
        return rows + [("image", row["Id"], row["Labels"][OWNER]) for row in images]

    def close(self) -> None:
        self._threads.shutdown(wait=True)
        self.api.close()


def _knock(address: str) -> None:
    """Raises OSError where nobody listens: the SDK would leave a socket open then."""
    scheme, _, path = address.partition("://")
    if scheme in ("unix", "http+unix"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(path)


def _typed(message: str) -> SandboxError:
    full = any(words in message.lower() for words in FULL)
    return NoCapacity(message) if full else BackendError(message)


def close_response(response: Any) -> None:
    """The SDK keeps the HTTP response, and with it the connection, beside its socket."""
    getattr(response, "_response", response).close()
    response.close()
