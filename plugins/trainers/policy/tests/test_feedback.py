"""Text feedback: what a hint is worth, by hand and through the engine, and that without it nothing changes."""

from __future__ import annotations

import math

import pytest
import torch
from attrs import evolve
from torch import nn

from composer_core.columns import Column
from composer_core.protocols import BuildContext
from composer_core.tensors import PolicyOutput, to_tensor
from composer_core.types import GroupRewards, Hint, TrainBatch, TrainSequence
from composer_plugin_policy.config import PolicyTrainerConfig, StageSettings
from composer_plugin_policy.engine import Engine
from composer_plugin_policy.feedback import divergence, in_batches, lessons
from composer_testing.fakes.policy import TinyPolicy

HINT = 3
RL = StageSettings(gradient_clip=0, loss_scale_tokens=50, learning_rate=1e-9)


class Renderer:
    """Puts a hint into the context as as many ids `HINT` as it has words."""

    def __init__(self):
        self.asked = []

    def request(self, message, ended):
        self.asked.append((message.role, message.text, ended))
        return [HINT] * len(message.text.split())


class Counting(nn.Module):
    """Logits are `plain` plus `told` for each hint so far: what a hint does to it is known by hand."""

    vocab_size, routes = 4, None

    def __init__(self):
        super().__init__()
        self.plain = nn.Parameter(torch.tensor([0.5, 0.25, 0.125, 0.125]).log())
        self.told = nn.Parameter(torch.tensor([0.5, 2.0, 1.0, 1.0]).log())
        self.calls = 0

    def trunk(self, ids_BT, lengths_B, **_):
        self.calls += 1
        hints_BT = (ids_BT == HINT).cumsum(-1).float()
        return PolicyOutput(torch.stack([torch.ones_like(hints_BT), hints_BT], -1), None, None)

    def logits(self, hidden_ND):
        return hidden_ND @ torch.stack([self.plain, self.told])


def rows(**fields):
    """Two episodes of a flat group; two turns of the first, of which the second has a hint."""
    first = TrainSequence(
        ids=Column.of("I32", [0, 1, 0, 2, 1, 0, 2]),
        trained=Column.of("U8", [0, 0, 1, 0, 1, 1, 0]),
        behavior=Column.of("F32", [0.0] * 7),
        hints=(Hint(4, 6, "look"),),
    )
    second = evolve(first, episode=1, hints=())
    return TrainBatch(
        stage="s",
        objective="policy/dr_grpo",
        sequences=(evolve(first, **fields), second),
        episodes=2,
        groups=(GroupRewards("g", (0, 1), (1.0, 1.0)),),
    )


@pytest.fixture
def trained(tmp_path, algorithm):
    """`trained(batch, feedback=..., model=...)`: metrics of one step, the model, and the renderer that was asked."""
    made = []

    def step(batch, model=None, deterministic=False, **settings):
        model, renderer = model or Counting(), Renderer()
        parts = {"policy": lambda: model, "algorithms": algorithm, "renderers": lambda: renderer}
        build = BuildContext(
            tmp_path, deterministic=deterministic, get=lambda kind: parts[kind](), settings={"threads": 1}
        )
        engine = Engine(PolicyTrainerConfig(), build)
        made.append(engine)
        engine.begin("rl", evolve(RL, **settings))
        return engine.step(batch).metrics, model, renderer

    yield step
    for engine in made:
        engine.close()


def test_the_divergence_is_that_of_the_formula_and_points_from_the_teacher():
    teacher, student = torch.tensor([[0.25, 0.75]]).log(), torch.tensor([[0.5, 0.5]]).log().requires_grad_()
    kl_N = divergence(teacher, student, 1.0)
    assert kl_N.tolist() == pytest.approx([0.25 * math.log(0.5) + 0.75 * math.log(1.5)])
    kl_N.sum().backward()
    assert student.grad.tolist()[0] == pytest.approx([0.5 - 0.25, 0.5 - 0.75])
    assert divergence(student, student, 1.0).tolist() == [0.0]


def test_tokens_that_cannot_be_drawn_and_the_temperature_are_taken_into_account():
    teacher, student = torch.tensor([[0.0, math.log(4.0), -math.inf]]), torch.tensor([[0.0, 0.0, -math.inf]])
    assert divergence(teacher, student, 2.0).item() == pytest.approx(math.log(2 / 3) / 3 + 2 * math.log(4 / 3) / 3)


def test_the_loss_and_gradient_of_a_hint_are_those_by_hand(trained):
    """Untold p_s = (1/2, 1/4, 1/8, 1/8), told p_t = (1/4, 1/2, 1/8, 1/8): KL = ln 2 / 4 at each of the 2 tokens."""
    metrics, model, renderer = trained(rows(), feedback=0.5)
    scale = 0.5 / (2 * 50)
    assert renderer.asked == [("user", "look", False)], "what precedes a turn ends with its beginning"
    assert metrics["loss"] == pytest.approx(scale * 2 * math.log(2) / 4)
    assert (metrics["feedback_kl"], metrics["feedback_turns"]) == (pytest.approx(math.log(2) / 4), 1)
    assert model.plain.grad.tolist() == pytest.approx([scale * 2 * 0.25, -scale * 2 * 0.25, 0.0, 0.0], abs=1e-9)
    assert model.told.grad.abs().max() == 0, "the teacher is held still, and the student was told nothing"
    assert not metrics["skipped"]


