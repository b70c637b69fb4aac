"""New weights on their way to a sampler: as a bit-exact difference to the last ones, beside the whole file.

    python benchmarks/weight_sync.py [--repeats 5] [--threads 2]

A mixture of experts of 200 million parameters (the `tiny-moe` preset, wider and deeper, random weights) makes one real
step: the policy trainer's own AdamW at learning rate 1e-6 on random ids, published in 16 bits from fp32 masters. Its
first step moves every weight that has a gradient by the whole learning rate, so later ones change fewer; those are
told too. Then the executor's publisher and receiver take the new file to another folder over a store on the local disk,
checksums and all: as a difference, and whole, in turns. A store on a local disk is the whole file's best case, so the
bandwidth of the store is told below which the difference arrives first.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from results import Results, Row, parser, versions_of

from composer_core.columns import Column
from composer_core.protocols import BuildContext
from composer_core.rundir import sha256_of
from composer_core.types import TrainBatch, TrainSequence, WeightsRef
from composer_plugin_hf.config import TinyMoeConfig
from composer_plugin_hf.presets import build_tiny_moe
from composer_plugin_policy.config import PolicyTrainerConfig, StageSettings
from composer_plugin_policy.engine import Engine
from composer_plugin_ray.weights.delta import apply_deltas, write_delta
from composer_plugin_ray.weights.layout import open_layout
from composer_plugin_ray.weights.publisher import WeightPublisher
from composer_plugin_ray.weights.receiver import WeightReceiver
from composer_plugin_ray.weights.store import WeightStore

MODEL = TinyMoeConfig(
    vocab_size=16384,
    width=512,
    layers=8,
    heads=8,
    kv_heads=4,
    head_width=64,
    expert_count=32,
    top_k=4,
    expert_width=480,
)
SMALL = TinyMoeConfig(width=64, heads=2, kv_heads=1, expert_count=4, expert_width=32)
LEARNING_RATE = 1e-6
ROWS, TOKENS = 4, 256
"""Of the batch of each step: every expert of every layer is visited."""
WHOLE = "the whole file"


def train(folder: Path, config: TinyMoeConfig, steps: int, threads: int) -> tuple[int, list[Path]]:
    """How many parameters there are, and the files that were published before the first step and after each."""
    bare = BuildContext(folder)
    context = BuildContext(folder, get=lambda kind: build_tiny_moe(config, bare), settings={"threads": threads})
    engine = Engine(PolicyTrainerConfig(published="bf16"), context)
    engine.begin("sft", StageSettings(learning_rate=LEARNING_RATE))
    files = [folder / f"{version}.safetensors" for version in range(steps + 1)]
    for version, file in enumerate(files):
        if version:
            engine.step(batch(config.vocab_size, version))
        engine.export(file)
    parameters = sum(parameter.numel() for parameter in engine._parameters)
    engine.close()
    return parameters, files


def batch(vocab: int, seed: int) -> TrainBatch:
    ids = torch.randint(0, vocab, (ROWS, TOKENS), generator=torch.Generator().manual_seed(seed))
    trained = Column.of("U8", [0] + [1] * (TOKENS - 1))
    rows = tuple(TrainSequence(Column.of("I32", row.tolist()), trained, number) for number, row in enumerate(ids))
    return TrainBatch("sft", "nll", rows, ROWS)


def changed_share(new: Path, base: Path) -> float:
    """Of the 16-bit words."""
    after, before = open_layout(new), open_layout(base)
    pairs = list(zip(after.words(), before.words(), strict=True))
    return sum(np.count_nonzero(a != b) for a, b in pairs) / sum(len(a) for a, _ in pairs)


def stages(folder: Path, new: Path, base: Path, threads: int) -> dict[str, float]:
    """Seconds of what a difference takes, one after the other, over a store on the disk."""
    delta, fetched, made = folder / "delta", folder / "fetched", folder / "made"
    found = {
        "make": lambda: write_delta(new, base, delta, threads),
        "ship": lambda: (shutil.copyfile(delta, folder / "stored"), shutil.copyfile(folder / "stored", fetched)),
        "apply": lambda: apply_deltas(base, [fetched], made, threads),
    }
    took = {name: timed(act) for name, act in found.items()}
    if made.read_bytes() != new.read_bytes():
        raise SystemExit("the rebuilt weights are not those that were published")
    return took


def whole_stages(folder: Path, new: Path) -> dict[str, float]:
    """The same of the whole file, which is made already."""
    stored, fetched = folder / "stored", folder / "fetched"
    found = {
        "ship": lambda: (shutil.copyfile(new, stored), shutil.copyfile(stored, fetched)),
        "check": lambda: sha256_of(fetched),
    }
    return {name: timed(act) for name, act in found.items()}


def timed(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


async def journey(folder: Path, files: list[Path], full_every: int, threads: int) -> float:
    """Seconds from a new file to the same file, verified, in the receiver's folder; the one before was there."""
    store = WeightStore(str(folder / "store"))
    publisher = WeightPublisher(store, folder / "publisher", full_every=full_every, threads=threads)
    receiver = WeightReceiver(store, folder / "receiver", threads=threads)
    for version, path in enumerate(files):
        weights = WeightsRef(version, path.name, sha256_of(path))
        started = time.perf_counter()
        async with receiver.weights(await publisher.publish(weights, path)):
            took_s = time.perf_counter() - started
    shutil.rmtree(folder)
    return took_s


