"""Worker of `sampler_throughput`: one side in a process of its own, with its own threads and allocator.

    python sides.py SIDE THREADS      SIDE is ours, generate or continuous

`setup` takes the side's settings and builds the model anew; `round` plays a workload once and returns sampled ids and
seconds; `profile` says where our own engine spends its time. The model is the tiny-moe preset with random weights, on
each side, and no stop id ends a row early: the number of sampled ids is the workload's.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from torch.profiler import ProfilerActivity, profile
from transformers import ContinuousBatchingConfig, GenerationConfig, Qwen3MoeForCausalLM
from transformers.utils import logging
from workers import serve

from composer_core import BuildContext
from composer_core.types import GenerateRequest, GenerateSettings
from composer_plugin_hf.config import TinyMoeConfig
from composer_plugin_hf.presets import build_tiny_moe, qwen3_moe_config
from composer_plugin_torch_sampler.config import ContinuousConfig
from composer_plugin_torch_sampler.engine import Engine
from composer_plugin_torch_sampler.jobs import Job
from composer_plugin_torch_sampler.sampler import ContinuousSampler

VOCABULARY = TinyMoeConfig().vocab_size
GROUP = 8
WINDOW = 512


@frozen
class Workload:
    """What is sampled: sequences that share their prompts by GROUP and take turns of random lengths."""

    prompt: int
    turns: int
    shortest: int
    longest: int
    """Sampled ids of one turn, both bounds included."""
    appended: int = 0
    """Ids of a tool result that follow each turn but the last."""

    def lengths(self, sequence: int) -> list[int]:
        source = random.Random(sequence)
        return [source.randint(self.shortest, self.longest) for _ in range(self.turns)]

    def ids(self, count: int, *seed: int) -> list[int]:
        source = random.Random(repr(seed))
        return [source.randrange(VOCABULARY) for _ in range(count)]

    def opening(self, number: int, sequence: int) -> list[int]:
        """The prompt of a sequence in one round; its group has the same."""
        return self.ids(self.prompt, number, sequence // GROUP)


WORKLOADS = {
    "turn": Workload(256, 1, 128, 128),
    "turn, trial": Workload(256, 1, 32, 32),
    "episode": Workload(64, 4, 15, 30, appended=40),
    "episode, trial": Workload(64, 2, 15, 30, appended=40),
    "smoke test": Workload(16, 2, 2, 4, appended=3),
    "smoke test, trial": Workload(16, 1, 2, 2),
}


def causal_lm() -> Any:
    torch.manual_seed(0)
    return Qwen3MoeForCausalLM(qwen3_moe_config(TinyMoeConfig())).eval()


class Ours:
    """`torch-sampler/continuous`: a session for each sequence, its KV resident between turns."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._loop = asyncio.new_event_loop()
        self._sampler: ContinuousSampler | None = None

    def close(self) -> None:
        if self._sampler is not None:
            self._loop.run_until_complete(self._sampler.close())

    def setup(self, deterministic: bool = False, slots: int = 96) -> None:
        self.close()
        build = BuildContext(run_dir=Path(), deterministic=deterministic)
        policies = [build_tiny_moe(TinyMoeConfig(), build) for _ in range(2)]
        config = ContinuousConfig(slots=slots, context_tokens=WINDOW, threads=self._threads)
        self._sampler = ContinuousSampler(config, *policies)

    def round(self, work: Workload, sequences: int, number: int) -> int:
        async def whole() -> int:
            return sum(await asyncio.gather(*(self._play(work, row, number) for row in range(sequences))))

        return self._loop.run_until_complete(whole())

    async def _play(self, work: Workload, sequence: int, number: int) -> int:
        assert self._sampler is not None
        ids, position, session = work.opening(number, sequence), 0, f"{number}-{sequence}"
        for length in work.lengths(sequence):
            request = GenerateRequest(session, f"{number}-{sequence // GROUP}", noise=sequence, position=position)
            done = await self._sampler.generate(ids, GenerateSettings(max_tokens=length), request)
            position += len(done.ids)
            ids = [*ids, *done.ids.values(), *work.ids(work.appended, number, sequence, position)]
        await self._sampler.release(session)
        return position


