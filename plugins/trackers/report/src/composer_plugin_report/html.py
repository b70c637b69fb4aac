"""The tracker that leaves a report.html behind when a run ends, and the function that makes one of any run folder."""

from __future__ import annotations

from pathlib import Path

from composer_core.events import Event, RunEnded
from composer_core.history import History
from composer_core.protocols import BuildContext
from composer_core.tracking import to_record
from composer_plugin_report.config import HtmlConfig
from composer_plugin_report.model import page_model
from composer_plugin_report.page import page
from composer_plugin_report.windows import KINDS, Windows


class HtmlTracker:
    """Folds events as they come, on top of those a resumed run wrote before, and writes the page at RunEnded."""

    def __init__(self, config: HtmlConfig, build: BuildContext) -> None:
        self._config = config
        self._run_dir = build.run_dir
        self._history = History.read(build.run_dir)
        self._windows = Windows.read(build.run_dir)

    def write(self, event: Event) -> None:
        if type(event).__name__ in History.KINDS | KINDS:
            record = to_record(event)
            self._history.add(record)
            self._windows.add(record)
        if isinstance(event, RunEnded):
            write_report(self._run_dir, self._config, self._history, self._windows)

    def close(self) -> None:
        """Nothing is held open."""


def write_report(
    run_dir: Path,
    config: HtmlConfig | None = None,
    history: History | None = None,
    windows: Windows | None = None,
) -> Path:
    """Write `run_dir`/report.html from the folder (or from the folds at hand); returns its path."""
    history = history if history is not None else History.read(run_dir)
    text = page(page_model(run_dir, history, config or HtmlConfig(), windows))
    target, part = run_dir / "report.html", run_dir / ".part-report.html"
    run_dir.mkdir(parents=True, exist_ok=True)
    part.write_text(text, encoding="utf-8")
    part.replace(target)
    return target
