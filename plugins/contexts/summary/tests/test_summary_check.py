"""`check` proves that a summary always has room, or says by how much it lacks it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from attrs import evolve

from composer_core import RunView
from composer_core.printable import clip
from composer_core.types import Limits
from composer_plugin_summary.check import needs, opens_with, problems
from composer_plugin_summary.config import SummaryConfig, TruncateConfig

LIMITS = Limits(turn_tokens=100, output_chars=50, context_tokens=1000)
CONFIG = SummaryConfig(
    trigger_tokens=500, request="x" * 10, think_tokens=0, summary_tokens=60, tokens_per_char=2, frame_tokens=5
)


def test_the_parts_are_counted_at_their_largest():
    assert dict(needs(CONFIG, LIMITS)) == {"trigger": 499, "turn": 100, "results": 105, "request": 15, "answer": 60}
    assert needs(evolve(CONFIG, results=3), LIMITS)["results"] == 315
    assert needs(evolve(CONFIG, think_tokens=7), LIMITS)["answer"] == 67


def test_a_request_has_no_more_tokens_than_bytes_or_than_is_promised_of_its_characters():
    assert needs(evolve(CONFIG, request="é" * 10, tokens_per_char=4), LIMITS)["request"] == 20 + 5
    assert needs(evolve(CONFIG, request="é" * 10, tokens_per_char=0.25), LIMITS)["request"] == 3 + 5


@pytest.mark.parametrize("output_chars", [1, 20, 39, 100])
def test_no_result_is_longer_than_what_is_counted_for_it(output_chars):
    config = evolve(CONFIG, tokens_per_char=1, frame_tokens=0)
    longest = max(len(clip("x" * size, output_chars)[0]) for size in (1, output_chars, 10**3, 10**6, 10**8))
    assert longest <= needs(config, evolve(LIMITS, output_chars=output_chars))["results"]


def test_a_truncated_branch_begins_with_the_turns_that_are_kept():
    config = TruncateConfig(trigger_tokens=500, tokens_per_char=1, frame_tokens=0, keep_turns=2)
    assert opens_with(config, LIMITS) == 2 * 150
    assert dict(needs(config, LIMITS)) == {"trigger": 499, "turn": 100, "results": 50, "room for another token": 1}


def told(config, stages=(), **limits):
    """Problems of a run with these limits."""
    choices = [SimpleNamespace(stage=SimpleNamespace(name=name, kind=kind)) for name, kind in stages]
    run = RunView(SimpleNamespace(limits=limits, stages=choices), {})
    return [problem.message for problem in problems(config, run)]


def test_the_sum_may_be_the_window_and_not_a_token_more():
    given = {"turn_tokens": 100, "output_chars": 50}
    total = 499 + 100 + 105 + 15 + 60
    assert told(CONFIG, context_tokens=total, **given) == []
    (message,) = told(CONFIG, context_tokens=total - 1, **given)
    assert "trigger 499 + turn 100 + results 105 + request 15 + answer 60 = 779 tokens" in message


def test_limits_that_tasks_could_set_must_be_stated():
    (message,) = told(CONFIG, context_tokens=1000)
    assert message.startswith("turn_tokens and output_chars must be stated")


def test_a_branch_that_would_open_at_its_trigger_is_refused():
    given = {"context_tokens": 10**6, "turn_tokens": 100, "output_chars": 50}
    (message,) = told(evolve(CONFIG, summary_tokens=495), **given)
    assert "a new branch may begin with 500 tokens" in message


def test_only_stages_with_episodes_can_be_untrained():
    given = {"context_tokens": 1000, "turn_tokens": 100, "output_chars": 50}
    stages = (("text", "pretrain"), ("copy", "sft"), ("rl", "rl"))
    assert told(evolve(CONFIG, untrained_in=("rl", "copy")), stages, **given) == []
    assert told(evolve(CONFIG, untrained_in=("text",)), stages, **given) == ["no stage 'text' has episodes"]


def test_check_ends_with_2_and_says_what_to_change():
    limits = ["limits.context_tokens=6000", "limits.turn_tokens=200", "limits.output_chars=500"]
    settings = ["context.use='summary/self'", "context.trigger_tokens=4000", *limits]
    words = [word for setting in settings for word in ("--set", setting)]
    run = Path(__file__).parents[4] / "examples/fakes/run.toml"
    argv = [sys.executable, "-m", "composer_core.cli", "--plugins", "summary", "check", str(run), *words]
    failed = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert failed.returncode == 2
    assert "the window (limits.context_tokens) has 6,000 (fix: trigger_tokens = " in failed.stderr
