"""The plugin `mishaps`: fakes that go wrong on demand. Installed for the tests of this folder by `conftest`."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import signal
from pathlib import Path
from typing import ClassVar

import fsspec
from attrs import evolve, field, frozen
from fsspec.implementations.local import LocalFileSystem

from composer_core import Column, ContextSpec, SamplerSpec, SandboxSpec, hookimpl
from composer_core.noise import uniform
from composer_core.protocols import Continue
from composer_testing.fakes.config import LearnerConfig

COMPOSER_API = 1
NAN = 1 << 23
"""Position of the noise that decides."""


@frozen
class StuckConfig:
    every: int = field(default=0)
    """Each so-manieth creation of a sandbox never answers; 0 is none."""
    mark: str = ""
    """File that the first comparison makes, and then never answers; later ones find it there, and do."""


@frozen
class NanConfig:
    nan_share: float = field(default=0.0)
    """Of attempts whose first log-probability is not a number, once in each process."""
    looks: int = field(default=0)
    turn_s: float = field(default=0.0)


@frozen
class CrashConfig:
    task: str = ""
    """Whose episodes crash."""
    how: str = "raise"
    """raise, or kill: end the process that runs them."""


def sandboxes(config, build):
    from composer_testing.fakes.sandbox import MemoryProvider
    from composer_testing.fakes.tasks import cmp

    class Stuck(MemoryProvider):
        asked = 0

        async def create(self, source, n=1):
            self.asked += 1
            if config.every and self.asked % config.every == 0:
                await asyncio.Event().wait()
            return await super().create(source, n)

    async def compared(files, argv, stdin):
        if config.mark and not Path(config.mark).exists():
            Path(config.mark).touch()
            await asyncio.Event().wait()
        return cmp(files, argv, stdin)

    return Stuck(commands={"cmp": compared})


def sampler(config, build):
    from composer_testing.fakes.learner import Learner

    class NotANumber(Learner):
        told: ClassVar[set] = set()

        async def generate(self, ids, settings, request):
            found = await super().generate(ids, settings, request)
            key = (request.task_id, request.attempt)
            if key in self.told or uniform(request.noise, NAN) >= config.nan_share:
                return found
            self.told.add(key)
            return evolve(found, logprobs=Column.of("F32", [math.nan] * len(found.ids)))

    learner = LearnerConfig(looks=config.looks, turn_s=config.turn_s)
    return NotANumber(learner, build.get("renderers"), build.get("tokenizer"))


class Damaging(LocalFileSystem):
    """`damaging:///folder`: a disk that gives every difference to the third version back with a bit turned."""

    protocol = "damaging"

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("damaging://"))

    def unstrip_protocol(self, name):
        return f"damaging://{name}"

    def get_file(self, path1, path2, **more):
        super().get_file(path1, path2, **more)
        if path1.endswith(".delta") and Path(path1).name.startswith("2-"):
            data = bytearray(Path(path2).read_bytes())
            data[len(data) // 2] ^= 1
            Path(path2).write_bytes(data)


fsspec.register_implementation("damaging", Damaging, clobber=True)


def reading(config, build):
    from composer_testing.fakes.learner import Learner

    class Reading(Learner):
        async def load(self, weights, path):
            right = hashlib.sha256(path.read_bytes()).hexdigest() == weights.checksum
            told = {"pid": os.getpid(), "version": weights.version, "base": weights.base, "right": right}
            with (build.run_dir / "loaded.jsonl").open("a") as file:
                file.write(json.dumps(told) + "\n")
            await super().load(weights, path)

    return Reading(config, build.get("renderers"), build.get("tokenizer"))


class Crashing:
    def __init__(self, config, build):
        self.config = config

    def next(self, view):
        if view.task.id == self.config.task and view.sampled_tokens:
            if self.config.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("this task crashes its episodes")
        return Continue()


@hookimpl
def composer_sandboxes():
    yield SandboxSpec(name="stuck", factory=sandboxes, config=StuckConfig)


@hookimpl
def composer_samplers():
    offers = {"sampler.logprobs", "sampler.versions", "sampler.swaps", "sampler.deterministic"}
    yield SamplerSpec(name="nan", factory=sampler, config=NanConfig, capabilities=offers)
    yield SamplerSpec(name="reading", factory=reading, config=LearnerConfig, capabilities=offers)


@hookimpl
def composer_contexts():
    yield ContextSpec(name="crashing", factory=Crashing, config=CrashConfig)
