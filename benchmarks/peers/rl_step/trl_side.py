"""TRL's side of the step benchmark; runs in an environment that holds trl and nothing of this project.

    python trl_side.py template JOB     the chat template both sides render with
    python trl_side.py run JOB          some steps of GRPOTrainer; one JSON line of figures on stdout

The trainer is used as its documentation shows: a dataset of prompts, an `environment_factory` whose method is the tool,
a reward function. What is scripted (see workload.py) enters at two places: `generate` gets a logits processor that
closes each row at its turn's length, and what the trainer's parser found is replaced by the scripted call. Gradient
checkpointing, bf16, checkpoints and reports are off: each costs the peer time that ours does not spend either.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from transformers import AutoTokenizer, LogitsProcessor, LogitsProcessorList, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import grpo_trainer
from workload import Workload, arguments, is_call, result

TEMPLATE = "chat_templates/qwen3_instruct_2507.jinja"
"""A template that the trainer can parse calls of, and that never rewrites history."""


class Closing(LogitsProcessor):
    """Row i samples `lengths[i]` ids, of which the last is the closing tag; never that tag before."""

    def __init__(self, lengths: list[int], prompt: int, tag: int) -> None:
        self._last_B = torch.tensor(lengths) - 1
        self._prompt, self._tag = prompt, tag

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        closing_B = self._last_B == input_ids.shape[1] - self._prompt
        tag_B = torch.where(closing_B, scores[:, self._tag], -torch.inf)
        scores = scores.masked_fill(closing_B[:, None], -torch.inf)
        scores[:, self._tag] = tag_B
        return scores


class Script:
    """Whose turn it is: rows come to `generate` in the order of the batch, those that have ended left out."""

    def __init__(self, workload: Workload, tag: int) -> None:
        self._workload, self._tag = workload, tag
        self._rows: list[list[int]] = []
        self._turn = 0

    def begin(self, inputs: list[dict[str, Any]]) -> None:
        """A generation batch: each task's row repeated for the members of its group."""
        size = self._workload.group_size
        self._rows = [self._workload.turn_lengths(row["task"], at % size) for at, row in enumerate(inputs)]
        self._turn = 0

    def generate(self, original: Callable[..., Any], **given: Any) -> Any:
        lengths = [row[self._turn] for row in self._rows if len(row) > self._turn]
        ids = given["input_ids"]
        if len(lengths) != len(ids):
            raise SystemExit(f"turn {self._turn}: {len(ids)} rows are generated, the script has {len(lengths)}")
        self._turn += 1
        closing = LogitsProcessorList([Closing(lengths, ids.shape[1], self._tag)])
        return original(**given, logits_processor=closing)


