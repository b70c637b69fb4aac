"""Our side of the step benchmark, in a process of its own: `train` of composer-run over run.toml.

    python composer_side.py prepare JOB     model folder with tokenizer, as both sides load it
    python composer_side.py run JOB         some steps of the run; one JSON line of figures on stdout

JOB is the JSON that benchmarks/rl_step.py writes. Nothing here takes part in a step: figures are read from the events
and traces that every run writes.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import scripted
import torch
import transformers
from workload import SOURCE, Workload

from composer_core.commands.train import train
from composer_core.config import load
from composer_core.plugins import Candidate, Plugins, select
from composer_core.protocols import BuildContext
from composer_core.rundir import RunDir
from composer_core.traces import decode
from composer_core.tracking import read_events
from composer_plugin_hf import tokenizer
from composer_plugin_hf.checkpoints import save_checkpoint
from composer_plugin_hf.config import TinyMoeConfig
from composer_plugin_hf.presets import build_tiny_moe
from composer_plugin_hf.renderers.config import HERMES_TOKENS

HERE = Path(__file__).resolve().parent
LIBRARY = HERE.parents[2] / "plugins/tasks/drills/src/composer_plugin_drills/library"
PAD = "<|endoftext|>"


def prepare(job: dict[str, Any]) -> None:
    """Write the tiny mixture of experts with random weights, and a tokenizer trained on this project's own Python."""
    folder, shape = Path(job["model"]), TinyMoeConfig()
    template = job["template"]
    texts = [path.read_text(encoding="utf-8") for path in sorted(LIBRARY.glob("*.py"))]
    words = [*texts, *[template or "", Workload().prompt(0), SOURCE] * 4]
    trained = tokenizer.train(words, shape.vocab_size, (*HERMES_TOKENS, PAD))
    trained.save(folder)
    loader = {**tokenizer.LOADER, "eos_token": "<|im_end|>", "pad_token": PAD}
    complete = tokenizer.HfTokenizer((folder / tokenizer.FILE).read_bytes(), json.dumps(loader).encode(), template)
    save_checkpoint(build_tiny_moe(shape, BuildContext(folder, seed=1)), complete, folder)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train `steps` steps in a fresh folder and read its figures back."""
    workload = Workload(**job["workload"])
    with tempfile.TemporaryDirectory() as name:
        config = load(HERE / "run.toml", overrides(job, workload))
        plugins = Plugins().load(select(config.plugins))
        plugins.register(Candidate("scripted", "scripted", "benchmarks", "0"), scripted)
        asyncio.run(train(config, plugins, RunDir(Path(name))))
        return {
            **figures(Path(name), workload),
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        }


def overrides(job: dict[str, Any], workload: Workload) -> list[str]:
    """The run file's keys that the job decides."""
    values = {
        "threads": job["threads"],
        "model.path": job["model"],
        "sampler.slots": workload.episodes,
        "rewards[0].group_size": workload.group_size,
        'tools.settings."scripted/look".delay_ms': float(job["tool_ms"]),
        "stages.rl.steps": job["steps"],
        "stages.rl.groups_per_step": workload.groups,
        "stages.rl.group_size": workload.group_size,
        "stages.rl.learning_rate": job["learning_rate"],
        "stages.rl.loss_scale_tokens": float(job["completion_tokens"]),
        "stages.rl.max_staleness": job["max_staleness"],
        **{f"tasks.{key}": value for key, value in job["workload"].items()},
    }
    return [*(f"{key}={json.dumps(value)}" for key, value in values.items()), *job["overrides"]]


def figures(folder: Path, workload: Workload) -> dict[str, Any]:
    """Times of each step from its event, counts from the traces."""
    metrics = [record["metrics"] for record in read_events(folder) if record["event"] == "StepEnded"]
    traces = [decode(path.read_bytes()) for path in sorted((folder / "traces").glob("*.trace"))]
    prompts = [trace.turns[0].start for trace in traces]
    sampled = [trace.sampled_tokens() for trace in traces]
    whole = [len(trace.branches[0]) for trace in traces]
    if any(row["void_share"] or row["skipped"] for row in metrics):
        raise SystemExit("an episode was void or a step was skipped: the figures would be of less work")
    return {
        "step_s": [row["step_s"] for row in metrics],
        "update_s": [row["train_s"] for row in metrics],
        "rollout_s": [row["step_s"] - row["train_s"] for row in metrics],
        "sampled_tokens": [round(row["tokens_mean"] * workload.episodes) for row in metrics],
        "grad_norm": [row["grad_norm"] for row in metrics],
        "staleness_max": [row["staleness_max"] for row in metrics],
        "an_episode": {
            "turns": statistics.mean(len(trace.turns) for trace in traces),
            "prompt_ids": statistics.mean(prompts),
            "sampled_ids": statistics.mean(sampled),
            "appended_ids": statistics.mean(w - p - s for w, p, s in zip(whole, prompts, sampled, strict=True)),
        },
    }


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    if sys.argv[1] == "prepare":
        prepare(given)
    else:
        print(json.dumps(run(given)), flush=True)
