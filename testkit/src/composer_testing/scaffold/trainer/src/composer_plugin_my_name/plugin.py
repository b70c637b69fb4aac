"""Hook module: imported by every listing of plugins, so it imports nothing heavy; torch waits in `trainer`."""

from collections.abc import Iterable

from attrs import field, frozen
from attrs.validators import gt

from composer_core import TrainerSpec, hookimpl

COMPOSER_API = 1


@frozen
class MyNameStage:
    """Settings of a stage, beside its `kind` in the run file."""

    learning_rate: float = field(default=0.1, validator=gt(0))
    """Weights move by this times the clipped gradient."""
    gradient_clip: float = field(default=1.0, validator=gt(0))
    """Largest norm of the gradient over all weights; longer ones are scaled down to it."""


@hookimpl
def composer_trainers() -> Iterable[TrainerSpec]:
    """A run with `deterministic = true` asks for the first capability, replayed experts are the second."""
    yield TrainerSpec(
        name="my-name",
        factory="composer_plugin_my_name.trainer:MyNameTrainer",
        stage_config=MyNameStage,
        capabilities={"trainer.deterministic", "trainer.routes"},
        summary="plain gradient descent, one step for each batch",
    )
