"""From a run file and a registry to objects: each component built once, on first use, inside its boundary.

Only chosen components are resolved, so a run imports what it uses and nothing else. `Assembly.get` is the `get` of
every `BuildContext`: a component reaches others of the run by kind, never by importing another plugin.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from attrs import Factory, define, field

from composer_core.config import Component, RewardChoice, RlStage, RunConfig, limits_for, settings_for, to_data
from composer_core.edge import Edge
from composer_core.episode import EpisodeParts
from composer_core.errors import ComposerError, ConfigError, boundary, did_you_mean
from composer_core.events import Event, PluginFailed
from composer_core.harness import Harness
from composer_core.hookspecs import RunView
from composer_core.protocols import Algorithm, BuildContext
from composer_core.records import (
    AlgorithmSpec,
    KernelSpec,
    ModelSpec,
    NoConfig,
    RendererSpec,
    RewardSpec,
    SandboxSpec,
    ToolSpec,
    TrainerSpec,
    resolve,
)
from composer_core.registry import Entry, Registry
from composer_core.sandbox import Sandboxes
from composer_core.scoring import Reward
from composer_core.toolbox import Tool, Toolbox
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


@define
class Assembly:
    """The objects of one run in this process."""

    config: RunConfig
    registry: Registry
    run_dir: Path
    emit: Callable[[Event], None] = lambda event: None
    _built: dict[str, Any] = Factory(dict)
    _order: list[tuple[Entry, Any]] = field(factory=list)

    # --- choices, without building ---

    def entry(self, kind: str) -> Entry | None:
        """The chosen component of a kind."""
        choice = self.choice(kind)
        return self.registry.find(kind, choice.use, where=f"{SINGLE[kind]}.use") if choice else None

    def choice(self, kind: str) -> Component | None:
        found: Component | None = getattr(self.config, SINGLE[kind])
        return found

    def settings(self, kind: str) -> Any:
        """The chosen component's settings as its config class."""
        choice, entry = self.choice(kind), self.entry(kind)
        if choice is None or entry is None:
            raise ConfigError(f"this run chooses no {SINGLE[kind]}", where=f"{SINGLE[kind]}.use")
        return settings_for(entry.spec.config, choice.settings, SINGLE[kind])

    def view(self) -> RunView:
        """Everything chosen, with structured settings: what `composer_check` hooks see.

        Raises:
            ConfigError: a choice or a setting does not fit.
        """
        chosen: dict[str, tuple[tuple[str, Any], ...]] = {}
        for kind in SINGLE:
            entry = self.entry(kind)
            if entry:
                chosen[kind] = ((entry.id, self.settings(kind)),)
        chosen["tools"] = tuple((tool.id, tool.config) for tool in self._tool_choices())
        chosen["rewards"] = tuple((entry.id, config) for _, entry, config in self._reward_choices())
        chosen["trackers"] = tuple((entry.id, config) for entry, config in self.tracker_choices())
        for name, choice in self.config.samplers.items():
            entry = self.registry.find("samplers", choice.use, where=f"samplers.{name}.use")
            settings_for(entry.spec.config, choice.settings, f"samplers.{name}")
        self.stage_settings()
        limits_for(Limits(), self.config.limits)
        kernel = self._kernel_entry()
        if kernel:
            chosen["kernels"] = ((kernel.id, kernel.spec.config()),)
        records = {kind: ((entry.id, entry.spec),) for kind in SINGLE if (entry := self.entry(kind))}
        return RunView(self.config, chosen, records)

    def stage_settings(self) -> list[Any]:
        """The trainer's settings of every stage."""
        entry = self.entry("trainers")
        spec = entry.spec if entry else None
        cls = spec.stage_config if isinstance(spec, TrainerSpec) else NoConfig
        names = [choice.stage.name for choice in self.config.stages]
        if len(set(names)) != len(names):
            raise ConfigError("two stages have one name", where="stages", found=", ".join(names))
        sets = [set_.name for set_ in self.config.evaluations]
        if len(set(sets)) != len(sets):
            raise ConfigError("two evaluations have one name", where="evaluations", found=", ".join(sets))
        for choice in self.config.stages:
            own = {field.name for kind in (type(choice.stage), cls) for field in attrs.fields(kind)}
            for key in sorted(set(choice.settings) - own):
                where = f"stages.{choice.stage.name}"
                raise ConfigError(f"unknown key {key}", where=where, fix=did_you_mean(key, own))
        return [settings_for(cls, choice.settings, f"stages.{choice.stage.name}") for choice in self.config.stages]

    # --- building ---

    def build_context(self) -> BuildContext:
        return BuildContext(
            run_dir=self.run_dir,
            seed=self.config.seed,
            deterministic=self.config.deterministic,
            get=self.get,
            settings=self._shared_settings(),
        )

    def _shared_settings(self) -> dict[str, Any]:
        renderer = self.entry("renderers")
        rl = [choice.stage for choice in self.config.stages if isinstance(choice.stage, RlStage)]
        special = renderer.spec.special_tokens if renderer and isinstance(renderer.spec, RendererSpec) else ()
        return {
            "special_tokens": special,
            "limits": dict(self.config.limits),
            "threads": self.config.threads,
            "temperature": rl[0].temperature if rl else 1.0,
            "max_staleness": max((stage.max_staleness for stage in rl), default=0),
        }

    def get(self, kind: str) -> Any:
        """The run's component of a kind; see `BuildContext.get`."""
        if kind == "policy":
            return self._policy()
        if kind not in self._built:
            makers: dict[str, Callable[[], Any]] = {
                "tokenizer": self._tokenizer,
                "tools": self._toolbox,
                "rewards": self._rewards,
                "parts": self._parts,
                "samplers": self._samplers,
                "sandboxes": self._sandboxes,
                "algorithms": self._algorithm,
                "kernels": self._kernel,
            }
            if kind not in makers and kind not in SINGLE:
                raise LookupError(f"a run has no component of kind {kind!r}")
            self._built[kind] = makers.get(kind, partial(self._single, kind))()
        return self._built[kind]

    def _make(self, entry: Entry, config: Any, factory: Any, *, closes: bool = True) -> Any:
        with boundary(entry.spec.kind, entry.id):
            made = resolve(factory)(config, self.build_context())
        if closes:
            self._order.append((entry, made))
        return made

    def _edge(self, entry: Entry, config: Any, factory: Any) -> Edge:
        return Edge(self._make(entry, config, factory), entry.spec.kind, entry.id)

    def _single(self, kind: str) -> Any:
        entry, config = self.entry(kind), self.settings(kind)
        assert entry is not None
        spec: Any = entry.spec
        return self._edge(entry, config, spec.factory)

    def _tokenizer(self) -> Any:
        entry, config = self.entry("models"), self.settings("models")
        assert entry is not None and isinstance(entry.spec, ModelSpec)
        return self._edge(entry, config, entry.spec.tokenizer)

    def _policy(self) -> Any:
        entry, config = self.entry("models"), self.settings("models")
        assert entry is not None and isinstance(entry.spec, ModelSpec)
        with boundary("models", entry.id):
            return resolve(entry.spec.policy)(config, self.build_context())

    def export_model(self, weights: Path, folder: Path) -> bool:
        """Write published weights in the model's own layout; False if the model has none."""
        entry = self.entry("models")
        assert entry is not None and isinstance(entry.spec, ModelSpec)
        if entry.spec.export is None:
            return False
        with boundary("models", entry.id):
            resolve(entry.spec.export)(self.settings("models"), self.build_context(), weights, folder)
        return True

    def _kernel_entry(self) -> Entry | None:
        """The kernel that the model's settings name."""
        experts = getattr(self.settings("models"), "experts", None) if self.entry("models") else None
        name = getattr(experts, "kernel", None)
        return self.registry.find("kernels", name, where="model.experts.kernel") if name else None

    def _kernel(self) -> Any:
        entry = self._kernel_entry()
        if entry is None:
            return None
        assert isinstance(entry.spec, KernelSpec)
        return self._make(entry, entry.spec.config(), entry.spec.factory)

    def _algorithm(self) -> Algorithm | None:
        entry = self.entry("algorithms")
        if entry is None:
            return None
        spec = entry.spec
        assert isinstance(spec, AlgorithmSpec)
        with boundary("algorithms", entry.id):
            advantage, objective = resolve(spec.advantage), resolve(spec.objective)
        return Algorithm(entry.id, advantage, objective, self.settings("algorithms"), spec.needs)

    def _samplers(self) -> dict[str, Any]:
        made = {"policy": self._single("samplers")}
        for name, choice in self.config.samplers.items():
            entry = self.registry.find("samplers", choice.use, where=f"samplers.{name}.use")
            config: Any = settings_for(entry.spec.config, choice.settings, f"samplers.{name}")
            made[name] = self._edge(entry, config, entry.spec.factory)  # type: ignore[attr-defined]
        return made

    def _sandboxes(self) -> Sandboxes:
        entry = self.entry("sandboxes")
        assert entry is not None and isinstance(entry.spec, SandboxSpec)
        tree_of = self.get("tasks").tree
        provider = self._make(entry, self.settings("sandboxes"), entry.spec.factory, closes=False)
        made = Sandboxes(provider, entry.id, tree_of, self.config.sandbox_limits)
        self._order.append((entry, made))
        return made

    # --- tools and rewards ---

    def _tool_choices(self) -> list[Tool]:
        tools = []
        entries = [self.registry.find("tools", use, where="tools.use") for use in self.config.tools.use]
        unknown = set(self.config.tools.settings) - {entry.id for entry in entries}
        if unknown:
            raise ConfigError("settings of tools that the run does not use", where="tools.settings", found=str(unknown))
        for entry in entries:
            assert isinstance(entry.spec, ToolSpec)
            given = self.config.tools.settings.get(entry.id, {})
            config: Any = settings_for(entry.spec.config, given, f'tools.settings."{entry.id}"')
            with boundary("tools", entry.id):
                tools.append(Tool.of(entry.id, entry.spec, resolve(entry.spec.function), config))
        return tools

    def _toolbox(self) -> Toolbox:
        tools = self._tool_choices()
        named = {tool.spec.name: tool for tool in tools}
        if len(named) != len(tools):
            raise ConfigError("two tools share a name the model would use", where="tools.use")
        return Toolbox(named)

    def _reward_choices(self) -> list[tuple[RewardChoice, Entry, Any]]:
        chosen: list[tuple[RewardChoice, Entry, Any]] = []
        for index, choice in enumerate(self.config.rewards):
            entry = self.registry.find("rewards", choice.use, where=f"rewards[{index}].use")
            chosen.append((choice, entry, settings_for(entry.spec.config, choice.settings, f"rewards[{index}]")))
        return chosen

    def _rewards(self) -> tuple[Reward, ...]:
        made = []
        for choice, entry, config in self._reward_choices():
            assert isinstance(entry.spec, RewardSpec)
            with boundary("rewards", entry.id):
                function = resolve(entry.spec.function)
                reward = Reward(entry.id, entry.version, entry.spec, function, config, float(choice.weight))
                _ = reward.wants
            made.append(reward)
        return tuple(made)

    def tracker_choices(self) -> list[tuple[Entry, Any]]:
        chosen: list[tuple[Entry, Any]] = []
        for index, choice in enumerate(self.config.trackers):
            entry = self.registry.find("trackers", choice.use, where=f"trackers[{index}].use")
            chosen.append((entry, settings_for(entry.spec.config, choice.settings, f"trackers[{index}]")))
        return chosen

    def trackers(self) -> dict[str, Any]:
        """Built anew, and closed by `Trackers` on the thread that writes to them."""
        made: dict[str, Any] = {}
        with ExitStack() as stack:  # of the trackers built before one that cannot be
            for entry, config in self.tracker_choices():
                factory = entry.spec.factory  # type: ignore[attr-defined]
                made[entry.id] = self._make(entry, config, factory, closes=False)
                stack.callback(made[entry.id].close)
            stack.pop_all()
        return made

    def _parts(self) -> EpisodeParts:
        kinds = ("samplers", "renderers", "contexts", "stores")
        chosen = {kind: entry.id for kind in kinds if (entry := self.entry(kind))}
        named = {
            f"samplers/{name}": self.registry.find("samplers", choice.use).id
            for name, choice in self.config.samplers.items()
        }
        return EpisodeParts(
            samplers=self.get("samplers"),
            renderer=self.get("renderers"),
            toolbox=self.get("tools"),
            sandboxes=self.get("sandboxes"),
            context=self.get("contexts"),
            rewards=self.get("rewards"),
            resolve_grading=self.get("tasks").grading,
            emit=self.emit,
            deterministic=self.config.deterministic,
            harness=self.harness(),
            ids={**chosen, "samplers/policy": chosen.get("samplers", "samplers"), **named},
        )

    def harness(self) -> Harness:
        """What the policy of this run sees the world through."""
        tools = tuple(
            {"id": tool.id, **attrs.asdict(tool.schema), "effect": tool.spec.effect, "settings": to_data(tool.config)}
            for tool in self._tool_choices()
        )
        chosen = {kind: (self.entry(kind), self.settings(kind)) for kind in ("renderers", "contexts")}
        parts = {
            kind: {"id": entry.id, "settings": to_data(config)} for kind, (entry, config) in chosen.items() if entry
        }
        special = list(self._shared_settings()["special_tokens"])
        return Harness(
            tools,
            {**parts["renderers"], "special_tokens": special},
            parts["contexts"],
            self.get("tokenizer").fingerprint,
        )

    async def close(self) -> None:
        """Close what was built, last first and sandboxes before all; what fails is named and keeps nothing else open.

        Called while an error is on its way (in a `finally`), it leaves that error standing and adds notes to it.

        Raises:
            ComposerError: of the first component that failed; the others stand in its notes.
        """
        failures: list[ComposerError] = []
        ours = sys.exception()
        async with AsyncExitStack() as stack:
            for entry, made in sorted(self._order, key=lambda item: isinstance(item[1], Sandboxes)):
                stack.push_async_callback(self._close, entry, made, failures)
            self._order.clear()
            self._built.clear()
        told: list[BaseException] = [*([ours] if ours else []), *failures]
        for failure in told[1:]:
            told[0].add_note(str(failure))
        if failures and not ours:
            raise failures[0]

    async def _close(self, entry: Entry, made: Any, failures: list[ComposerError]) -> None:
        try:
            with boundary(entry.spec.kind, entry.id):
                close = getattr(made, "close", None)
                found = close() if close else None
                if inspect.isawaitable(found):
                    await found
        except ComposerError as error:
            error.fields.setdefault("where", "while closing")
            failures.append(error)
            self.emit(PluginFailed(plugin=entry.id, dist=entry.dist, version=entry.version, error=str(error)))