def test_it_is_off_unless_asked_for(trained):
    metrics, model, renderer = trained(rows())
    assert (renderer.asked, model.calls) == ([], 0)
    assert "feedback_kl" not in metrics


def test_several_hints_of_one_turn_make_one_teacher_and_hints_of_what_was_not_sampled_make_none(trained):
    said = (Hint(4, 6, "look"), Hint(4, 6, "and think"), Hint(3, 4, "of a result"))
    metrics, _, renderer = trained(rows(hints=said), feedback=1.0)
    assert [text for _, text, _ in renderer.asked if "result" not in text] == ["look\nand think"]
    assert metrics["feedback_turns"] == 1


def test_a_lesson_is_the_turn_alone_with_the_hint_right_before_it():
    (lesson,) = lessons(rows().sequences, Renderer())
    assert list(lesson.student.sequence.ids.values()) == [0, 1, 0, 2, 1, 0]
    assert list(lesson.teacher.sequence.ids.values()) == [0, 1, 0, 2, HINT, 1, 0]
    assert lesson.student.positions_N.tolist() == [4, 5]
    assert lesson.teacher.positions_N.tolist() == [5, 6]


def test_feedback_is_added_to_what_rewards_teach_and_does_not_depend_on_the_cut(engine, batch, context, gradient_of):
    hinted = batch((11, 14, 9), (1.0, 0.0, 0.5))
    hints = ((Hint(4, 9, "one"),), (Hint(7, 12, "two words"), Hint(2, 5, "x")), ())
    hinted = evolve(hinted, sequences=tuple(evolve(s, hints=h) for s, h in zip(hinted.sequences, hints, strict=True)))

    def gradient(**settings):
        made = engine()
        made._build = evolve(made._build, get=lambda kind: Renderer() if kind == "renderers" else context().get(kind))
        made.begin("rl", evolve(RL, **settings))
        made.step(hinted)
        return gradient_of(made)

    alone, both, cut = gradient(), gradient(feedback=0.7), gradient(feedback=0.7, micro_batch_tokens=1)
    assert (both - alone).abs().max() > 0
    torch.testing.assert_close(both, cut, rtol=2e-5, atol=1e-7)
    torch.testing.assert_close(both - alone, _by_hand(hinted, 0.7 / (3 * 50)), rtol=2e-4, atol=1e-7)


def _by_hand(batch, scale):
    """The gradient of the feedback alone, one turn and one token at a time."""
    policy, total = TinyPolicy(), torch.zeros(())
    for sequence in batch.sequences:
        ids, flags = list(sequence.ids.values()), sequence.trained.values()
        for hint in sequence.hints:
            told = [*ids[: hint.start], *[HINT] * len(hint.text.split()), *ids[hint.start : hint.stop]]
            for place in (place for place in range(hint.start, hint.stop) if flags[place]):
                later = len(told) - (hint.stop - place)
                student, teacher = (
                    torch.log_softmax(
                        policy.logits(policy.trunk(torch.tensor([row]), torch.tensor([len(row)])).hidden_BTD[0, -1:]),
                        -1,
                    )
                    for row in (ids[:place], told[:later])
                )
                total = total + (teacher.detach().exp() * (teacher.detach() - student)).sum()
    (total * scale).backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters()])


def test_the_student_replays_its_experts_and_the_teacher_chooses_its_own(trained):
    routes = Column("U8", (6, 1, 2), bytes([0, 1] * 6))
    given = rows(routes=routes)
    given = evolve(given, sequences=(given.sequences[0], evolve(given.sequences[1], routes=routes)))
    seen = []

    class Watched(TinyPolicy):
        def trunk(self, ids_BT, lengths_B, **fields):
            seen.append((ids_BT.shape[1], fields.get("replay_BTLK") is not None))
            return super().trunk(ids_BT, lengths_B, **fields)

    trained(given, model=Watched(experts=4), feedback=1.0)
    assert seen == [(6, False), (5, True)]


def test_lessons_of_unlike_sequences_are_not_taught_together():
    hot = evolve(rows().sequences[0], temperature=0.5)
    found = lessons([*rows().sequences, hot, *rows().sequences], Renderer())
    pairs = list(in_batches(found, 1000, in_order=False))
    assert sorted(len(students) for students, _ in pairs) == [1, 2]
    for students, teachers in pairs:
        assert [row.index for row in students] == [row.index for row in teachers]
        assert {row.temperature for row in students} == {row.temperature for row in teachers}


def test_positions_of_teacher_and_student_predict_the_same_tokens():
    for lesson in lessons(rows(hints=(Hint(4, 6, "a b c"), Hint(2, 3, "d"))).sequences, Renderer()):
        rows_of = lesson.student, lesson.teacher
        one, other = (to_tensor(row.sequence.ids)[row.positions_N].tolist() for row in rows_of)
        assert one == other
