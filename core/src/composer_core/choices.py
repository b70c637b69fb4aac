"""Which components a run has chosen, with their records and settings; nothing is built, and nothing heavy imported.

The one place that reads a choice: `check` lists and weighs what stands here, `assembly` builds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import attrs
from attrs import frozen

from composer_core.config import Component, RewardChoice, RunConfig, StageChoice, limits_for, settings_for
from composer_core.errors import ConfigError, did_you_mean
from composer_core.hookspecs import Problem, RunView
from composer_core.problems import refuse, told
from composer_core.records import NoConfig, TrainerSpec
from composer_core.registry import Entry, Registry
from composer_core.types import Limits

SINGLE = {
    "tasks": "tasks",
    "models": "model",
    "renderers": "renderer",
    "samplers": "sampler",
    "trainers": "trainer",
    "sandboxes": "sandbox",
    "algorithms": "algorithm",
    "executors": "executor",
    "contexts": "context",
    "stores": "store",
}
"""Kinds of which a run chooses one, and the key of the run file that chooses it."""


@frozen
class Chosen:
    """One component of the run."""

    key: str
    """Of the run file: sampler, samplers.demonstrator, tools, ..."""
    entry: Entry
    settings: Any
    """As its config class."""
    weight: float = 1.0
    """Of a reward."""


@frozen
class Choices:
    """The choices of a run file among the components of the loaded plugins."""

    config: RunConfig
    registry: Registry

    def chosen(self, kind: str = "") -> list[Chosen]:
        """Every component of the run, or those of one kind, in the order of `SINGLE`.

        Raises:
            ConfigError: a choice names no component, or a setting does not fit.
        """
        found = [self._pick(*choice) for choice in self._choices() if kind in ("", choice[0])]
        kernel = self.kernel() if kind == "" else None
        return [*found, *([kernel] if kernel else [])]

    def _choices(self) -> Iterator[tuple[str, str, Any]]:
        """(kind, key of the run file, choice) of every component; a kernel is chosen by the model's settings."""
        config = self.config
        yield from ((kind, key, choice) for kind, key in SINGLE.items() if (choice := getattr(config, key)))
        yield from (("tools", "tools", Component(use)) for use in config.tools.use)
        yield from (("rewards", f"rewards[{number}]", choice) for number, choice in enumerate(config.rewards))
        yield from (("trackers", f"trackers[{number}]", choice) for number, choice in enumerate(config.trackers))
        yield from (("samplers", f"samplers.{name}", choice) for name, choice in config.samplers.items())

    def _pick(self, kind: str, key: str, choice: Component | RewardChoice) -> Chosen:
        entry = self.registry.find(kind, choice.use, where=f"{key}.use")
        given, where = choice.settings, key
        if kind == "tools":
            given, where = self.config.tools.settings.get(entry.id, {}), f'tools.settings."{entry.id}"'
        settings: Any = settings_for(entry.spec.config, given, where)
        weight = getattr(choice, "weight", None)
        return Chosen(
            key.partition("[")[0],
            entry,
            settings,
            getattr(entry.spec, "weight", 1.0) if weight is None else float(weight),
        )

    def entry(self, kind: str) -> Entry | None:
        """The chosen component of a kind of which a run chooses one."""
        choice = getattr(self.config, SINGLE[kind])
        return self.registry.find(kind, choice.use, where=f"{SINGLE[kind]}.use") if choice else None

    def one(self, kind: str) -> Chosen:
        """The same with its settings.

        Raises:
            ConfigError: the run chooses none, it names no component, or a setting does not fit.
        """
        choice = getattr(self.config, SINGLE[kind])
        if choice is None:
            raise ConfigError(f"this run chooses no {SINGLE[kind]}", where=f"{SINGLE[kind]}.use")
        return self._pick(kind, SINGLE[kind], choice)

    def kernel(self) -> Chosen | None:
        """The kernel that the model's settings name, with the settings that they hold for it."""
        experts = getattr(self.one("models").settings, "experts", None)
        if not (name := getattr(experts, "kernel", None)):
            return None
        entry = self.registry.find("kernels", name, where="model.experts.kernel")
        given, where = getattr(experts, "settings", {}), "model.experts.settings"
        return Chosen("kernels", entry, settings_for(entry.spec.config, given, where))

    def stage_settings(self) -> list[Any]:
        """The trainer's settings of every stage."""
        return [self._settings_of(choice) for choice in self.config.stages]

    def _settings_of(self, choice: StageChoice) -> Any:
        entry = self.entry("trainers")
        cls = entry.spec.stage_config if entry and isinstance(entry.spec, TrainerSpec) else NoConfig
        own = {field.name for kind in (type(choice.stage), cls) for field in attrs.fields(kind)}
        where = f"stages.{choice.stage.name}"
        unknown = sorted(set(choice.settings) - own)
        refuse(
            (Problem(f"{where}.{key}", f"unknown key {key}", did_you_mean(key, own)) for key in unknown),
            where,
            ConfigError,
        )
        return settings_for(cls, choice.settings, where)

    def view(self) -> RunView:
        """Everything chosen, with structured settings: what `composer_check` hooks see.

        Raises:
            ConfigError: choices, settings or limits do not fit; all that do not are in one message.
        """
        steps: list[Callable[[], Any]] = [partial(self._pick, *choice) for choice in self._choices()]
        steps += [partial(self._settings_of, choice) for choice in self.config.stages]
        steps += [self.kernel, self._no_idle_settings, partial(limits_for, Limits(), self.config.limits)]
        problems = [*self._doubles()]
        for step in steps:
            try:
                step()
            except ConfigError as error:
                problems += told(error)
        refuse(problems, self.config.name, ConfigError)
        settings: dict[str, tuple[tuple[str, Any], ...]] = {"tools": (), "rewards": (), "trackers": ()}
        records: dict[str, tuple[tuple[str, Any], ...]] = {}
        for one in self.chosen():
            if not one.key.startswith("samplers."):
                kind, id = one.entry.spec.kind, one.entry.id
                settings[kind] = (*settings.get(kind, ()), (id, one.settings))
                records[kind] = (*records.get(kind, ()), (id, one.entry.spec))
        return RunView(self.config, settings, records, plugins=frozenset(one.plugin for one in self.registry))

    def _doubles(self) -> Iterator[Problem]:
        stages = [choice.stage.name for choice in self.config.stages]
        for where, names in (("stages", stages), ("evaluations", [set_.name for set_ in self.config.evaluations])):
            if len(set(names)) != len(names):
                yield Problem(where, f"two {where} have one name: {', '.join(names)}")

    def _no_idle_settings(self) -> None:
        tools, used = self.config.tools, {one.entry.id for one in self.chosen("tools")}
        for key, given in (("settings", tools.settings), ("without", tools.without)):
            if unknown := sorted(set(given) - used):
                said = f"{key!r} of tools that the run does not use"
                raise ConfigError(
                    said, where=f"tools.{key}", found=", ".join(unknown), fix=did_you_mean(unknown[0], used)
                )
