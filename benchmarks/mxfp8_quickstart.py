"""What MXFP8's plain torch costs on a CPU in the quickstart: a step of the trainer and one of decoding, beside fp32.

The model is the quickstart's (`hf/tiny-moe`). A step is forward, backward, clipping and AdamW over one micro-batch of
2000 tokens; decoding is one token for each of 96 rows, or of 1, behind 160 others. Both precisions are measured in
turns in one process, and the median of each counts. A ratio of 0.5 is twice the time.

    python benchmarks/mxfp8_quickstart.py [--threads 2] [--repeats 15]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from results import Results, Row, medians, parser, seconds, versions_of

from composer_core import BuildContext
from composer_core.tensors import token_logprobs
from composer_plugin_hf.config import ExpertsConfig, TinyMoeConfig
from composer_plugin_hf.presets import build_tiny_moe
from composer_plugin_mxfp8.config import MXFP8Config
from composer_plugin_mxfp8.factory import build

ROWS, TOKENS = 16, 125
PAST = 160


def policy(kernel: Any = None) -> Any:
    """The quickstart's model, with its own experts or with `kernel`."""
    context = BuildContext(Path(), seed=1, get=lambda _kind: kernel)
    return build_tiny_moe(TinyMoeConfig(experts=ExpertsConfig("mxfp8/experts" if kernel else None)), context)


def training(model: Any, rows: int) -> Callable[[], None]:
    """One step of the trainer."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0)
    ids_BT = torch.randint(1024, (rows, TOKENS), generator=torch.Generator().manual_seed(0))
    lengths_B = torch.full((rows,), TOKENS)

    def step() -> None:
        hidden_ND = model.trunk(ids_BT, lengths_B).hidden_BTD[:, :-1].flatten(0, 1)
        loss = -token_logprobs(model.logits(hidden_ND), ids_BT[:, 1:].flatten()).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def decoding(model: Any, rows: int) -> Callable[[], None]:
    """One token for each row."""
    cache = model.new_cache(rows, PAST + 8)
    slots_B, one_B = torch.arange(rows), torch.ones(rows, dtype=torch.int64)
    ids_BT = torch.randint(1024, (rows, PAST + 1), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        model.trunk(ids_BT[:, :PAST], one_B * PAST, cache=cache, slots_B=slots_B, past_B=one_B * 0)

    def step() -> None:
        with torch.inference_mode():
            out = model.trunk(ids_BT[:, PAST:], one_B, cache=cache, slots_B=slots_B, past_B=one_B * PAST)
            model.logits(out.hidden_BTD[:, 0])

    return step


def compared(calls: list[Callable[[], None]], repeats: int) -> tuple[float, float]:
    """Median milliseconds of each, taken in turns, after up to three turns to warm up."""
    acts = {str(number): lambda call=call: seconds(call) * 1e3 for number, call in enumerate(calls)}
    medians(acts, min(3, repeats))
    ours, theirs = medians(acts, repeats).values()
    return ours, theirs


def main() -> int:
    """Three rows: a trainer's step with all threads, decoding on one, as the sampler does."""
    options = parser(__doc__)
    options.add_argument("--threads", type=int, default=2, help="of the trainer's step")
    options.add_argument("--repeats", type=int, default=15)
    given = options.parse_args()
    torch.set_num_threads(1)
    models = policy(build(MXFP8Config(), BuildContext(Path()))), policy()
    many, threads, repeats = (4, 1, 1) if given.quick else (96, given.threads, given.repeats)
    batch = 1 if given.quick else ROWS
    step, half, third = f"trainer's step, {batch * TOKENS} tokens", "ratio >= 0.5", "ratio >= 0.333"
    cases = {
        f"{step}, threads: {threads}": (threads, [training(model, batch) for model in models], repeats, half),
        f"decoding, {many} rows": (1, [decoding(model, many) for model in models], 10 * repeats, third),
        "decoding, 1 row": (1, [decoding(model, 1) for model in models], 10 * repeats, third),
    }
    rows = []
    for what, (threads, calls, count, target) in cases.items():
        torch.set_num_threads(threads)
        ours, theirs = compared(calls, count)
        rows.append(Row(what, ours, "ms", theirs, "fp32 experts of hf", target))
    title = "MXFP8 in plain torch on a CPU, in the quickstart's model"
    return Results("mxfp8_quickstart", title, rows, versions=versions_of("torch", "composer-plugin-mxfp8")).finish(
        given
    )


if __name__ == "__main__":
    sys.exit(main())
