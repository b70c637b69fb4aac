"""Draw what moved between the processes of a run that has ended, per step of reinforcement learning, as an SVG.

python tools/data_flow.py runs/reference docs/reference-pipeline.svg

Everything is read from the run folder and the store of its weights: events, traces, records of weights. Ids and
log-probabilities are counted with 4 bytes each, expert ids and the mask of what was sampled as they are held; what
carries a message is not counted.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from data_flow_svg import drawn

from composer_core.columns import Blob, Column
from composer_core.traces import decode
from composer_core.tracking import read_events
from composer_core.types import Trace

ID_BYTES = LOGPROB_BYTES = 4


class Flow(NamedTuple):
    """What went over one edge in all steps."""

    what: str
    messages: int
    size_bytes: float


def flows(run: Path) -> tuple[dict[str, Flow], int]:
    """Flow by the name of its edge, and the number of steps."""
    events = list(read_events(run))
    steps = [one for one in events if one["event"] == "StepEnded" and one["stage"] == _rl(run)]
    files = {path: decode(path.read_bytes()) for path in sorted((run / "traces").glob("*.trace"))}
    kept = {path: trace for path, trace in files.items() if trace.key.stage == _rl(run)}
    results = [one for one in events if one["event"] == "EpisodeEnded" and one["purpose"] == _rl(run)]
    written = sum(path.stat().st_size for path in kept)
    exported = [path.stat().st_size for path in (run / "weights").glob("*.safetensors")]
    shipped = list(_shipped(run, {step["version"] + 1 for step in steps})) or exported
    return {
        "episodes": Flow("episodes asked for, results back", 2 * len(results), _json_bytes(results)),
        **_of_traces(kept.values()),
        "traces": Flow("traces written", len(kept), written),
        "read": Flow("traces read", len(kept), written),
        "weights": Flow("weights exported", len(steps), len(steps) * fmean(exported)),
        "differences": Flow("weights shipped", len(steps), len(steps) * fmean(shipped)),
    }, len(steps)


def _of_traces(traces: Iterable[Trace]) -> dict[str, Flow]:
    """What the episodes themselves tell of their turns, calls and branches."""
    traces = list(traces)
    turns = [turn for trace in traces for turn in trace.turns]
    pairs = [pair for turn in turns for pair in zip(turn.calls, turn.results, strict=False) if not pair[0].problem]
    branches = [branch for trace in traces for branch in trace.branches]
    routes = sum(_held(branch.routes) for branch in branches)
    sampled = sum(turn.stop - turn.start for turn in turns)
    said = sum(len(json.dumps(dict(call.arguments)).encode()) for call, _ in pairs)
    said += sum(len(result.text.encode()) for _, result in pairs)
    rows = sum(len(branch) * (ID_BYTES + LOGPROB_BYTES + 1) for branch in branches)
    return {
        "shown": Flow("turns asked for: ids", len(turns), ID_BYTES * sum(turn.start for turn in turns)),
        "sampled": Flow("ids, log-probabilities, experts", len(turns), (ID_BYTES + LOGPROB_BYTES) * sampled + routes),
        "calls": Flow("calls executed, results", 2 * len(pairs), said),
        "batch": Flow("branches to train", len(branches), rows + routes),
    }


def _shipped(run: Path, versions: Collection[int]) -> Iterator[int]:
    """Bytes of what went through the store, whole or as differences; older versions are gone from it."""
    for path in (run / (_config(run)["executor"].get("weights_store") or "none")).glob("*.json"):
        if int(path.stem) in versions:
            yield json.loads(path.read_text(encoding="utf-8"))["size_bytes"]


def _held(routes: Column | Blob | None) -> int:
    """Bytes of expert ids, wherever they lie."""
    return math.prod(routes.shape) * (1 if routes.dtype == "U8" else 2) if routes else 0


def _rl(run: Path) -> str:
    """The name of the run's rl stage."""
    (name,) = [stage["name"] for stage in _config(run)["stages"] if stage["kind"] == "rl"]
    return str(name)


def _config(run: Path) -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads((run / "config.json").read_text(encoding="utf-8"))
    return found


def _json_bytes(events: Iterable[Mapping[str, Any]]) -> int:
    return sum(len(json.dumps(one["result"]).encode()) for one in events)


def main(run: Path, out: Path) -> None:
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    found, steps = flows(run)
    labels = {name: (flow.what, flow.messages / steps, flow.size_bytes / steps) for name, flow in found.items()}
    places = [name.split("/")[1] for name in summary["stats"] if name.endswith("/pid")]
    out.write_text(drawn(summary["name"], steps, labels, places, summary["stats"]), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