def scripted(parse: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The trainer's parser, its calls replaced by the script's."""

    def parsed(tokenizer: Any, ids: list[int], **rest: Any) -> dict[str, Any]:
        found = parse(tokenizer, ids, **rest)
        found.pop("tool_calls", None)
        if is_call(len(ids)):
            found["tool_calls"] = [{"type": "function", "function": {"name": "look", "arguments": arguments(len(ids))}}]
        return found

    return parsed


def environment(delay_s: float) -> type:
    """A class as `environment_factory` takes it; its public method is the tool."""

    class Workspace:
        def reset(self, **_row: Any) -> None:
            """Begin an episode."""

        def look(self, path: str):  # a return type would be told in the prompt, and make it longer than ours
            """Show a file of the workspace.

            Args:
                path: The path of the file.
            """
            if delay_s:
                time.sleep(delay_s)
            return result(path)

    return Workspace


class TimedTrainer(GRPOTrainer):
    """Notes how long rollouts take and what is in them; adds nothing else."""

    def __init__(self, script: Script, **given: Any) -> None:
        super().__init__(**given)
        self.script = script
        self.rollout_s = 0.0
        self.rows: list[dict[str, int]] = []

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        started = time.perf_counter()
        self.script.begin(inputs)
        output = super()._generate_and_score_completions(inputs)
        self.rollout_s += time.perf_counter() - started
        mask = output["completion_mask"]
        sampled = (mask * output["tool_mask"]).sum(1).tolist()
        for prompt, whole, own in zip(
            output["prompt_mask"].sum(1).tolist(), mask.sum(1).tolist(), sampled, strict=True
        ):
            self.rows.append({"prompt": prompt, "sampled": own, "appended": whole - own})
        return output


class Clock(TrainerCallback):
    """Times of whole steps, end to end."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.steps: list[dict[str, Any]] = []
        self._last = 0.0

    def on_train_begin(self, *_given: Any, **_rest: Any) -> None:
        self._last = time.perf_counter()

    def on_step_end(self, *_given: Any, **_rest: Any) -> None:
        now = time.perf_counter()
        rollout_s, self.trainer.rollout_s = self.trainer.rollout_s, 0.0
        rows, self.trainer.rows = self.trainer.rows, []
        self.steps.append({"step_s": now - self._last, "rollout_s": rollout_s, "rows": rows})
        self._last = time.perf_counter()


def trainer_for(job: dict[str, Any], workload: Workload, clock: Clock) -> TimedTrainer:
    tokenizer = AutoTokenizer.from_pretrained(job["model"], padding_side="left")
    settings = GRPOConfig(
        output_dir=job["cache"],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=job["rows"],
        gradient_accumulation_steps=job["parts"],
        generation_batch_size=job["generation"],
        num_generations=workload.group_size,
        max_completion_length=job["completion_tokens"],
        max_steps=job["steps"],
        loss_type="dr_grpo",
        scale_rewards="none",
        beta=0.0,
        router_aux_loss_coef=0.0,
        learning_rate=job["learning_rate"],
        lr_scheduler_type="constant",
        shuffle_dataset=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=1,
    )
    rows = [{"prompt": [{"role": "user", "content": workload.prompt(n)}], "task": n} for n in range(workload.groups)]

    def spread(completions: list[Any], **_rest: Any) -> list[float]:
        return [workload.reward(at % workload.group_size) for at in range(len(completions))]

    return TimedTrainer(
        script=Script(workload, tokenizer.eos_token_id),
        model=job["model"],
        processing_class=tokenizer,
        reward_funcs=spread,
        args=settings,
        train_dataset=Dataset.from_list(rows),
        environment_factory=environment(job["tool_ms"] / 1e3),
        callbacks=[clock],
    )


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train `steps` steps and report them."""
    torch.set_num_threads(job["threads"])
    workload, clock = Workload(**job["workload"]), Clock()
    grpo_trainer.parse_response = scripted(grpo_trainer.parse_response)
    trainer = clock.trainer = trainer_for(job, workload, clock)
    original = trainer.model.generate
    trainer.model.generate = lambda **given: trainer.script.generate(original, **given)
    trainer.train()
    return {
        **figures(clock.steps, trainer, workload),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "versions": {"trl": trl.__version__, "torch": torch.__version__, "transformers": transformers.__version__},
        "experts": trainer.model.config._experts_implementation,
    }


def figures(steps: list[dict[str, Any]], trainer: TimedTrainer, workload: Workload) -> dict[str, Any]:
    rows = [row for step in steps for row in step["rows"]]
    lengths = [workload.turn_lengths(n, m) for n in range(workload.groups) for m in range(workload.group_size)]
    return {
        "step_s": [step["step_s"] for step in steps],
        "rollout_s": [step["rollout_s"] for step in steps],
        "update_s": [step["step_s"] - step["rollout_s"] for step in steps],
        "sampled_tokens": [sum(row["sampled"] for row in step["rows"]) for step in steps],
        "grad_norm": [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry],
        "an_episode": {
            "turns": statistics.mean(len(episode) for episode in lengths),
            **{f"{key}_ids": statistics.mean(row[key] for row in rows) for key in ("prompt", "sampled", "appended")},
        },
    }


if __name__ == "__main__":
    if sys.argv[1] == "template":
        print(json.dumps({"template": files("trl").joinpath(TEMPLATE).read_text(encoding="utf-8")}))
    else:
        print(json.dumps(run(json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))), flush=True)
