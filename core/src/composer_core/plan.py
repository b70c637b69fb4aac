"""What a run file would do, as plain data: components, stages, evaluations, limits, rewards, memory and files.

`check` prints it as a page, `check --json` as it is. No component is built. Rewards and footprint functions are
resolved, which imports their modules; core itself imports no torch for it. What a machine can really do is another
question (`checking.probe`).
"""

from __future__ import annotations

from typing import Any

import attrs

from composer_core.assembly import Assembly
from composer_core.checking import needs_of
from composer_core.choices import SINGLE, Chosen
from composer_core.config import (
    EvaluationSet,
    PretrainStage,
    RlStage,
    RunConfig,
    SftStage,
    Stage,
    limits_for,
    to_data,
)
from composer_core.estimate import estimate
from composer_core.plugins import Plugins
from composer_core.scoring import lead_of_outcome
from composer_core.types import Limits


def plan(assembly: Assembly, plugins: Plugins) -> dict[str, Any]:
    """Everything that `check` says of a run without problems."""
    config, choices = assembly.config, assembly.choices
    components = choices.chosen()
    executor = choices.one("executors")
    in_flight: Any = executor.entry.spec
    used = {one.entry.plugin for one in components}
    moments = moments_of(config)
    stages = [stage_row(c.stage, config, s) for c, s in zip(config.stages, choices.stage_settings(), strict=True)]
    evaluated = sum(moment["episodes"] * moment["times"] for moment in moments.values())
    episodes = evaluated + sum(stage["episodes"] for stage in stages)
    return {
        "name": config.name,
        "seed": config.seed,
        "deterministic": config.deterministic,
        "threads": config.threads,
        "components": [
            {"key": one.key, "id": one.entry.id, "dist": one.entry.dist, "version": one.entry.version}
            | {"settings": differing(one.settings)}
            for one in components
        ],
        "unused_plugins": sorted({item.candidate.name for item in plugins.loaded} - used - {"core"}),
        "capabilities": capabilities(config, components),
        "stages": stages,
        "evaluations": [attrs.asdict(set_) | {"episodes": set_.tasks * set_.attempts} for set_ in config.evaluations],
        "moments": moments,
        "episodes": episodes,
        "in_flight": getattr(executor.settings, in_flight.in_flight, None),
        "sandbox_limits": attrs.asdict(config.sandbox_limits),
        "limits": attrs.asdict(limits_for(Limits(), config.limits)),
        "limits_set": sorted(config.limits),
        "rewards": rewards(assembly),
        "folder": f"runs/{config.name}",
        **estimate(components, attrs.evolve(choices.view(), episodes=episodes)),
    }


def differing(settings: Any) -> dict[str, Any]:
    """Settings that are not their defaults."""
    found = {}
    for field in attrs.fields(type(settings)):
        default = (
            field.default.factory(*[settings] * field.default.takes_self)
            if isinstance(field.default, attrs.Factory)  # type: ignore[arg-type]
            else field.default
        )
        value = getattr(settings, field.name)
        if value != default:
            found[field.name] = to_data(value)
    return found


def capabilities(config: RunConfig, components: list[Chosen]) -> list[dict[str, Any]]:
    """What each component offers, and which of it this run needs and why."""
    needs = needs_of(config)
    return [
        {
            "key": one.key,
            "offers": sorted(one.entry.spec.capabilities),
            "needs": [[name, why] for kind, name, why in needs if SINGLE[kind] == one.key],
        }
        for one in components
        if one.entry.spec.capabilities
    ]


def stage_row(stage: Stage, config: RunConfig, settings: Any) -> dict[str, Any]:
    """What a stage costs; `tokens` are those it trains on (pretrain), or those it samples at most."""
    limit = limits_for(Limits(), config.limits).tokens
    row = {"name": stage.name, "kind": stage.kind, "steps": stage.steps, "settings": differing(settings)}
    if isinstance(stage, PretrainStage):
        each = f"{stage.batch_windows} windows of {stage.window_tokens} tokens"
        return row | {"each": each, "episodes": 0, "tokens": stage.steps * stage.batch_windows * stage.window_tokens}
    if isinstance(stage, SftStage):
        each = f"{stage.batch_episodes} demonstrations of {stage.sampler}"
        return row | {"each": each, "episodes": stage.episodes, "tokens": stage.episodes * limit}
    episodes = stage.steps * (stage.groups_per_step + stage.oversample) * stage.group_size
    each = f"{stage.groups_per_step} groups of {stage.group_size}"
    return row | {"each": each, "episodes": episodes, "tokens": episodes * limit}


def moments_of(config: RunConfig) -> dict[str, dict[str, int]]:
    """Moment -> how often it comes, and its episodes; attempts that several sets ask for are counted once."""
    rl = [choice.stage for choice in config.stages if isinstance(choice.stage, RlStage)]
    looks = sum((stage.steps - 1) // stage.evaluate_every for stage in rl if stage.evaluate_every)
    times = {"before": 1, "during": looks, "after": 1}
    return {
        moment: {"times": count, "episodes": attempts([set_ for set_ in config.evaluations if moment in set_.when])}
        for moment, count in times.items()
    }


def attempts(sets: list[EvaluationSet]) -> int:
    """Distinct attempts of sets that are run at one moment; see `evaluate`."""
    return len(
        {
            (set_.split, set_.conditions, task, attempt)
            for set_ in sets
            for task in range(set_.tasks)
            for attempt in range(set_.attempts)
        }
    )


def rewards(assembly: Assembly) -> dict[str, Any]:
    """Each reward's weight and range, and how far the outcome outweighs all others together."""
    found = assembly.get("rewards")
    rows = [{"id": r.id, "weight": r.weight, "range": list(r.spec.range), "outcome": r.spec.outcome} for r in found]
    return {"each": rows} | lead_of_outcome(found)
