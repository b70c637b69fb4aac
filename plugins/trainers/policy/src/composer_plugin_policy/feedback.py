"""Text feedback: the policy, told what would have helped, teaches the policy that was not told.

Legend: N sampled tokens of hinted turns in a micro-batch, V vocabulary.

A reward may say of a turn what would have helped there (`Score.hints`). Its text is put into the turn's context as a
user's message, just before the turn: what the policy makes of that context at the turn's own tokens is the teacher, and
what it makes of the context without the hint is the student. Added to the loss is

    feedback x sum over the turn's N positions of KL(teacher || student)  /  (E x L0)
    KL(teacher || student) = sum over V of p_t (log p_t - log p_s),   p_t detached

Forward KL: the student is to hold likely whatever the teacher does. The tokens are those that were sampled, a mistake
included; the teacher's distribution over them is what is learned, so nothing new is sampled, and groups in which all
failed teach as well. Both distributions are of the policy being trained, at the temperature that was sampled at. The
student replays its expert ids where there are any, the teacher's context has none.

Source: the announcement of Composer 2.5 (cursor.com/blog/composer-2-5, 2026-05-18) describes it; direction of the KL
and weight are not published there and are our choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from attrs import evolve, frozen

from composer_core.columns import Column
from composer_core.protocols import Renderer
from composer_core.types import Message, TrainSequence
from composer_plugin_policy.batching import MicroBatch, Row, cut, make_rows
from composer_plugin_policy.scoring import forward


@frozen(eq=False)
class Lesson:
    """One turn, without its hint and with it; as many trained positions in both."""

    student: Row
    teacher: Row


def lessons(sequences: Iterable[TrainSequence], renderer: Renderer) -> tuple[Lesson, ...]:
    """One for each turn that has hints and tokens of the policy's own."""
    students, teachers = [], []
    for sequence in sequences:
        for (start, stop), text in _said(sequence).items():
            hint = renderer.request(Message("user", text), False)  # the turn that was begun is closed, and empty
            ids, flags = list(sequence.ids.values()), list(sequence.trained.values())[start:stop]
            if start > 0 and any(flags):
                students.append(_row(sequence, ids[:stop], flags))
                teachers.append(evolve(_row(sequence, [*ids[:start], *hint, *ids[start:stop]], flags), routes=None))
    return tuple(map(Lesson, make_rows(students), make_rows(teachers)))


def _said(sequence: TrainSequence) -> Mapping[tuple[int, int], str]:
    """Turn -> all that was said of it."""
    found: dict[tuple[int, int], str] = {}
    for hint in sequence.hints:
        before = found.get((hint.start, hint.stop))
        found[hint.start, hint.stop] = hint.text if before is None else f"{before}\n{hint.text}"
    return found


def _row(sequence: TrainSequence, ids: list[int], flags: list[int]) -> TrainSequence:
    """The ids, of which the last few are a turn."""
    trained = Column.of("U8", [0] * (len(ids) - len(flags)) + flags)
    return evolve(sequence, ids=Column.of("I32", ids), trained=trained, behavior=None, comparable=None, hints=())


def in_batches(
    found: Iterable[Lesson], budget_tokens: int, *, in_order: bool
) -> Iterator[tuple[tuple[Row, ...], tuple[Row, ...]]]:
    """(students, teachers) of micro-batches, in the same order; students are within the budget."""
    teachers = {lesson.student.index: lesson.teacher for lesson in found}
    for students in cut([lesson.student for lesson in found], budget_tokens, in_order=in_order):
        yield students, tuple(teachers[row.index] for row in students)


def distance(model: Any, student: MicroBatch, teacher: MicroBatch, tau: float) -> torch.Tensor:
    """How far the student is from its teacher at each position, [N]; differentiable in the student alone."""
    with torch.no_grad():
        teacher_NV, _ = forward(model, teacher)
    student_NV, _ = forward(model, student, tau)
    return divergence(teacher_NV, student_NV, student.temperature)


def divergence(teacher_NV: torch.Tensor, student_NV: torch.Tensor, temperature: float) -> torch.Tensor:
    """KL(teacher || student) of logits, in nats, [N]; tokens that cannot be drawn count 0."""
    teacher_NV, student_NV = (
        torch.log_softmax(logits_NV.float() / temperature, dim=-1).clamp(min=torch.finfo(torch.float32).min)
        for logits_NV in (teacher_NV.detach(), student_NV)
    )
    return (teacher_NV.exp() * (teacher_NV - student_NV)).sum(-1)
