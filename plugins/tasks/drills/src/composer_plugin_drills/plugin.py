"""Hook module: the task set, and the two scripted samplers that go with it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from composer_core import Footprint, Problem, RunView, SamplerSpec, TaskSpec, hookimpl
from composer_core.errors import did_you_mean
from composer_plugin_drills.catalog import workspace_name
from composer_plugin_drills.config import DemonstratorConfig, DrillsConfig, GuesserConfig

COMPOSER_API = 1
LIBRARY = Path(__file__).parent / "library"


@hookimpl
def composer_tasks() -> Iterable[TaskSpec]:
    yield TaskSpec(
        name="drills",
        summary="one-line bugs in small functions, validated by running",
        factory="composer_plugin_drills.tasks:build",
        config=DrillsConfig,
        footprint="composer_plugin_drills.footprint:footprint",
    )


@hookimpl
def composer_check(run: RunView) -> Iterable[Problem]:
    for name, config in run.settings.get("tasks", ()):
        if name == "drills/drills":
            known = {workspace_name(path.stem) for path in LIBRARY.glob("*.py") if path.name != "__init__.py"}
            for module in config.modules:
                if module not in known:
                    yield Problem("tasks.modules", f"no module {module!r}", did_you_mean(module, known))
    tools = {id.partition("/")[2] for id, _ in run.settings.get("tools", ())}
    for name, component in getattr(run.config, "samplers", {}).items():
        edits = component.settings.get("edits", DemonstratorConfig().edits)
        if component.use == "drills/demonstrator" and edits not in tools:
            message = f"the run has no tool {edits!r}, with which drills/demonstrator edits"
            yield Problem(f"samplers.{name}.edits", message, "add it to tools.use, or choose another format here")


@hookimpl
def composer_samplers() -> Iterable[SamplerSpec]:
    yield SamplerSpec(
        name="demonstrator",
        summary="scripted: explores and tests well, repairs some kinds of bugs wrongly by habit",
        factory="composer_plugin_drills.demonstrator:build",
        config=DemonstratorConfig,
        footprint=Footprint(),
        capabilities={"sampler.logprobs", "sampler.versions", "sampler.deterministic"},
    )
    yield SamplerSpec(
        name="guesser",
        summary="scripted control: the likeliest inverse mutation, judged by the buggy text alone",
        factory="composer_plugin_drills.guesser:build",
        config=GuesserConfig,
        footprint=Footprint(),
        capabilities={"sampler.logprobs", "sampler.versions", "sampler.deterministic"},
    )
