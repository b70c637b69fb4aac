"""What a run takes before it takes it: peak memory of each process, and what it leaves in the run folder.

Every component tells its own share (`footprint`); core adds what the loop itself holds. One that weighs and tells
nothing is named as unknown, never guessed. The constants are measured, on Linux and CPython 3.11, from
examples/quickstart; tests compare the sums with real runs, which must lie within 30 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import asdict, evolve

from composer_core.choices import Chosen
from composer_core.config import InProcessConfig, RlStage, RunConfig, SftStage, limits_for
from composer_core.errors import boundary
from composer_core.footprint import Footprint, Process
from composer_core.hookspecs import RunView
from composer_core.records import resolve
from composer_core.types import Limits

WEIGHTY = ("tasks", "models", "samplers", "trainers", "sandboxes", "executors")
"""Kinds whose share is worth counting, so that silence about it is said."""

PYTHON_BYTES = 36 << 20
"""The interpreter with core, its libraries and the plugins' hook modules."""
RESULT_BYTES = 6 << 10
"""What is kept of an ended episode: its result and its row in trackers."""
TRACE_BYTES = 4 << 10
"""A trace apart from its columns, in memory and in its file alike: words, calls, timings."""
TOKEN_BYTES = 9
"""Id, log-probability and mask of one token of a trace."""
GROWING_TOKEN_BYTES = 100
"""The same while it grows, as Python numbers."""
EVENTS_BYTES = 2250
"""Lines of events.jsonl about one episode."""
RECORD_BYTES = 32 << 10
"""config.json, plugins.json, commit.json, harness.json and summary.json together."""


def estimate(components: list[Chosen], view: RunView) -> dict[str, Any]:
    """`memory`: processes, the parts of the run's own, components of weighty kinds that tell nothing; and `files`.

    Models are asked first, since samplers and trainers count with the network; `view.episodes` is the run's length.

    Raises:
        PluginFault: a component's footprint function failed.
    """
    told: dict[str, Footprint | None] = {}
    for one in sorted(components, key=lambda one: one.entry.spec.kind != "models"):
        given: Any = one.entry.spec.footprint
        with boundary(one.entry.spec.kind, one.entry.id):
            share = given if isinstance(given, Footprint | None) else resolve(given)(one.settings, view)
        told[f"{one.key} {one.entry.id}"] = share
        view = evolve(view, model_size=(share and share.model) or view.model_size)
    shares = {name: share for name, share in told.items() if share}
    weighty = {f"{one.key} {one.entry.id}" for one in components if one.entry.spec.kind in WEIGHTY}
    parts = _parts(view, shares)
    own = Process("the run itself", 1, sum(parts.values()))
    processes = [own, *(process for share in shares.values() for process in share.processes)]
    unknown = [name for name in told if name in weighty - shares.keys()]
    memory = {"processes": [asdict(one) for one in processes], "parts": parts, "unknown": unknown}
    return {"memory": memory, "files": _files(view, shares)}


def _parts(view: RunView, shares: Mapping[str, Footprint]) -> dict[str, int]:
    """What the run's own process holds at its peak, in bytes; an import counts once, whoever else tells of it."""
    held = max((c.stage.episodes for c in view.config.stages if isinstance(c.stage, SftStage)), default=0)
    found = {
        "python and core": PYTHON_BYTES,
        "results of episodes": view.episodes * RESULT_BYTES,
        "demonstrations": held * (TRACE_BYTES * 2 + TOKEN_BYTES * context_tokens(view.config)),
    }
    for name, share in shares.items():
        found |= {
            f"import {package}": max(size, found.get(f"import {package}", 0)) for package, size in share.imports.items()
        }
        found |= {f"{name}: {part}": size for part, size in share.parts.items()}
    return {part: size for part, size in found.items() if size}


def _files(view: RunView, shares: Mapping[str, Footprint]) -> dict[str, int]:
    """Path below the run folder -> bytes at the end of the run."""
    kept = view.config.checkpoints.keep
    best = any("during" in set_.when for set_ in view.config.evaluations)
    found = {
        "config.json, plugins.json, ...": RECORD_BYTES,
        "checkpoints/": (kept + best) * sum(share.checkpoint_bytes for share in shares.values()),
        "weights/": (kept + 1) * (view.model_size.weight_bytes if view.model_size else 0),
        "demonstrations/, evaluations/": view.episodes * 100,
    }
    return {**found, **{path: size for share in shares.values() for path, size in share.files.items()}}


def context_tokens(config: RunConfig) -> int:
    """The run's window, or that of a task that names none."""
    return limits_for(Limits(), config.limits).context_tokens


# --- footprints of the built-in components ------------------------------------------------------------------------


def inprocess(config: InProcessConfig, run: RunView) -> Footprint:
    """Of `core/inprocess`: episodes while they run, their windows half full."""
    stages = [choice.stage for choice in run.config.stages]
    rolled = [stage.episodes for stage in stages if isinstance(stage, SftStage)]
    for stage in stages:
        if isinstance(stage, RlStage):  # as many groups live as the ledger admits
            live = (stage.max_staleness + 1) * stage.groups_per_step + stage.oversample
            rolled.append(live * stage.group_size)
    evaluated = sum(set_.tasks * set_.attempts for set_ in run.config.evaluations)
    at_once = min(config.max_concurrent, max([*rolled, evaluated]))
    each = 2 * TRACE_BYTES + GROWING_TOKEN_BYTES * context_tokens(run.config) // 2
    return Footprint({"episodes in flight": at_once * each})


def folder(config: Any, run: RunView) -> Footprint:
    """Of `core/folder`: a file for each trace, and one of expert ids for each that is replayed."""
    stages = (choice.stage for choice in run.config.stages)
    routed = sum(
        stage.steps * stage.groups_per_step * stage.group_size
        for stage in stages
        if isinstance(stage, RlStage) and stage.router_replay
    )
    ids = routed * (run.model_size.route_bytes if run.model_size else 0)
    tokens = context_tokens(run.config)
    return Footprint(files={"traces/": run.episodes * TRACE_BYTES + (run.episodes * TOKEN_BYTES + ids) * tokens})


def events(config: Any, run: RunView) -> Footprint:
    """Of `core/jsonl`."""
    steps = sum(choice.stage.steps for choice in run.config.stages)
    return Footprint(files={"events.jsonl": run.episodes * EVENTS_BYTES + steps * 500})
