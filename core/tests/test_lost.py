"""An episode whose process vanished is asked for again, outside the RL loop as within, and not for ever."""

import asyncio

import pytest

from composer_core.events import EpisodeEnded, FaultRecorded
from composer_core.pipeline import LOSSES, Pipeline
from composer_core.trees import Tree
from composer_core.types import EpisodeRequest, EpisodeResult, Fault, GradingRef, Outcome, SlotKey, TaskView, Verdict

KEY = SlotKey("task", 0, "sft")
REQUEST = EpisodeRequest(KEY, "sft:0", TaskView("task", "do it", Tree.of({}).ref), GradingRef("fakes/none", "task"))
SOLVED = EpisodeResult(KEY, "sft:0", None, Verdict(Outcome.SOLVED))
LOST = EpisodeResult(
    KEY, "sft:0", None, Verdict(Outcome.VOID, "lost"), faults=(Fault("lost", "ray/ray", "process worker-0.0 is gone"),)
)
BROKEN = EpisodeResult(KEY, "sft:0", None, Verdict(Outcome.VOID, "sandbox"))


class Vanishing:
    """An executor whose first episodes end so."""

    def __init__(self, *results):
        self.results = list(results)

    async def submit(self, request):
        assert request is REQUEST, "the same attempt, with the same noise"
        return self.results.pop(0)


def attempt(executor):
    events = []
    pipeline = Pipeline(assembly=None, run_dir=None, emit=events.append)
    pipeline._executor = executor
    return asyncio.run(pipeline._attempt(REQUEST, "sft")), events


def test_a_lost_demonstration_is_asked_for_again_and_each_end_is_told():
    result, events = attempt(Vanishing(LOST, LOST, SOLVED))
    assert result is SOLVED
    assert [type(event) for event in events] == [EpisodeEnded, FaultRecorded] * 2 + [EpisodeEnded]


def test_it_is_not_asked_for_without_end():
    executor = Vanishing(*[LOST] * 100)
    result, _ = attempt(executor)
    assert result is LOST
    assert len(executor.results) == 100 - 1 - LOSSES


@pytest.mark.parametrize("ended", [SOLVED, BROKEN])
def test_what_ended_in_another_way_is_not_asked_for_again_here(ended):
    executor = Vanishing(ended, SOLVED)
    assert attempt(executor)[0] is ended
    assert len(executor.results) == 1
