"""A run folder that looks like a real one, made in a second without training anything.

For tests and for designing reports: events.jsonl, traces, config.json, plugins.json, status.json and summary.json are
written through the real types, trackers and stores; only the numbers are made up, from a seed. Nothing here measures
anything.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

from composer_core import events
from composer_core.columns import Column
from composer_core.events import Event
from composer_core.protocols import BuildContext
from composer_core.records import NoConfig
from composer_core.stores import FolderConfig, FolderStore
from composer_core.traces import encode
from composer_core.tracking import JsonlTracker
from composer_core.trees import File, Patch
from composer_core.types import (
    Branch,
    Call,
    EpisodeResult,
    Fault,
    Message,
    Outcome,
    Score,
    SlotKey,
    Stop,
    ToolResult,
    Trace,
    TraceRef,
    Turn,
    Verdict,
    WeightsRef,
)

START_S = 1_760_000_000.0
TOOLS = {"read_file": 0.3, "grep": 0.14, "edit_file": 0.24, "run_terminal": 0.22, "list_dir": 0.05, "finish": 0.05}
OLD = "def clamp(value, low, high):\n    return max(low, max(value, high))\n"
NEW = "def clamp(value, low, high):\n    return max(low, min(value, high))\n"
EXTRA = "<script>alert('tool output')</script>"


def make_trace(key: SlotKey, solved: bool, *, version: int = 3, output: str = EXTRA, void: str | None = None) -> Trace:
    """A short episode with parallel reads, an edit, a test run and a finish; `output` stands in a tool's result."""
    calls = (
        (Call("c1", "read_file", {"path": "pkg/numbers.py"}), Call("c2", "grep", {"pattern": "clamp", "path": "."})),
        (Call("c3", "edit_file", {"path": "pkg/numbers.py", "old": OLD, "new": NEW}),),
        (Call("c4", "run_terminal", {"command": "python -m pkg.tests"}),),
        (Call("c5", "finish", {"summary": "clamp used max twice"}),) if solved else (),
    )
    texts = {"c1": OLD, "c2": f"pkg/numbers.py:1:def clamp\n{output}", "c3": "edited pkg/numbers.py", "c5": "done"}
    texts["c4"] = "6 passed" if solved else "5 passed, 1 failed\nclamp(9, 0, 5): expected 5, found 9"
    words = ("Let me look at the function and who uses it.", "`max` twice cannot clamp.", "Now the tests.", "Done.")
    turns = tuple(_turn(index, words[index], group, texts, solved) for index, group in enumerate(calls))
    length = 20 + 40 * len(turns)
    branch = Branch(
        ids=Column.of("I32", range(length)),
        sampled=Column.of("U8", (int(at >= 20 and at % 40 >= 20) for at in range(length))),
        logprobs=Column.of("F32", [0.0] * length),
        versions=((-1, 20), (version, length - 20)),
        routes=Column("U8", (length, 2, 2), bytes(range(4)) * length),
    )
    outcome = Outcome.VOID if void else Outcome.SOLVED if solved else Outcome.FAILED
    return Trace(
        key=key,
        group=f"{key.task_id}/0",
        opening=(
            Message("system", "You are a coding agent. Use the tools; finish when the tests pass."),
            Message("user", "clamp gives wrong results for values over the top, pls fix"),
        ),
        branches=(branch,),
        turns=turns,
        stop=Stop.FINISHED if solved else Stop.TURNS,
        verdict=Verdict(outcome, void),
        scores=()
        if void
        else (Score("hidden-tests/hidden", "0.1.0", float(solved), {"passed": 6.0 if solved else 5.0}),),
        patch=Patch((File("pkg/numbers.py", NEW.encode()),)),
        originals=(File("pkg/numbers.py", OLD.encode()),),
        harness="0123456789abcdef",
        faults=(Fault("sandbox", "local/namespaces", "the overlay could not be mounted"),) if void else (),
        stats={"wall_s": 1.4, "generate_s": 0.9, "tools_s": 0.31, "grade_s": 0.12, "turns": float(len(turns))},
        labels={"module": "numbers", "operator": "swap_min_max"},
    )


