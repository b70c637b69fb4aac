"""Built-in trackers: events as JSON lines, and the fan-out that stands between a run and whoever watches it.

An observer never stops a run and never slows it: `Trackers.emit` appends to a queue and returns; one thread of its own
hands every event to every tracker, in order. A tracker that raises is attributed, counted and told about through the
others, and goes on receiving events; so is one that asks for an exit, which is not its to ask for. `flush` waits for
what was emitted so far, for places where a run commits, and for nothing once that thread is gone.

`events.jsonl` is the run's diary: one event a line, flushed line by line, continued on resume. Steps and episodes that
were repeated after a crash stand in it twice; readers keep the later one (`history.History` does).
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from cattrs import Converter

from composer_core import events
from composer_core.errors import PluginFault, StoreError, boundary, who
from composer_core.events import Event, FaultRecorded
from composer_core.protocols import BuildContext, Tracker
from composer_core.records import NoConfig
from composer_core.types import Fault

__all__ = [
    "JsonlTracker",
    "Trackers",
    "events_path",
    "read_events",
    "to_event",
    "to_record",
]

_CONVERTER = Converter()


def to_record(event: Event) -> dict[str, Any]:
    """The event as JSON-like data, with "event" naming its class."""
    return {"event": type(event).__name__, **_CONVERTER.unstructure(event)}


def to_event(record: Mapping[str, Any]) -> Event:
    """The inverse of `to_record`."""
    kind: type[Event] = getattr(events, record["event"])
    return _CONVERTER.structure({name: value for name, value in record.items() if name != "event"}, kind)


def events_path(run_dir: Path) -> Path:
    return run_dir / "events.jsonl"


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a file or of a run folder, in order; a last line cut short by a kill is left out.

    Raises:
        StoreError: a line before the last one is not an event.
    """
    path = events_path(path) if path.is_dir() else path
    if not path.exists():
        return
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
                record["event"]
            except (ValueError, TypeError, KeyError) as error:
                raise StoreError("not an event", where=f"{path}, line {number}", found=repr(line[:80])) from error
            yield record


class JsonlTracker:
    """Appends every event to events.jsonl in the run folder."""

    def __init__(self, config: NoConfig, build: BuildContext) -> None:
        path = events_path(build.run_dir)
        path.parent.mkdir(parents=True, exist_ok=True)
        _drop_cut_line(path)
        self._file: IO[str] | None = path.open("a", encoding="ascii", buffering=1)

    def write(self, event: Event) -> None:
        if self._file is not None:
            self._file.write(_to_line(to_record(event)))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _to_line(record: dict[str, Any]) -> str:
    try:
        text = json.dumps(record, separators=(",", ":"), default=str, allow_nan=False)
    except ValueError:  # not finite: JSON has no word for it, so the text stands in
        text = json.dumps(_finite(record), separators=(",", ":"), default=str)
    return text + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _drop_cut_line(path: Path) -> None:
    """Cut a file that a kill left in mid-line back to its last whole line."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        size = file.seek(0, 2)
        tail = b""
        while size > 0 and b"\n" not in tail:
            step = min(size, 1 << 16)
            size = file.seek(size - step)
            tail = file.read(step)
            file.seek(size)
        file.truncate(size + tail.rfind(b"\n") + 1)


class Trackers:
    """Hands events to trackers by component id, in order, from one thread of its own."""

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._trackers = dict(trackers)
        self._queue: SimpleQueue[Event | threading.Event | None] = SimpleQueue()
        self._closed = False
        self.failures: Counter[str] = Counter()
        """Failed calls by component id."""
        self._calling = ""
        self._unclosed: list[Exception] = []
        self._thread = threading.Thread(target=self._run, name="composer-trackers", daemon=True)
        self._thread.start()

    def emit(self, event: Event) -> None:
        """Hand over an event; returns at once, never raises. Events after `close` are dropped."""
        if not self._closed:
            self._queue.put(event)

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Wait until everything emitted so far has been handed on; False if that took longer or nobody hands it on."""
        if self._closed:
            return True
        reached, until_s = threading.Event(), time.monotonic() + timeout_s
        self._queue.put(reached)
        while self._thread.is_alive() and (left_s := until_s - time.monotonic()) > 0:
            if reached.wait(min(left_s, 0.5)):
                break
        return reached.is_set()

    def close(self, timeout_s: float = 30.0) -> Sequence[Exception]:
        """Hand on what is queued, then close every tracker; returns what failed or was not done in time. Safe twice."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                late = f"{who(self._calling)} (trackers) was still busy {timeout_s:g} s after the end"
                return [PluginFault(late, kind="trackers", plugin=self._calling)]
        return self._unclosed

    def _run(self) -> None:
        try:
            while (item := self._queue.get()) is not None:
                if isinstance(item, threading.Event):
                    item.set()
                else:
                    self._write(item, tuple(self._trackers))
        finally:
            faults = [self._guarded(name, tracker.close) for name, tracker in self._trackers.items()]
            self._unclosed = [fault for fault in faults if fault]

    def _write(self, event: Event, names: tuple[str, ...]) -> None:
        for name in names:
            tracker = self._trackers[name]
            fault = self._guarded(name, partial(tracker.write, event))
            if fault is not None and self.failures[name] == 1:
                told = FaultRecorded(fault=Fault("tracker", name, str(fault)), time_s=event.time_s)
                self._write(told, tuple(other for other in names if not self.failures[other]))

    def _guarded(self, name: str, action: Callable[[], None]) -> Exception | None:
        self._calling = name
        try:
            with boundary("trackers", name):
                action()
        except Exception as fault:
            self.failures[name] += 1
            return fault
        except BaseException as leaving:  # an exit would end this thread alone, in silence
            self.failures[name] += 1
            text = f"{who(name)} (trackers) raised {type(leaving).__name__}: {leaving}"
            return PluginFault(text, kind="trackers", plugin=name)
        return None
