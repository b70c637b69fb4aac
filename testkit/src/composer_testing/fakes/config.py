"""Settings of the fakes; thin, as every plugin's config module must be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import Factory, field, frozen
from attrs.validators import ge


@frozen
class TasksConfig:
    count: int = field(default=12, validator=ge(1))
    """Tasks in each split."""


@frozen
class LearnerConfig:
    start: float = 0.2
    """Share of attempts solved by version 0."""
    gain: float = 0.1
    """Added with each version."""
    void_share: float = 0.0
    """Share of attempts that raise, as a broken sampler would."""
    voids_each: int = field(default=1, validator=ge(1))
    """Times each of them raises before it goes well."""
    looks: int = field(default=0, validator=ge(0))
    """Most turns in which an attempt reads the file before it writes; how many is drawn from its noise."""
    turn_s: float = field(default=0.0, validator=ge(0))
    """Seconds that a generation takes."""


@frozen
class ScriptedCall:
    """One turn of `fakes/scripted`."""

    name: str
    """The tool, by the name that the model uses."""
    arguments: Mapping[str, Any] = Factory(dict)
    """As the model would write them."""


@frozen
class ScriptedConfig:
    calls: tuple[ScriptedCall, ...] = ()
    """What every episode does, a call in each turn; a turn without one follows and ends it."""
