"""Sampled tokens per second of `torch-sampler/continuous` beside transformers' batched `generate`, same run and model.

Each session plays an episode of several turns: a prompt, then per turn some sampled ids and an appended tool result.
`generate` knows no sessions, so the peer forwards every turn's whole context again, left-padded in one batch, with the
same number of sampled ids per row; its KV cache lives within one turn. Then forward and backward of micro-batches.

    python benchmarks/sampler_throughput.py [--repeats 3] [--threads 2] [--sessions 1,16,64,128]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3MoeForCausalLM
from transformers.utils import logging

from composer_core import BuildContext
from composer_core.tensors import token_logprobs
from composer_core.types import GenerateRequest, GenerateSettings
from composer_plugin_hf.config import TinyMoeConfig
from composer_plugin_hf.presets import build_tiny_moe, qwen3_moe_config
from composer_plugin_torch_sampler.config import ContinuousConfig
from composer_plugin_torch_sampler.sampler import ContinuousSampler

PROMPT, APPENDED, TURNS = 60, 40, 4
TURN_TOKENS = (15, 30)
GROUP = 8
VOCABULARY = 1024


def turn_lengths(session: int) -> list[int]:
    """Sampled ids of each turn of one session, drawn from TURN_TOKENS."""
    source = random.Random(session)
    return [source.randint(*TURN_TOKENS) for _ in range(TURNS)]


async def play(sampler: ContinuousSampler, session: int, name: str) -> int:
    """One episode; returns the ids it sampled."""
    source = random.Random(session // GROUP)
    ids = [source.randrange(VOCABULARY) for _ in range(PROMPT)]
    position = 0
    for length in turn_lengths(session):
        request = GenerateRequest(
            session=f"{name}-{session}", group=f"{name}-{session // GROUP}", noise=session, position=position
        )
        completion = await sampler.generate(ids, GenerateSettings(max_tokens=length), request)
        position += len(completion.ids)
        ids = [*ids, *completion.ids.values(), *(source.randrange(VOCABULARY) for _ in range(APPENDED))]
    await sampler.release(f"{name}-{session}")
    return position


def measure_sampler(sessions: int, repeats: int, folder: Path) -> tuple[float, dict[str, float]]:
    """Median sampled ids per second over `repeats` rounds of `sessions` episodes, and the sampler's counters."""

    async def rounds() -> tuple[float, dict[str, float]]:
        build = BuildContext(run_dir=folder)
        policies = [build_tiny_moe(TinyMoeConfig(), build) for _ in range(2)]
        sampler = ContinuousSampler(ContinuousConfig(slots=sessions, context_tokens=512), *policies)
        rates = []
        for number in range(repeats + 1):
            started = time.perf_counter()
            sampled = await asyncio.gather(*(play(sampler, session, str(number)) for session in range(sessions)))
            rates.append(sum(sampled) / (time.perf_counter() - started))
        stats = dict(sampler.stats())
        await sampler.close()
        return statistics.median(rates[1:]), stats

    return asyncio.run(rounds())


def measure_generate(sessions: int, repeats: int) -> float:
    """The peer: per turn one batched `generate` over all sessions' whole contexts."""
    model: Any = Qwen3MoeForCausalLM(qwen3_moe_config(TinyMoeConfig())).eval()
    rates = []
    for _ in range(repeats):
        length, sampled, spent = PROMPT, 0, 0.0
        for turn in range(TURNS):
            new = statistics.mean(turn_lengths(session)[turn] for session in range(sessions))
            ids = torch.randint(0, VOCABULARY, (sessions, length))
            started = time.perf_counter()
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=round(new),
                min_new_tokens=round(new),
                do_sample=True,
                top_k=0,
                pad_token_id=0,
            )
            spent += time.perf_counter() - started
            sampled += sessions * round(new)
            length += round(new) + APPENDED
        rates.append(sampled / spent)
    return statistics.median(rates)


def best_generate(sessions: int, repeats: int, threads: int) -> float:
    """The peer at its better number of threads: one, as the sampler has, or all."""
    rates = []
    for count in sorted({1, threads}):
        torch.set_num_threads(count)
        rates.append(measure_generate(sessions, repeats))
    torch.set_num_threads(threads)
    return max(rates)


def measure_training(tokens: int, repeats: int, folder: Path) -> float:
    """Median forward and backward tokens per second of one padded micro-batch, logits on a third of its tokens."""
    policy = build_tiny_moe(TinyMoeConfig(), BuildContext(run_dir=folder))
    rows, length = tokens // 256, 256
    ids_BT = torch.randint(0, VOCABULARY, (rows, length))
    rates = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        hidden_BTD = policy.trunk(ids_BT, torch.full((rows,), length)).hidden_BTD
        picked_ND = hidden_BTD[:, :-1:3].flatten(0, 1)
        loss = -token_logprobs(policy.logits(picked_ND), ids_BT[:, 1::3].flatten()[: len(picked_ND)]).mean()
        loss.backward()
        policy.zero_grad()
        rates.append(rows * length / (time.perf_counter() - started))
    return statistics.median(rates[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sessions", default="1,16,64,128")
    parser.add_argument("--no-peer", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    logging.set_verbosity_error()
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "")
    print(f"{platform.machine()} {cpu.partition(':')[2].strip()}, {os.cpu_count()} cores, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as name:
        for sessions in [int(text) for text in arguments.sessions.split(",")]:
            rate, stats = measure_sampler(sessions, arguments.repeats, Path(name))
            line = {"sessions": sessions, "sampler_tokens_per_s": round(rate)}
            if not arguments.no_peer:
                peer = best_generate(sessions, max(1, arguments.repeats // 2), arguments.threads)
                line |= {"generate_tokens_per_s": round(peer), "ratio": round(rate / peer, 2)}
            print(json.dumps(line), flush=True)
            print(json.dumps({key: round(value, 2) for key, value in stats.items()}), file=sys.stderr, flush=True)
        for tokens in (1024, 2048, 4096):
            rate = measure_training(tokens, arguments.repeats + 2, Path(name))
            print(json.dumps({"micro_batch_tokens": tokens, "train_tokens_per_s": round(rate)}), flush=True)


if __name__ == "__main__":
    main()
