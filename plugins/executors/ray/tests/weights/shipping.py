"""Weights for tests, a run's publisher and receivers around one store, and how a test of them runs."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np

from composer_core.types import WeightsRef
from composer_plugin_ray.weights.publisher import WeightPublisher
from composer_plugin_ray.weights.receiver import WeightReceiver
from composer_plugin_ray.weights.store import WeightStore

WORDS = 20_000
DRAWS = np.random.default_rng


def write(path: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> Path:
    """A safetensors file; numpy has no bfloat16, so tensors are given as words with the name of their type."""
    header, offset = {}, 0
    for name, (dtype, words) in tensors.items():
        header[name] = {"dtype": dtype, "shape": [len(words)], "data_offsets": [offset, offset + words.nbytes]}
        offset += words.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    parts = [struct.pack("<Q", len(text)), text, *(words.tobytes() for _, words in tensors.values())]
    path.write_bytes(b"".join(parts))
    return path


def bf16(values: np.ndarray) -> np.ndarray:
    """Rounded to the nearest, as 16-bit words."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def noise(path: Path, seed: int) -> Path:
    """Bytes that tell nothing of each other, but for the one in 256 that is the same by chance."""
    return write(path, {"w": ("U8", np.frombuffer(DRAWS(seed).bytes(WORDS), np.uint8))})


def runs(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test on an event loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **named: Any) -> None:
        asyncio.run(test(*args, **named))

    return run


class Model:
    """Fp32 masters that make small steps; published in 16 bits beside a buffer that counts."""

    def __init__(self, folder: Path, words: int = WORDS) -> None:
        self._folder, self._draws = folder, DRAWS(0)
        self._masters = self._draws.normal(0, 0.02, words).astype(np.float32)
        self.version = -1

    def step(self, size: float = 1e-6) -> tuple[WeightsRef, Path]:
        self.version += 1
        self._masters += (size * self._draws.choice((-1, 1), len(self._masters))).astype(np.float32)
        tensors = {"w": ("BF16", bf16(self._masters)), "count": ("I64", np.array([self.version], np.int64))}
        path = write(self._folder / f"{self.version}.safetensors", tensors)
        return WeightsRef(self.version, path.name, hashlib.sha256(path.read_bytes()).hexdigest()), path


class Place:
    """A store in a folder, its publisher and receivers."""

    def __init__(self, root: Path, url: str = "", **settings: Any) -> None:
        self.root, self.url = root, url or str(root / "store")
        self.model = Model(root)
        self.settings = settings
        self.publisher = self.publisher_anew()
        self.shipped: dict[int, tuple[WeightsRef, bytes]] = {}

    def publisher_anew(self) -> WeightPublisher:
        return WeightPublisher(WeightStore(self.url), self.root / "publisher", **self.settings)

    def receiver(self, name: str) -> WeightReceiver:
        return WeightReceiver(WeightStore(self.url), self.root / name)

    async def publish(self, times: int = 1, **step: Any) -> WeightsRef:
        for _ in range(times):
            weights, path = self.model.step(**step)
            ref = await self.publisher.publish(weights, path)
            self.shipped[ref.version] = ref, path.read_bytes()
        return ref

    def kinds(self) -> str:
        return "".join("F" if ref.base is None else "d" for ref, _ in self.shipped.values())

    def stored(self, ref: WeightsRef) -> Path:
        return Path(self.url) / ref.uri

    async def arrives(self, receiver: WeightReceiver, ref: WeightsRef) -> None:
        async with receiver.weights(ref) as path:
            assert path.read_bytes() == self.shipped[ref.version][1]