def profiled(sequences: int, work: Workload) -> dict[str, float]:
    """Shares of one turn's time by outermost operator, and outside of operators; by a profile, which slows calls."""
    policy = build_tiny_moe(TinyMoeConfig(), BuildContext(run_dir=Path())).eval()
    engine = Engine(policy, ContinuousConfig(slots=sequences, context_tokens=WINDOW))
    for row in range(sequences):
        asked = GenerateRequest(f"{row}", f"{row // GROUP}", noise=row)
        settings = GenerateSettings(max_tokens=work.lengths(row)[0])
        engine.submit(Job(work.opening(0, row), settings, asked, lambda result: None))
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        started = time.perf_counter()
        while engine.busy:
            engine.step()
        spent_us = (time.perf_counter() - started) * 1e6
    shares: Counter[str] = Counter()
    for event in profiler.events():
        if event.cpu_parent is None:
            shares[event.name] += event.cpu_time_total / spent_us
    return {**dict(shares.most_common(6)), "outside of operators": 1 - shares.total()}


class Generate:
    """transformers' `generate`: one batch for each turn, whole contexts forwarded again; rows of one length."""

    def __init__(self, threads: int) -> None:
        self._model: Any = None

    def close(self) -> None:
        """Nothing stays open."""

    def setup(self, attention: str, experts: str) -> None:
        self._model = causal_lm()
        self._model.set_attn_implementation(attention)
        self._model.set_experts_implementation(experts)

    def round(self, work: Workload, sequences: int, number: int) -> int:
        """Every row takes the mean length of a turn, so that none is padded."""
        rows = [work.opening(number, sequence) for sequence in range(sequences)]
        sampled = 0
        for turn in range(work.turns):
            new = round(sum(work.lengths(sequence)[turn] for sequence in range(sequences)) / sequences)
            ids = torch.tensor(rows)
            found = self._model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=True, top_k=0
            )
            rows = [[*row, *work.ids(work.appended, number, turn)] for row in found.tolist()]
            sampled += sequences * new
        return sampled


class Continuous:
    """transformers' continuous batching: a manager that stays, each turn a request with the whole context.

    With `children`, the sequences of a group are one request that is forked after its prefill; without, pages that
    hold equal prefixes are shared.
    """

    def __init__(self, threads: int) -> None:
        self._manager: Any = None

    def close(self) -> None:
        """Its thread would keep the process alive."""
        if self._manager is not None:
            self._manager.stop(block=True)

    def setup(self, attention: str, experts: str, page: int, children: bool) -> None:
        self.close()
        model = causal_lm()
        model.set_attn_implementation(attention)
        model.set_experts_implementation(experts)
        self._children = children
        generation = GenerationConfig(
            do_sample=True,
            top_k=0,
            max_new_tokens=WINDOW,
            eos_token_id=-1,
            num_return_sequences=GROUP if children else 1,
        )
        pages = 2 * 96 * WINDOW // page
        config = ContinuousBatchingConfig(page_size=page, num_blocks=pages, max_batch_tokens=2048)
        self._manager = model.init_continuous_batching(generation, config)
        self._manager.start()

    def round(self, work: Workload, sequences: int, number: int) -> int:
        waiting: dict[str, tuple[int, int, list[int]]] = {}
        lengths = {sequence: work.lengths(sequence) for sequence in range(sequences)}

        def ask(sequence: int, turn: int, ids: list[int]) -> None:
            name = self._manager.add_request(ids, max_new_tokens=lengths[sequence][turn])
            waiting[name] = (sequence, turn, ids)

        copies = GROUP if self._children else 1
        for sequence in range(0, sequences, copies):
            ask(sequence, 0, work.opening(number, sequence))
        sampled, left = 0, sequences * work.turns
        while left:
            result = self._manager.get_result(timeout=1)
            if result is None:
                if not self._manager.is_running():
                    raise RuntimeError("the manager's thread ended")
                continue
            if result.error:
                raise RuntimeError(result.error)
            new = list(result.generated_tokens)
            sampled, left = sampled + len(new), left - 1
            if result.request_id in waiting:
                sequence, turn, ids = waiting.pop(result.request_id)
                if turn + 1 < work.turns:
                    ask(sequence, turn + 1, [*ids, *new, *work.ids(work.appended, number, sequence, turn)])
        return sampled


SIDES = {"ours": Ours, "generate": Generate, "continuous": Continuous}


def main() -> None:
    name, threads = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(threads)
    logging.set_verbosity_error()
    side: Any = SIDES[name](threads)
    rounds = iter(range(1 << 30))

    def answer(do: str, **fields: Any) -> Any:
        if do == "setup":
            return side.setup(**fields)
        if do == "profile":
            return profiled(fields["sequences"], WORKLOADS[fields["workload"]])
        started = time.perf_counter()
        sampled = side.round(WORKLOADS[fields["workload"]], fields["sequences"], next(rounds))
        return {"tokens": sampled, "seconds": time.perf_counter() - started}

    serve(answer)
    side.close()


if __name__ == "__main__":
    main()
