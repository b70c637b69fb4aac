"""How every run is made: its file, the run whose model it goes on from, and what it sets beside its file.

The runs of a seed are trees. The root `base` and the imitations `habits` and `manners` are shared by findings,
so a treated arm and its untreated one begin with the same checkpoint, and a finding costs its own arms alone.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

HERE = Path(__file__).resolve().parent.parent
PLAIN = 'rewards=[{use="hidden-tests/hidden-tests"},{use="chores/measures"}]'
"""The outcome alone, and the probe that weighs nothing."""
ALONE = (
    "stages=[]",
    'executor={use="core/inprocess",max_concurrent=1}',
    "evaluations.main.tasks=16",
)
"""One episode at a time, for times that depend on nothing beside it."""
ROUNDS = ("a", "b", "c")
"""Arms take turns in being timed, since a machine's speed drifts."""
TOGETHER = ('tasks.kinds=["path-3"]', "samplers.worker.parallel_share=0.6", "samplers.worker.waste_share=0.25")
"""Three attempts of five, and so about a fifth of the turns, have calls in parallel, so that this way is learned too.
Half as much is wasted as in manners.toml."""


@frozen
class Recipe:
    """A kind of run."""

    file: str
    """Run file, in this example's folder."""
    after: str | None = None
    """The recipe whose model it begins with; None begins with random weights."""
    settings: tuple[str, ...] = ()
    """Set beside what the file holds."""


def _amount(times: float) -> tuple[str, ...]:
    """Steps of pre-training on text in finding 5's unit, of which base.toml itself has 4; those of copying stay."""
    return f"stages.pretrain.steps={48 * times:.0f}", f"stages.restoring.steps={480 * times:.0f}"


RECIPES: Mapping[str, Recipe] = {
    "base": Recipe("base.toml"),
    "habits": Recipe("habits.toml", "base"),
    "manners": Recipe("manners.toml", "base"),
    "manners-parallel": Recipe("manners.toml", "base", TOGETHER),
    "scaling": Recipe("scaling.toml", "habits"),
    "effort-none": Recipe("effort.toml", "manners", (PLAIN,)),
    "effort-linear": Recipe("effort.toml", "manners", ("rewards.effort.q=0.0", "rewards.effort.weight=0.4")),
    "effort-concave": Recipe("effort.toml", "manners"),
    "parallel-none": Recipe("parallel.toml", "manners-parallel", (PLAIN,)),
    "parallel-effort": Recipe("parallel.toml", "manners-parallel"),
    **{
        f"parallel-{arm}-alone-{turn}": Recipe("parallel.toml", f"parallel-{arm}", settings)
        for turn in ROUNDS
        for arm, settings in (("none", (PLAIN, *ALONE)), ("effort", ALONE))
    },
    "evidence-none": Recipe("evidence.toml", "manners", (PLAIN,)),
    "evidence-reward": Recipe("evidence.toml", "manners"),
    "base-one": Recipe("base.toml", None, _amount(1)),
    "base-quarter": Recipe("base.toml", None, _amount(0.25)),
    "habits-one": Recipe("habits.toml", "base-one"),
    "habits-quarter": Recipe("habits.toml", "base-quarter"),
    "pretraining-four": Recipe("pretraining.toml", "habits"),
    "pretraining-one": Recipe("pretraining.toml", "habits-one"),
    "pretraining-quarter": Recipe("pretraining.toml", "habits-quarter"),
    "precision-both": Recipe("precision.toml", "habits"),
    "precision-sampler": Recipe(
        "precision.toml",
        "habits",
        ("model.experts.kernel=chores/bf16", "sampler.use=chores/quantized"),
    ),
}
"""Name of a run -> how it is made, in the order in which runs begin where several may; `base` is long, and most go on
from it.

`model.path` is set last, to what the run before has made of the same seed.
"""


def content(name: str) -> Mapping[str, Any]:
    """What the run file of a recipe says, so without its comments."""
    return tomllib.loads((HERE / RECIPES[name].file).read_text(encoding="utf-8"))


def digest(made: Iterable[tuple[str, Mapping[str, Any], Sequence[str]]]) -> str:
    """Of what runs were made of: name, content of the file, and what was set but for the seed; empty for none.

    What has another digest than its arm has now was found by other settings.
    """
    rows = [*made]
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16] if rows else ""


def chain(name: str) -> list[str]:
    """The runs that a run needs, itself last."""
    before = RECIPES[name].after
    return [*(chain(before) if before else ()), name]
