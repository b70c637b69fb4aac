"""What a run takes before it takes it: peak memory of each process, and what it leaves in the run folder.

Every component tells its own share (`footprint`); core adds what the loop itself holds. One that weighs and tells
nothing is named as unknown, never guessed. The constants are measured, on Linux and CPython 3.11, from
examples/quickstart; tests compare the sums with real runs, which must lie within 30 %.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import Factory, asdict, evolve, frozen

from composer_core.choices import Chosen
from composer_core.config import InProcessConfig, RlStage, RunConfig, SftStage, limits_for
from composer_core.errors import CheckError, boundary
from composer_core.footprint import Footprint, Process
from composer_core.hookspecs import RunView
from composer_core.records import resolve
from composer_core.types import Limits

WEIGHTY = ("tasks", "models", "samplers", "trainers", "sandboxes", "executors")
"""Kinds whose share is worth counting, so that silence about it is said."""

PYTHON = "python and core"
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


@frozen
class Estimate:
    """The shares of all components, and their sums."""

    shares: Mapping[str, Footprint]
    """Key and id of a component -> what it told."""
    unknown: tuple[str, ...]
    """Components of weighty kinds that told nothing."""
    config: RunConfig
    episodes: int
    measured: Mapping[str, int] = Factory(dict)
    """What imports take on this machine, where that was measured; in the place of what plugins state."""

    def parts(self) -> dict[str, int]:
        """What the run's own process holds at its peak, part by part, in bytes."""
        python = self.measured.get(PYTHON, PYTHON_BYTES)
        found = {PYTHON: python, "results of episodes": self.episodes * RESULT_BYTES}
        context = context_tokens(self.config)
        held = [c.stage.episodes for c in self.config.stages if isinstance(c.stage, SftStage)]
        found["demonstrations"] = max(held, default=0) * (TRACE_BYTES * 2 + TOKEN_BYTES * context)
        for share in self.shares.values():
            for name, size in share.imports.items():
                found[f"import {name}"] = self.measured.get(name, max(size, found.get(f"import {name}", 0)))
        found |= {f"{key}: {part}": size for key, share in self.shares.items() for part, size in share.parts.items()}
        return {part: size for part, size in found.items() if size}

    def processes(self) -> list[dict[str, Any]]:
        """The run's own process first, then those that components start."""
        own = Process("the run itself", 1, sum(self.parts().values()))
        return [asdict(one) for one in (own, *(one for share in self.shares.values() for one in share.processes))]

    def files(self) -> dict[str, int]:
        """Path below the run folder -> bytes at the end of the run."""
        kept = self.config.checkpoints.keep
        best = any("during" in set_.when for set_ in self.config.evaluations)
        weights = sum(share.model.weight_bytes for share in self.shares.values() if share.model)
        checkpoint = sum(share.checkpoint_bytes for share in self.shares.values())
        found = {
            "config.json, plugins.json, ...": RECORD_BYTES,
            "checkpoints/": (kept + best) * checkpoint,
            "weights/": (kept + 1) * weights,
            "demonstrations/, evaluations/": self.episodes * 100,
        }
        for share in self.shares.values():
            found |= share.files
        return found


def estimate(components: list[Chosen], view: RunView, *, measure: bool = False) -> Estimate:
    """Ask every component, models first; `view.episodes` says how long the run is, `measure` tries imports here.

    Raises:
        PluginFault: a component's footprint function failed.
    """
    shares, unknown = {}, []
    for one in sorted(components, key=lambda one: one.entry.spec.kind != "models"):
        told = _ask(one, view)
        name = f"{one.key} {one.entry.id}"
        if told is None and one.entry.spec.kind in WEIGHTY:
            unknown.append(name)
        shares[name] = told or Footprint()
        view = evolve(view, model_size=shares[name].model or view.model_size)
    packages = dict.fromkeys(name for share in shares.values() for name in share.imports)
    measured = measure_imports(packages) if measure else {}
    return Estimate(shares, tuple(unknown), view.config, view.episodes, measured)


MEASURE = """
import json, sys
from importlib import import_module
from composer_core.summary import peak_rss_bytes
from composer_core.commands import train
held = [peak_rss_bytes()]
for name in sys.argv[1:]:
    import_module(name)
    held.append(peak_rss_bytes())
print()
print(json.dumps(held))
"""


def measure_imports(names: Iterable[str]) -> dict[str, int]:
    """Bytes that Python with core takes here, and that importing each package adds, in a process of its own.

    Raises:
        CheckError: one of them cannot be imported.
    """
    given = list(names)
    found = subprocess.run([sys.executable, "-c", MEASURE, *given], capture_output=True, text=True, check=False)
    if found.returncode:
        words = (found.stderr.strip() or "no words").splitlines()[-1]
        raise CheckError("packages of this run cannot be imported", expected=", ".join(given), found=words)
    held = json.loads(found.stdout.splitlines()[-1])
    return {name: after - before for name, before, after in zip([PYTHON, *given], [0, *held], held, strict=False)}


def _ask(one: Chosen, view: RunView) -> Footprint | None:
    given = one.entry.spec.footprint
    if given is None or isinstance(given, Footprint):
        return given
    with boundary(one.entry.spec.kind, one.entry.id):
        told: Footprint | None = resolve(given)(one.settings, view)
        return told


def context_tokens(config: RunConfig) -> int:
    """The run's window, or that of a task that names none."""
    return limits_for(Limits(), config.limits).context_tokens


# --- footprints of the built-in components ------------------------------------------------------------------------


def inprocess(config: InProcessConfig, run: RunView) -> Footprint:
    """Of `core/inprocess`: episodes while they run, their windows half full."""
    stages = [choice.stage for choice in run.config.stages]
    rolled = [stage.episodes for stage in stages if isinstance(stage, SftStage)]
    rolled += [stage.groups_per_step * stage.group_size for stage in stages if isinstance(stage, RlStage)]
    evaluated = sum(set_.tasks * set_.attempts for set_ in run.config.evaluations)
    at_once = min(config.max_concurrent, max([*rolled, evaluated]))
    each = 2 * TRACE_BYTES + GROWING_TOKEN_BYTES * context_tokens(run.config) // 2
    return Footprint({"episodes in flight": at_once * each})


def folder(config: Any, run: RunView) -> Footprint:
    """Of `core/folder`: a file for each trace."""
    return Footprint(files={"traces/": run.episodes * (TRACE_BYTES + TOKEN_BYTES * context_tokens(run.config))})


def events(config: Any, run: RunView) -> Footprint:
    """Of `core/jsonl`."""
    steps = sum(choice.stage.steps for choice in run.config.stages)
    return Footprint(files={"events.jsonl": run.episodes * EVENTS_BYTES + steps * 500})
