"""`rubric`: one question about the work, answered by a judge."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from composer_core import TaskView, Trace
from composer_core.diffs import unified
from composer_core.printable import clip
from composer_core.types import Score
from composer_plugin_behavior.answers import Answer
from composer_plugin_behavior.config import RubricConfig
from composer_plugin_behavior.gate import NOT_SOLVED, score
from composer_plugin_behavior.judge import ask, key_of, request_of
from composer_plugin_behavior.reading import final_message


async def rubric(group: Sequence[Trace], task: TaskView, config: RubricConfig) -> list[Score]:
    """The judge's grade for one aspect, divided by its largest; 0 without asking where the task was not solved.

    The judge is shown the task's prompt, the diff and the final message (both cut in their middle), and nothing that
    tells how others did. It is asked at temperature 0 and once for equal work; several aspects are several rewards of
    a run. Work that it refuses, or answers without a grade, gets 0 if it grades a control question; otherwise the judge
    is what failed, and the group is void.

    Source: one rubric for each judge is the advice of D. Dzhulgakov (Sequoia, "Training Data", 2026-05-26); rubrics
    grounded in the repository: "Agentic Rubrics" (arXiv 2601.04171).
    """
    bodies = {}
    for at, trace in enumerate(group):
        if trace.verdict.solved:
            bodies[at] = request_of(material_of(trace, task, config), config)
    unique = {key_of(body, config.url): body for body in bodies.values()}
    gate = asyncio.Semaphore(config.at_once)
    asked = await asyncio.gather(*(_answer(gate, body, config) for body in unique.values()))
    known = dict(zip(unique, asked, strict=True))
    found = {at: known[key_of(body, config.url)] for at, body in bodies.items()}
    return [
        score(found[at].value, {}, f"{config.aspect} {found[at].reason}") if at in found else score(0.0, {}, NOT_SOLVED)
        for at in range(len(group))
    ]


async def _answer(gate: asyncio.Semaphore, body: dict[str, object], config: RubricConfig) -> Answer:
    async with gate:
        return await asyncio.to_thread(ask, body, config)


def material_of(trace: Trace, task: TaskView, config: RubricConfig) -> dict[str, str]:
    """What the judge is shown."""
    diff, _ = clip(unified(trace.originals, trace.patch, trace.originals_whole), config.max_chars)
    message, _ = clip(final_message(trace), config.max_chars)
    return {"task": task.prompt, "diff": diff, "final message": message}
