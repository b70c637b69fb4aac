"""A server of both protocols on the loopback: a bigram of twelve ids, whose weights are the bytes of a file."""

from __future__ import annotations

import asyncio
import hashlib
import math
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from composer_core.noise import uniform

VOCAB = 12
Reply = Callable[[dict[str, Any]], Any]


class Served:
    """The server, on a thread of its own; `alter` is applied to every answer, `refuse` holds statuses to answer."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.refuse: list[int] = []
        self.alter: Reply = lambda reply: reply
        self.folder = Path()
        self.salt, self.busy, self.authorized = 0, 0, ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.url = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)

    async def _start(self) -> str:
        app = web.Application()
        for path, handler in (
            ("/v1/completions", self._completions),
            ("/generate", self._generate),
            ("/collective_rpc", self._reload),
            ("/update_weights_from_disk", self._reload),
            ("/reset_prefix_cache", self._nothing),
        ):
            app.router.add_post(path, self._watched(path, handler))
        self._runner = web.AppRunner(app, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _watched(self, path: str, handler: Any) -> Any:
        async def handle(request: web.Request) -> web.Response:
            body = await request.json()
            self.seen.append((path, body))
            self.authorized = request.headers.get("Authorization", "")
            if self.refuse:
                return web.Response(status=self.refuse.pop(0), text="not now")
            self.busy += 1
            try:
                return web.json_response(self.alter(await handler(body)))
            finally:
                self.busy -= 1

        return handle

    async def _nothing(self, body: dict[str, Any]) -> Any:
        return {}

    async def _reload(self, body: dict[str, Any]) -> Any:
        assert self.busy == 1, "weights are swapped while nothing is generated"
        digest = hashlib.sha256((self.folder / "model.safetensors").read_bytes()).digest()
        self.salt = int.from_bytes(digest[:2])
        return {"success": True}

    async def _completions(self, body: dict[str, Any]) -> Any:
        if isinstance(body["prompt"], str):
            choice = {"index": 0, "text": "words", "finish_reason": "stop"}
            return {"choices": [choice]}
        ids, logprobs, stop = await self._draw(
            body["prompt"], body["max_tokens"], body["temperature"], body["stop_token_ids"], body["seed"]
        )
        told = {"tokens": [f"token_id:{token}" for token in ids], "token_logprobs": logprobs}
        choice = {"index": 0, "text": "", "logprobs": told, "token_ids": ids, "prompt_token_ids": body["prompt"]}
        choice |= {"finish_reason": "stop" if stop else "length", "stop_reason": ids[-1] if stop else None}
        return {"object": "text_completion", "choices": [choice]}

    async def _generate(self, body: dict[str, Any]) -> Any:
        settings = body["sampling_params"]
        ids, logprobs, stop = await self._draw(
            body["input_ids"],
            settings["max_new_tokens"],
            settings["temperature"],
            settings["stop_token_ids"],
            len(self.seen),
        )
        rows = [[logprob, token, None] for logprob, token in zip(logprobs, ids, strict=True)]
        finish = {"type": "stop", "matched": ids[-1]} if stop else {"type": "length", "length": len(ids)}
        return {"text": "", "meta_info": {"output_token_logprobs": rows, "finish_reason": finish}}

    async def _draw(
        self, prompt: list[int], limit: int, temperature: float, stops: list[int], seed: int
    ) -> tuple[list[int], list[float], bool]:
        ids: list[int] = []
        logprobs: list[float] = []
        while len(ids) < limit:
            await asyncio.sleep(0)
            logits = [2 * math.sin(self.salt + 5 * (ids or prompt)[-1] + 3 * place) for place in range(VOCAB)]
            mass = list(accumulate(math.exp(logit / (temperature or 1.0)) for logit in logits))
            noise = uniform(seed, len(ids)) * mass[-1]
            token = bisect_right(mass, noise) if temperature else logits.index(max(logits))
            ids.append(token)
            logprobs.append(logits[token] / (temperature or 1.0) - math.log(mass[-1]))
            if token in stops:
                return ids, logprobs, True
        return ids, logprobs, False


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    server = Served()
    yield server
    server.close()


@pytest.fixture
def served(shared: Served, tmp_path: Path) -> Served:
    """The server as it was at its start, reading weights from a folder of the test's own."""
    shared.seen, shared.refuse, shared.alter, shared.salt = [], [], lambda reply: reply, 0
    shared.folder = tmp_path / "served"
    shared.folder.mkdir()
    return shared
