"""The built-in console tracker: one live line on a terminal, rate-limited plain lines elsewhere.

It shows what a person asks first: stage, step, episodes, reward, solve rate, tokens a second, time left. Its clock is
the events' own, so a replayed run prints the same text. Marks (stages, evaluations, checkpoints, the end) are always
printed; steps and repeated faults are held to one line each `every_s`. A reader that goes away (`| head`) ends the
printing, never the run.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping

from attrs import Factory, define, evolve, frozen
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from composer_core.events import (
    EpisodeEnded,
    Evaluated,
    Event,
    FaultRecorded,
    PluginFailed,
    RunEnded,
    RunStarted,
    StageEnded,
    StageStarted,
    StepEnded,
)
from composer_core.printable import clock, printable
from composer_core.protocols import BuildContext

SHOWN = {"reward_mean": "reward", "solve_rate": "solved", "loss": "loss", "accuracy": "accuracy"}
RATES = {"sampler_tokens_per_s": "sampled", "trainer_tokens_per_s": "trained"}


@frozen
class ConsoleConfig:
    every_s: float = 10.0
    """Least time between two plain lines about steps, and between two about the same fault."""


@define
class _Stage:
    name: str
    steps: int | None
    started_s: float
    first: tuple[int, float] | None = None
    """The first step since the stage (re)started, and when it ended; what came before it says nothing of the pace."""
    step: int = 0
    episodes: int = 0
    metrics: Mapping[str, float] = Factory(dict)
    printed_s: float = float("-inf")

    def left_s(self, now_s: float) -> float | None:
        """At the pace of the steps since the first."""
        if self.steps is None or self.first is None or self.step <= self.first[0]:
            return None
        first, ended_s = self.first
        return (now_s - ended_s) / (self.step - first) * max(0, self.steps - self.step)


class _Console(Console):
    """Goes silent when nobody reads any more; rich's own exits."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(
            nowhere, self.file.fileno()
        )  # for what is left in the stream, which is flushed at exit, and all after it
        os.close(nowhere)