def _turn(index: int, words: str, calls: tuple[Call, ...], texts: dict[str, str], solved: bool) -> Turn:
    results = tuple(
        ToolResult(
            call.id,
            call.name,
            texts[call.id],
            ok=solved or call.name != "run_terminal",
            exit_code=(0 if solved else 1) if call.name == "run_terminal" else None,
            wall_s=0.02,
        )
        for call in calls
    )
    start = 20 + 40 * index
    return Turn(index, 0, start, start + 20, words, calls, results, generate_s=0.21, tools_s=0.06)


@frozen
class SyntheticRun:
    """How large the made-up run is."""

    seed: int = 0
    rl_steps: int = 60
    groups: int = 2
    """Groups of four episodes in each step."""
    status: str = "finished"
    name: str = "quickstart"
    output: str = EXTRA
    """Text in a tool's result of every trace."""

    def write(self, run_dir: Path) -> Path:
        """Write the whole folder; returns it."""
        run_dir.mkdir(parents=True, exist_ok=True)
        rng = random.Random(self.seed)
        store = FolderStore(FolderConfig(), BuildContext(run_dir))
        tracker = JsonlTracker(NoConfig(), BuildContext(run_dir))
        for event in self.events(rng, store):
            tracker.write(event)
        tracker.close()
        config = {"name": self.name, "seed": self.seed, "executor": {"use": "core/inprocess"}}
        (run_dir / "config.json").write_text(json.dumps(config, indent=1))
        listed = [{"name": name, "dist": f"composer-plugin-{name}", "version": "0.1.0"} for name in PLUGINS]
        (run_dir / "plugins.json").write_text(json.dumps(listed))
        (run_dir / "status.json").write_text(json.dumps(self.stage_status()))
        if self.status == "finished":
            (run_dir / "summary.json").write_text(json.dumps(self.summary()))
        return run_dir

    def events(self, rng: random.Random, store: FolderStore) -> Iterator[Event]:
        yield events.RunStarted(time_s=START_S, name=self.name, run_dir=f"runs/{self.name}", plugins=PLUGINS)
        yield from self._stage("pretrain", 80, START_S + 2, rng)
        yield from self._evaluations("before", 0, START_S + 95, 0.41, 0.46)
        yield from self._stage("sft", 50, START_S + 100, rng)
        yield from self._rl(START_S + 230, rng, store)
        yield from self._evaluations("after", self.rl_steps, START_S + 440, 0.81, 0.84)
        yield events.Evaluated(
            time_s=START_S + 450, name="control/blank observations", step=self.rl_steps, metrics=_rate(0.04)
        )
        yield events.Evaluated(time_s=START_S + 452, name="control/best guess", step=self.rl_steps, metrics=_rate(0.31))
        if self.status != "killed":
            summary = self.summary() if self.status == "finished" else {}
            yield events.RunEnded(time_s=START_S + 460, status=self.status, summary=summary)

    def _stage(self, name: str, steps: int, start_s: float, rng: random.Random) -> Iterator[Event]:
        yield events.StageStarted(time_s=start_s, stage=name, kind=name, steps=steps)
        for step in range(1, steps + 1):
            metrics = {
                "loss": 6.0 * math.exp(-step / 18) + 0.6 + rng.gauss(0, 0.05),
                "accuracy": min(0.98, 0.9 * (1 - math.exp(-step / 20)) + rng.gauss(0, 0.01)),
                "trainer_tokens_per_s": 26_000 + rng.gauss(0, 1500),
                "learning_rate": 3e-3 * min(1, step / 10) * (1 - step / steps * 0.9),
            }
            yield events.StepEnded(
                time_s=start_s + step, stage=name, step=step, steps=steps, version=0, metrics=metrics
            )
        yield events.StageEnded(time_s=start_s + steps + 1, stage=name)

    def _rl(self, start_s: float, rng: random.Random, store: FolderStore) -> Iterator[Event]:
        yield events.StageStarted(time_s=start_s, stage="rl", kind="rl", steps=self.rl_steps)
        for step in range(1, self.rl_steps + 1):
            now = start_s + step * 3.2
            done = step / self.rl_steps
            rate = 0.4 + 0.42 * (1 - math.exp(-2.5 * done)) + rng.gauss(0, 0.03)
            yield from self._episodes(step, now - 1, rate, rng, store)
            metrics = _rl_metrics(rate, done, rng)
            yield events.StepEnded(
                time_s=now, stage="rl", step=step, steps=self.rl_steps, version=step, metrics=metrics
            )
            weights = WeightsRef(step, f"weights/{step}.safetensors", "0" * 64)
            yield events.WeightsPublished(time_s=now, weights=weights)
            if step % 15 == 0:
                yield events.Evaluated(
                    time_s=now, name=f"step-{step}/new_bug T=1", step=step, metrics=_rate(min(0.95, rate))
                )
        yield events.StageEnded(time_s=start_s + 200, stage="rl", summary={"steps": self.rl_steps})

    def _episodes(
        self, step: int, now_s: float, rate: float, rng: random.Random, store: FolderStore
    ) -> Iterator[Event]:
        for slot in range(self.groups * 4):
            key = SlotKey(f"numbers.clamp-{step * self.groups + slot // 4}", slot % 4)
            void = "sandbox" if rng.random() < 0.01 else None
            trace = make_trace(key, rng.random() < rate, version=step - 1, output=self.output, void=void)
            data = encode(trace)
            ref = TraceRef(store.put(f"traces/{key.episode_id}.trace", data), hashlib.sha256(data).hexdigest())
            reward = sum(score.value * score.weight for score in trace.scores)
            result = EpisodeResult(
                key,
                trace.group,
                ref,
                trace.verdict,
                trace.scores,
                reward,
                step - 1,
                trace.stats,
                trace.stop,
                trace.faults,
            )
            yield events.EpisodeEnded(time_s=now_s, result=result)
            for fault in trace.faults:
                yield events.FaultRecorded(time_s=now_s, fault=fault, episode_id=key.episode_id)

    def _evaluations(self, when: str, step: int, now_s: float, sampled: float, greedy: float) -> Iterator[Event]:
        cases = (
            ("new_bug T=1", sampled),
            ("new_bug T=0.5", sampled + 0.03),
            ("new_bug greedy", greedy),
            ("new_function T=1", sampled / 2),
        )
        for name, rate in cases:
            yield events.Evaluated(time_s=now_s, name=f"{when}/{name}", step=step, metrics=_rate(rate))

    def stage_status(self) -> dict[str, object]:
        """Made-up numbers under the names of a real status.json: of a stage's end, or of its middle if it has none."""
        over = self.status == "finished"
        step = self.rl_steps if over else self.rl_steps // 2
        trained, live = step * self.groups, 0 if over else 3
        return {
            "time_s": START_S + 450, "stage": "rl", "step": step, "steps": self.rl_steps, "version": step, "doing": "",
            "waits_for": f"{live * 2} running episodes", "elapsed_s": 200.0, "episodes": trained * 4, "tokens": 9_000,
            "episodes_per_s": 2.5, "tokens_per_s": 112.0,
            "running": [{"group": trained, "slot": at, "task": "numbers.clamp-7", "for_s": 1.5} for at in range(live)],
            "ledger": {
                "admitted": trained + live + 1, "capacity": 6,
                "slots": {"pending": live, "running": live * 2, "valid": live, "void": 0},
                "groups": {"open": live, "ended": 0, "training": 0},
                "versions": {str(step): live} if live else {},
                "staleness": {"0": trained // 4, "1": trained - trained // 4},
                "voids": {"sandbox": 5}, "dropped": {"void": 1, "tokens": 812},
                "valid": trained * 4 + live, "void": 5, "lost": 3, "cancelled": 0, "late_results": 1,
                "refused_results": 2, "trained_groups": trained,
            },
            "executor": {"episodes": trained * 4, "loop_lag_p99_ms": 3.1},
        }  # fmt: skip

    def summary(self) -> dict[str, object]:
        """Made-up numbers under the names of a real summary."""
        return {
            "solve_rate_before": 0.41, "solve_rate_after": 0.81,
            "ci95_before": [0.37, 0.45], "ci95_after": [0.78, 0.84],
            "greedy_before": 0.46, "greedy_after": 0.84, "best_of_8_before": 0.83, "best_of_8_after": 0.94,
            "new_function_after": 0.41, "control_blank": 0.04, "control_guess": 0.31, "attempts": 512,
            "episodes": self.rl_steps * self.groups * 4, "episodes_per_s": 41.2, "turns_mean": 5.1, "calls_mean": 6.3,
            "sampler_tokens_per_s": 10_720.0, "trainer_tokens_per_s": 26_110.0, "fork_p50_ms": 1.9, "exec_p50_ms": 8.4,
            "parity_p999": 2.4e-6, "void_share": 0.009, "truncated_share": 0.08, "bad_call_share": 0.012,
            "loop_lag_p99_ms": 3.1, "wall_s": 460.0, "peak_rss_bytes": 2_147_483_648, "seed": self.seed,
            "commit": "0" * 12, "cpu": "2 cores", "versions": {"composer-core": "0.1.0", "torch": "2.13.0"},
        }  # fmt: skip


PLUGINS = ("code", "drills", "hf", "hidden-tests", "local", "policy", "report", "torch-sampler")


def _rate(rate: float) -> dict[str, float]:
    half = 1.96 * math.sqrt(rate * (1 - rate) / 512)
    more = {"best_of_8": 1 - (1 - rate) ** 3, "turns_mean": 5.1, "calls_mean": 6.3, "episodes": 512.0}
    return {"solve_rate": rate, "ci95_low": rate - half, "ci95_high": rate + half, **more}


def _rl_metrics(rate: float, done: float, rng: random.Random) -> dict[str, float]:
    noise = {name: max(0.0, share * (1 + rng.gauss(0, 0.06))) for name, share in TOOLS.items()}
    noise["read_file"] += 0.15 * done
    total = sum(noise.values())
    return {
        "reward_mean": rate - 0.02,
        "reward_mean_ci95": 0.07,
        "solve_rate": rate,
        "solve_rate_ci95": 0.08,
        "best_of_group": min(1.0, rate + 0.22 * (1 - done)),
        "turns_mean": 4.2 + done + rng.gauss(0, 0.1),
        "calls_mean": 4.6 + 1.6 * done + rng.gauss(0, 0.1),
        "tokens_mean": 205 + 40 * done + rng.gauss(0, 4),
        "parallel_width": 1.1 + 0.3 * done + rng.gauss(0, 0.02),
        "void_share": 0.01 if rng.random() < 0.1 else 0.0,
        "flat_share": 0.2 + 0.25 * done + rng.gauss(0, 0.03),
        "episodes_per_s": 41 + rng.gauss(0, 2),
        "sampler_tokens_per_s": 10_700 + rng.gauss(0, 400),
        "trainer_tokens_per_s": 26_000 + rng.gauss(0, 900),
        "parity_p999": 10 ** rng.gauss(-5.7, 0.15),
        "loss": rng.gauss(0, 0.02),
        "grad_norm": 0.4 + abs(rng.gauss(0, 0.1)),
        "entropy": 0.5 - 0.3 * done + rng.gauss(0, 0.01),
        "staleness_max": float(rng.random() < 0.3),
        **{f"tool/{name}": share / total for name, share in noise.items()},
    }
