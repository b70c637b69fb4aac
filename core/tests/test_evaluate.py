"""Evaluation sets of one moment: shared attempts, and what a failure does to them."""

import asyncio
from typing import Any

import pytest

from composer_core.config import EvaluationSet
from composer_core.errors import ConfigError, StoreError
from composer_core.evaluate import evaluate
from composer_core.trees import TreeRef
from composer_core.types import (
    EpisodeRequest,
    EpisodeResult,
    GradingRef,
    Outcome,
    Task,
    TaskView,
    Verdict,
)

TASKS = [
    Task(TaskView(id=f"t{number}", prompt="", workspace=TreeRef("0" * 64)), GradingRef("tests", "t"), "dev")
    for number in range(6)
]
WIDE = EvaluationSet(name="wide", split="dev", tasks=6, attempts=2)
DEEP = EvaluationSet(name="deep", split="dev", tasks=2, attempts=5)
GREEDY = EvaluationSet(name="greedy", split="dev", tasks=6, attempts=1, temperature=0.0)


def run_sets(run: Any, *sets: EvaluationSet) -> Any:
    return asyncio.run(evaluate(sets, "after", lambda split: TASKS, run, 1, {}))


def test_sets_share_the_attempts_they_have_in_common() -> None:
    asked: list[tuple[str, str]] = []

    async def run(request: EpisodeRequest, purpose: str) -> EpisodeResult:
        asked.append((request.key.episode_id, purpose))
        outcome = Outcome.SOLVED if request.key.attempt % 2 else Outcome.FAILED
        return EpisodeResult(request.key, request.group, None, Verdict(outcome))

    wide, deep, greedy = run_sets(run, WIDE, DEEP, GREEDY)
    assert len({name for name, _ in asked}) == len(asked) == 6 * 2 + 2 * 3 + 6
    assert [one.metrics["episodes"] for one in (wide, deep, greedy)] == [12, 10, 6]
    assert deep.rows == {"t0": [0, 1, 0, 1, 0], "t1": [0, 1, 0, 1, 0]}
    assert sum(purpose == "after/deep" for _, purpose in asked) == 6


def test_the_error_of_one_attempt_is_what_ends_the_evaluation() -> None:
    """Not the cancellation of others that waited for the same attempts."""
    ended: list[str] = []

    async def run(request: EpisodeRequest, purpose: str) -> EpisodeResult:
        if request.key.attempt == 4:
            raise StoreError("the disk is full")
        try:
            await asyncio.sleep(30)
        finally:
            ended.append(request.key.episode_id)
        raise AssertionError

    with pytest.raises(StoreError, match="disk is full"):
        run_sets(run, WIDE, DEEP)
    assert len(ended) == 6 * 2 + 2 * 2


def test_a_split_that_is_too_small_is_refused_before_anything_runs() -> None:
    async def run(request: EpisodeRequest, purpose: str) -> EpisodeResult:
        raise AssertionError

    with pytest.raises(ConfigError, match="split 'dev' has 6 tasks"):
        run_sets(run, EvaluationSet(name="large", split="dev", tasks=7))


def test_a_void_attempt_is_made_again_with_the_same_noise_and_only_then_reported() -> None:
    made: list[EpisodeRequest] = []

    async def run(request: EpisodeRequest, purpose: str) -> EpisodeResult:
        made.append(request)
        tries = sum(other.key == request.key for other in made)
        broken = request.key.task_id == "t0" or (request.key.task_id == "t1" and tries < 3)
        verdict = Verdict(Outcome.VOID, "sandbox") if broken else Verdict(Outcome.SOLVED)
        return EpisodeResult(request.key, request.group, None, verdict)

    (greedy,) = run_sets(run, GREEDY)
    assert len(made) == 4 + 2 * 3
    assert greedy.metrics["voids"] == 1 and greedy.metrics["episodes"] == 5
    assert greedy.rows == {f"t{n}": [1] for n in range(1, 6)}
    assert greedy.metrics["solve_rate"] == 1.0
    assert len({request.key.noise(1) for request in made}) == 6


def test_an_evaluation_without_a_valid_attempt_has_no_rate() -> None:
    async def run(request: EpisodeRequest, purpose: str) -> EpisodeResult:
        return EpisodeResult(request.key, request.group, None, Verdict(Outcome.VOID, "grader"))

    (greedy,) = run_sets(run, GREEDY)
    assert greedy.rows == {}
    assert greedy.metrics == {"episodes": 0.0, "voids": 6.0}
