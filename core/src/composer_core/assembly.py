"""From a run file and a registry to objects: each component built once, on first use, inside its boundary.

Only chosen components are resolved, so a run imports what it uses and nothing else. `Assembly.get` is the `get` of
every `BuildContext`: a component reaches others of the run by kind, never by importing another plugin.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from attrs import Factory, define, field

from composer_core.choices import SINGLE, Choices, Chosen
from composer_core.config import RlStage, RunConfig, restructure, to_data
from composer_core.edge import Edge
from composer_core.errors import ComposerError, ConfigError, boundary
from composer_core.events import Event, PluginFailed
from composer_core.harness import Harness
from composer_core.hookspecs import ProcessView
from composer_core.parts import EpisodeParts
from composer_core.plugins import load_manifest
from composer_core.protocols import Algorithm, BuildContext
from composer_core.records import (
    AlgorithmSpec,
    KernelSpec,
    ModelSpec,
    RendererSpec,
    RewardSpec,
    SandboxSpec,
    ToolSpec,
    resolve,
)
from composer_core.registry import Entry, Registry
from composer_core.sandbox import Sandboxes
from composer_core.scoring import Reward
from composer_core.toolbox import Tool, Toolbox

__all__ = ["Assembly", "reopen"]


@define
class Assembly:
    """The objects of one run in this process."""

    config: RunConfig
    registry: Registry
    run_dir: Path
    emit: Callable[[Event], None] = lambda event: None
    elsewhere: Mapping[str, Any] = Factory(dict)
    """Stand-ins by name for samplers that live in other processes; who gives them closes them."""
    choices: Choices = field(init=False)
    """What is built here."""
    _built: dict[str, Any] = Factory(dict)
    _order: list[tuple[Entry, Any]] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.choices = Choices(self.config, self.registry)

    def build_context(self) -> BuildContext:
        return BuildContext(
            run_dir=self.run_dir,
            seed=self.config.seed,
            deterministic=self.config.deterministic,
            get=self.get,
            settings=self._shared_settings(),
            emit=self.emit,
        )

    def _shared_settings(self) -> dict[str, Any]:
        renderer = self.choices.entry("renderers")
        rl = [choice.stage for choice in self.config.stages if isinstance(choice.stage, RlStage)]
        special = renderer.spec.special_tokens if renderer and isinstance(renderer.spec, RendererSpec) else ()
        return {
            "special_tokens": special,
            "limits": dict(self.config.limits),
            "threads": self.config.threads,
            "temperature": rl[0].temperature if rl else 1.0,
            "max_staleness": max((stage.max_staleness for stage in rl), default=0),
            "router_replay": any(stage.router_replay for stage in rl),
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

    def _make(self, one: Chosen, factory: Any, *, closes: bool = True) -> Any:
        with boundary(one.entry.spec.kind, one.entry.id):
            made = resolve(factory)(one.settings, self.build_context())
        if closes:
            self._order.append((one.entry, made))
        return made

    def _edge(self, one: Chosen, factory: Any) -> Edge:
        return Edge(self._make(one, factory), one.entry.spec.kind, one.entry.id)

    def _single(self, kind: str) -> Any:
        one = self.choices.one(kind)
        return self._edge(one, one.entry.spec.factory)  # type: ignore[attr-defined]

    def _model(self) -> tuple[Chosen, ModelSpec]:
        one = self.choices.one("models")
        assert isinstance(one.entry.spec, ModelSpec)
        return one, one.entry.spec

    def _tokenizer(self) -> Any:
        one, spec = self._model()
        return self._edge(one, spec.tokenizer)

    def _policy(self) -> Any:
        one, spec = self._model()
        return self._make(one, spec.policy, closes=False)

    def export_model(self, weights: Path, folder: Path) -> bool:
        """Write published weights in the model's own layout; False if the model has none."""
        one, spec = self._model()
        if spec.export is None:
            return False
        with boundary("models", one.entry.id):
            resolve(spec.export)(one.settings, self.build_context(), weights, folder)
        return True

    def _kernel(self) -> Any:
        one = self.choices.kernel()
        if one is None:
            return None
        assert isinstance(one.entry.spec, KernelSpec)
        return self._make(one, one.entry.spec.factory)

    def _algorithm(self) -> Algorithm | None:
        if self.choices.entry("algorithms") is None:
            return None
        one = self.choices.one("algorithms")
        spec = one.entry.spec
        assert isinstance(spec, AlgorithmSpec)
        with boundary("algorithms", one.entry.id):
            advantage, objective = resolve(spec.advantage), resolve(spec.objective)
        return Algorithm(one.entry.id, advantage, objective, one.settings, spec.needs)

    def _samplers(self) -> dict[str, Any]:
        """By the names that stages and evaluations call them: "policy", and the keys of [samplers]."""
        found: dict[str, Any] = {_sampler_name(one): one for one in self.choices.chosen("samplers")}
        return {
            name: self.elsewhere.get(name) or self._edge(one, one.entry.spec.factory) for name, one in found.items()
        }

    def _sandboxes(self) -> Sandboxes:
        one = self.choices.one("sandboxes")
        assert isinstance(one.entry.spec, SandboxSpec)
        tree_of = self.get("tasks").tree
        provider = self._make(one, one.entry.spec.factory, closes=False)
        made = Sandboxes(provider, one.entry.id, tree_of, self.config.sandbox_limits, self.config.network.allow)
        self._order.append((one.entry, made))
        return made

    def _tools(self) -> list[Tool]:
        tools = []
        for one in self.choices.chosen("tools"):
            assert isinstance(one.entry.spec, ToolSpec)
            with boundary("tools", one.entry.id):
                function = resolve(one.entry.spec.function)
                without = self.config.tools.without.get(one.entry.id, ())
                tools.append(Tool.of(one.entry.id, one.entry.spec, function, one.settings, without))
        return tools

    def _toolbox(self) -> Toolbox:
        tools = self._tools()
        named = {tool.spec.name: tool for tool in tools}
        if len(named) != len(tools):
            raise ConfigError("two tools share a name the model would use", where="tools.use")
        return Toolbox(named, self.config.tools.strict)

    def _rewards(self) -> tuple[Reward, ...]:
        made = []
        for one in self.choices.chosen("rewards"):
            entry, spec = one.entry, one.entry.spec
            assert isinstance(spec, RewardSpec)
            with boundary("rewards", entry.id):
                reward = Reward(entry.id, entry.version, spec, resolve(spec.function), one.settings, one.weight)
                _ = reward.wants
            made.append(reward)
        return tuple(made)

    def trackers(self) -> dict[str, Any]:
        """Built anew, and closed by `Trackers` on the thread that writes to them."""
        made: dict[str, Any] = {}
        with ExitStack() as stack:  # of the trackers built before one that cannot be
            for one in self.choices.chosen("trackers"):
                factory = one.entry.spec.factory  # type: ignore[attr-defined]
                made[one.entry.id] = self._make(one, factory, closes=False)
                stack.callback(made[one.entry.id].close)
            stack.pop_all()
        return made

    def _parts(self) -> EpisodeParts:
        kinds = ("samplers", "renderers", "contexts", "stores")
        ids = {kind: entry.id for kind in kinds if (entry := self.choices.entry(kind))}
        ids |= {f"samplers/{_sampler_name(one)}": one.entry.id for one in self.choices.chosen("samplers")}
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
            ids=ids,
        )

    def harness(self) -> Harness:
        """What the policy of this run sees the world through."""
        strict = {"strict": True} if self.config.tools.strict else {}
        told = ((tool, attrs.asdict(tool.schema), to_data(tool.config)) for tool in self._tools())
        tools = tuple(
            {"id": tool.id, **schema, "effect": tool.spec.effect, "settings": settings, **strict}
            for tool, schema, settings in told
        )
        renderer, context = (self.choices.one(kind) for kind in ("renderers", "contexts"))
        special = list(self._shared_settings()["special_tokens"])
        return Harness(
            tools,
            {"id": renderer.entry.id, "settings": to_data(renderer.settings), "special_tokens": special},
            {"id": context.entry.id, "settings": to_data(context.settings)},
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


def reopen(
    config: Mapping[str, Any],
    plugins: Sequence[Mapping[str, str]],
    process: ProcessView,
    emit: Callable[[Event], None] = lambda event: None,
    samplers: Mapping[str, Any] | None = None,
) -> Assembly:
    """A run's assembly in another process, from its config.json and `Plugins.manifest`.

    `samplers` are stand-ins, by name, for those that live in other processes.

    Raises:
        PluginError: a plugin is missing here, or not the one that the run was started with.
    """
    loaded = load_manifest(plugins)
    loaded.process_start(process)
    resolved = restructure(config, process.run_dir / "config.json")
    return Assembly(resolved, loaded.registry, process.run_dir, emit, samplers or {})


def _sampler_name(one: Chosen) -> str:
    return one.key.partition(".")[2] or "policy"