class ConsoleTracker:
    """Writes to standard error, which leaves standard output to results."""

    def __init__(self, config: ConsoleConfig, build: BuildContext, console: Console | None = None) -> None:
        self._config = config
        self._console = console or _Console(stderr=True, highlight=False)
        self._live: Progress | None = None
        self._task: TaskID | None = None
        self._stage: _Stage | None = None
        self._started_s = 0.0
        self._now_s = 0.0
        self._faults: Counter[str] = Counter()
        self._fault_s: dict[str, float] = {}
        self._rolled: Counter[str] = Counter()
        self._rolled_s = float("-inf")
        self._on: dict[type[Event], Callable[..., None]] = {
            RunStarted: self._run_started,
            StageStarted: self._stage_started,
            StageEnded: self._stage_ended,
            EpisodeEnded: self._episode_ended,
            StepEnded: self._step_ended,
            Evaluated: self._evaluated,
            FaultRecorded: self._fault,
            PluginFailed: self._plugin_failed,
            RunEnded: self._run_ended,
        }

    def write(self, event: Event) -> None:
        if event.time_s < self._now_s:  # no time of its own: it happened just now
            event = evolve(event, time_s=self._now_s)
        self._now_s = event.time_s
        handler = self._on.get(type(event))
        if handler is not None:
            handler(event)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _run_started(self, event: RunStarted) -> None:
        self._started_s = event.time_s
        how = f"resumed from {event.resumed_from}" if event.resumed_from else "started"
        self._say(event, f"run {event.name} {how} in {event.run_dir}")

    def _stage_started(self, event: StageStarted) -> None:
        self._stage = _Stage(event.stage, event.steps, event.time_s)
        if self._console.is_terminal:
            self._show_bar(event)
        else:
            length = f", {event.steps} steps" if event.steps else ""
            self._say(event, f"stage {event.stage} ({event.kind}{length})")

    def _stage_ended(self, event: StageEnded) -> None:
        if self._stage is not None:
            spent = clock(event.time_s - self._stage.started_s)
            self._say(event, f"stage {event.stage} ended after {spent}: {self._text(event.time_s)}")
        if self._live is not None and self._task is not None:
            self._live.remove_task(self._task)
            self._task = None
        self._stage = None

    def _episode_ended(self, event: EpisodeEnded) -> None:
        if self._stage is not None:
            self._stage.episodes += 1
            self._refresh(event)
        self._rolled[event.purpose] += 1
        since_s = event.time_s - max(self._rolled_s, self._stage.printed_s if self._stage else float("-inf"))
        if not self._console.is_terminal and since_s >= self._config.every_s:
            self._rolled_s = event.time_s
            self._say(event, f"{event.purpose}: {self._rolled[event.purpose]:,} episodes")

    def _step_ended(self, event: StepEnded) -> None:
        stage = self._stage
        if stage is None or stage.name != event.stage:
            stage = self._stage = _Stage(event.stage, event.steps, event.time_s)
        stage.first = stage.first or (event.step, event.time_s)
        stage.step, stage.steps, stage.metrics = event.step, event.steps or stage.steps, event.metrics
        if self._console.is_terminal:
            self._refresh(event)
        elif event.time_s - stage.printed_s >= self._config.every_s:
            stage.printed_s = event.time_s
            of = f"/{stage.steps}" if stage.steps else ""
            self._say(event, f"{stage.name} step {stage.step}{of}: {self._text(event.time_s)}")

    def _evaluated(self, event: Evaluated) -> None:
        metrics = event.metrics
        interval = f" ({metrics['ci95_low']:.3f} to {metrics['ci95_high']:.3f})" if "ci95_low" in metrics else ""
        first = f"solved {metrics['solve_rate']:.3f}{interval}" if "solve_rate" in metrics else ""
        rest = [f"{name} {metrics[name]:.4g}" for name in ("episodes", "turns_mean", "calls_mean") if name in metrics]
        voids = f"{metrics['voids']:.0f} void" if metrics.get("voids") else ""
        told = ", ".join(part for part in (first or "nothing measured", *rest, voids) if part)
        self._say(event, f"evaluation {event.name}: {told}")

    def _fault(self, event: FaultRecorded) -> None:
        fault = event.fault
        key = f"{fault.where} {fault.plugin}"
        self._faults[key] += 1
        if event.time_s - self._fault_s.get(key, float("-inf")) >= self._config.every_s:
            self._fault_s[key] = event.time_s
            times = f" ({self._faults[key]} so far)" if self._faults[key] > 1 else ""
            self._say(event, f"fault in {fault.where} ({fault.plugin}){times}: {fault.error}")

    def _plugin_failed(self, event: PluginFailed) -> None:
        self._say(event, f"plugin {event.plugin} ({event.dist} {event.version}) failed: {event.error}")

    def _run_ended(self, event: RunEnded) -> None:
        self.close()
        self._say(event, f"run {event.status} after {clock(event.time_s - self._started_s)}")

    # --- text -------------------------------------------------------------------------------------------------

    def _text(self, now_s: float) -> str:
        stage = self._stage
        if stage is None:
            return ""
        parts = [f"{label} {stage.metrics[name]:.3f}" for name, label in SHOWN.items() if name in stage.metrics]
        if stage.episodes:
            parts.append(f"{stage.episodes:,} episodes")
        parts += [
            f"{stage.metrics[name]:,.0f} tokens/s {word}" for name, word in RATES.items() if name in stage.metrics
        ]
        left = stage.left_s(now_s)
        if left:
            parts.append(f"{clock(left)} left")
        return ", ".join(parts) or "no steps"

    def _say(self, event: Event, text: str) -> None:
        at = clock(event.time_s - self._started_s)
        console = self._live.console if self._live is not None else self._console
        console.print(f"[dim]{at}[/dim] {escape(printable(text))}", soft_wrap=True)

    def _show_bar(self, event: StageStarted) -> None:
        if self._live is None:
            bar = BarColumn(bar_width=20)
            count = TextColumn("{task.completed:.0f}/{task.fields[of]}")
            columns = (SpinnerColumn(), TextColumn("{task.description}"), bar, count, TextColumn("{task.fields[text]}"))
            self._live = Progress(*columns, console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        if self._task is not None:
            self._live.remove_task(self._task)
        name, of = escape(printable(event.stage)), event.steps or "?"
        self._task = self._live.add_task(name, total=event.steps, text="", of=of)

    def _refresh(self, event: Event) -> None:
        stage = self._stage
        if self._live is not None and self._task is not None and stage is not None:
            text = escape(self._text(event.time_s))
            self._live.update(self._task, completed=stage.step, total=stage.steps, text=text, of=stage.steps or "?")
