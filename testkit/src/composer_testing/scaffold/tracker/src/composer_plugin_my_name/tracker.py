"""Steps as CSV: one row a metric, so that stages with different metrics share one file and its header never changes."""

import csv

from composer_core import BuildContext, NoConfig
from composer_core.events import Event, StepEnded

COLUMNS = ("time_s", "stage", "step", "version", "metric", "value")


class MyNameTracker:
    """`protocols.Tracker`: called from one thread with every event of the run in order; it writes down what it knows.

    A resumed run appends. Steps that are repeated after a crash stand in the file twice; the later rows count.
    """

    def __init__(self, config: NoConfig, build: BuildContext) -> None:
        folder = build.run_dir / "my-name"
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / "steps.csv").open("a", encoding="utf-8", errors="backslashreplace", newline="")
        self._writer = csv.writer(self._file)
        if self._file.tell() == 0:
            self._writer.writerow(COLUMNS)

    def write(self, event: Event) -> None:
        """Called within the run, so it must not block; flushed, so that a kill loses nothing that was written."""
        if isinstance(event, StepEnded):
            step = (event.time_s, event.stage, event.step, event.version)
            self._writer.writerows((*step, name, value) for name, value in event.metrics.items())
            self._file.flush()

    def close(self) -> None:
        """Safe twice."""
        self._file.close()
