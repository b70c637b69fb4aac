"""`protocols.Sampler` over a server: a session of connections, retries, and weights swapped between generations.

A generation is one request, which the server batches with others as it likes. New weights wait until no request is
under way, and requests that come meanwhile wait for them: so it is certain which version sampled a token, which no
server tells for each.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from attrs import evolve

from composer_core import BuildContext
from composer_core.errors import ConfigError, SamplerError, StoreError
from composer_core.types import Completion, GenerateRequest, GenerateSettings, WeightsRef
from composer_plugin_remote_sampler.config import IdsConfig, OpenAiConfig, SglangConfig, TextConfig
from composer_plugin_remote_sampler.wires import Answer, Asked, Json, OpenAi, Sglang, Text, Wire

LOST = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError)
PAUSE_S = 0.2
"""Before a request is sent again; doubled each time."""
WEIGHTS = "model.safetensors"
SHOWN_CHARS = 300


def build_openai(config: OpenAiConfig, build: BuildContext) -> RemoteSampler:
    return RemoteSampler(config, OpenAi(config.model))


def build_sglang(config: SglangConfig, build: BuildContext) -> RemoteSampler:
    return RemoteSampler(config, Sglang())


def build_text(config: TextConfig, build: BuildContext) -> RemoteSampler:
    return RemoteSampler(config, Text(build.get("tokenizer"), config.model))


class RemoteSampler:
    """Sends ids, receives ids; what they mean to a server is its wire's business.

    Raises:
        ConfigError: the variable that should hold the API key is not set.
    """

    def __init__(self, config: TextConfig, wire: Wire) -> None:
        self._config, self._wire = config, wire
        self._headers = _headers(config.key_env)
        self._folder = config.folder if isinstance(config, IdsConfig) else ""
        self._calls: aiohttp.ClientSession | None = None
        self._swap, self._idle = asyncio.Lock(), asyncio.Event()
        self._idle.set()
        self._places = asyncio.Semaphore(config.connections)
        self._version = self._in_flight = self._tokens = self._requests = self._retried = 0
        self._closed = False

    async def generate(self, ids: Sequence[int], settings: GenerateSettings, request: GenerateRequest) -> Completion:
        """Continue `ids`.

        Raises:
            SamplerError: the server cannot be reached, refuses, or returns less than was asked for.
        """
        room = self._config.context_tokens - len(ids) if self._config.context_tokens else settings.max_tokens
        if room < 1:
            return Answer((), (), "context").completion(self._version)
        asked = Asked(ids, evolve(settings, max_tokens=min(room, settings.max_tokens)), request)
        version, answer = await self._asked(asked)
        self._tokens += len(answer.ids)
        narrowed = asked.settings.max_tokens < settings.max_tokens and answer.stop == "length"
        return (evolve(answer, stop="context") if narrowed else answer).completion(version)

    async def _asked(self, asked: Asked) -> tuple[int, Answer]:
        """The answer, and the version that is served until it is there."""
        async with self._swap:  # passed at once but while weights are swapped
            self._check_open()
            version, self._in_flight = self._version, self._in_flight + 1
            self._idle.clear()
        try:
            return version, await self._answered(asked)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    async def _answered(self, asked: Asked) -> Answer:
        async with self._places:
            return self._wire.answer(await self._post(self._wire.path, self._wire.body(asked)), asked)

    async def load(self, weights: WeightsRef, path: Path) -> None:
        """Put the file where the server reads it, and have it read, while nothing is generated.

        Raises:
            StoreError: the file is damaged, or the server did not take it.
        """
        async with self._swap:
            await self._idle.wait()
            self._check_open()
            if self._folder:
                await asyncio.to_thread(_place, weights, path, Path(self._folder))
                for where, body in self._wire.reloads(self._folder):
                    reply = await self._post(where, body)
                    if isinstance(reply, Mapping) and reply.get("success") is False:
                        raise StoreError("the server did not take the weights", where=where, found=str(reply)[:200])
            self._version = weights.version

    async def release(self, session: str) -> None:
        """Nothing is kept for a session here; the server's prefix cache is its own."""

    def stats(self) -> Mapping[str, float]:
        """Counters since the start."""
        counts = {"tokens": self._tokens, "requests": self._requests, "retried": self._retried}
        return {name: float(value) for name, value in counts.items()}

    async def close(self) -> None:
        """What is in flight ends with SamplerError, and the server is told by the connection's end; safe twice."""
        self._closed = True
        calls, self._calls = self._calls, None
        if calls:
            await calls.close()

    # --- the wire

    def _check_open(self) -> None:
        if self._closed:
            raise SamplerError("the sampler is closed")

    async def _post(self, path: str, body: Json) -> Any:
        pause = PAUSE_S
        for left in reversed(range(self._config.retries + 1)):
            try:
                return await self._once(path, body)
            except (*LOST, _Busy) as error:
                if not left:
                    found = f"{type(error).__name__}: {error}"
                    raise SamplerError(
                        "the server gives no answer", where=self._config.base_url, found=found
                    ) from error
            self._retried += 1
            await asyncio.sleep(pause)
            pause *= 2
        raise AssertionError("a loop of at least one round")

    async def _once(self, path: str, body: Json) -> Any:
        self._check_open()
        if self._calls is None:
            timeout = aiohttp.ClientTimeout(total=self._config.timeout_s)
            connector = aiohttp.TCPConnector(limit=self._config.connections)
            self._calls = aiohttp.ClientSession(timeout=timeout, connector=connector, headers=self._headers)
        self._requests += 1
        async with self._calls.post(f"{self._config.base_url}{path}", json=body) as reply:
            if reply.status == 429 or reply.status >= 500:
                raise _Busy(f"{reply.status} {(await reply.text())[:SHOWN_CHARS]}")
            if reply.status != 200:
                found = f"{reply.status} {(await reply.text())[:SHOWN_CHARS]}"
                raise SamplerError("the server refuses", where=f"{self._config.base_url}{path}", found=found)
            text = await reply.text()
        try:
            return json.loads(text) if text.strip() else None
        except ValueError as error:
            raise SamplerError("the server's answer is no JSON", where=path, found=text[:SHOWN_CHARS]) from error


class _Busy(Exception):
    """The server may answer later."""


def _headers(key_env: str) -> dict[str, str]:
    if not key_env:
        return {}
    if not (key := os.environ.get(key_env)):
        fix = f"export {key_env}=..., or leave key_env out"
        raise ConfigError(
            "the API key is not set", where="sampler.key_env", expected=f"the variable {key_env}", fix=fix
        )
    return {"Authorization": f"Bearer {key}"}


def _place(weights: WeightsRef, path: Path, folder: Path) -> None:
    """Replace the folder's weights whole, after looking at their checksum."""
    target, partial = folder / WEIGHTS, folder / f".{WEIGHTS}.{os.getpid()}"
    try:
        shutil.copyfile(path, partial)
        with partial.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if weights.checksum and found != weights.checksum:
            raise StoreError(
                f"weights of version {weights.version} are damaged", expected=weights.checksum, found=found
            )
        partial.replace(target)
    except OSError as error:
        raise StoreError("weights cannot be put where the server reads them", where=str(target), found=error) from error
    finally:
        partial.unlink(missing_ok=True)