def measure(options: argparse.Namespace, files: list[Path], folder: Path) -> dict[str, dict[str, float]]:
    """Medians, in turns; the receiver's folder is on the disk of the weights."""
    before, new = files[:2]
    found: dict[str, list[dict[str, float]]] = {"difference": [], "whole": []}
    for _ in range(options.repeats):
        for name, full_every in (("difference", 25), ("whole", 1)):
            work = folder / "work"
            work.mkdir()
            total = asyncio.run(journey(work / "journey", [before, new], full_every, options.threads))
            parts = stages(work, new, before, options.threads) if name == "difference" else whole_stages(work, new)
            found[name].append({"journey": total, **parts})
            shutil.rmtree(work)
    return {name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for name, runs in found.items()}


def told(name: str, took: dict[str, float]) -> str:
    parts = ", ".join(f"{key} {value:.2f} s" for key, value in took.items() if key != "journey")
    return f"{name}: {parts}; published and received {took['journey']:.2f} s"


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--threads", type=int, default=2, help="of the trainer, and of making and applying")
    arguments.add_argument("--steps", type=int, default=3, help="the first is the one that is promised")
    options = arguments.parse_args()
    config = MODEL
    if options.quick:
        config, options.repeats, options.steps = SMALL, 1, 1
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    result = Results("weight_sync", "New weights to samplers", versions=versions_of("torch", "numpy"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parameters, files = train(folder, config, options.steps, options.threads)
        size = files[0].stat().st_size
        for number, (new, base) in enumerate(zip(files[1:], files, strict=False), 1):
            write_delta(new, base, folder / "delta", options.threads)
            delta = (folder / "delta").stat().st_size
            changed = f"step {number}: {changed_share(new, base):.2%} of {parameters:,} weights differ in 16 bits"
            bytes_told = f"difference {delta / 1e6:.2f} MB, {delta / size:.2%} of {size / 1e6:.1f} MB"
            result.remarks.append(f"{changed}; {bytes_told}")
            if number == 1:
                target = "ratio >= 20"
                result.rows.append(Row("bytes of a step's weights", delta / 1e6, "MB", size / 1e6, WHOLE, target))
                saved = size - delta
        took = measure(options, files, folder)
    ours, whole = took["difference"], took["whole"]
    what = "published, shipped over the local disk, verified"
    result.rows.append(Row(what, ours["journey"], "s", whole["journey"], WHOLE))
    result.remarks += [told("difference", ours), told("whole", whole)]
    extra_s = ours["make"] + ours["apply"] - whole["check"]
    result.remarks.append(
        f"making and applying a difference costs {extra_s:.2f} s more than checking the whole file: it arrives first "
        f"where a store moves less than {2 * saved / max(extra_s, 1e-9) / 1e6:,.0f} MB/s (in and out)"
    )
    return result.finish(options)


if __name__ == "__main__":
    raise SystemExit(main())
