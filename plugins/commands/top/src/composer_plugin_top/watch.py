"""A run folder, looked at again and again: events.jsonl, status.json and who holds the lock, as one picture.

It opens files for reading and nothing else: the run does not notice, and one that was killed, has finished or was
copied here looks the same as one under way, but for how old its figures are. A look takes a bounded time: a long diary
is read over several looks, and the picture says how far they have come.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attrs import asdict, define, field

from composer_core.errors import ConfigError
from composer_core.printable import clock, printable
from composer_plugin_top.fold import Fold
from composer_plugin_top.holder import held_here
from composer_plugin_top.status import Status, read_status
from composer_plugin_top.tail import Tail

QUIET_S = 15.0
"""A run that has said nothing for so long is looked at more closely."""
READ_S = 0.5
"""Of one look, for the diary."""
SEEN = 600
"""States of the slots that are kept, one for each look at which they had changed."""
STATES = ("pending", "running", "valid", "void")
SIGNS = ("events.jsonl", "status.json", "config.json", "lock")
"""One of these is in every run folder from its first second on."""
CURVES = ("reward_mean", "solve_rate", "staleness_max", "loss", "train_s", "step_s")


def refuse_other(run_dir: Path) -> None:
    """Only a run folder is watched.

    Raises:
        ConfigError: it holds no run.
    """
    if not any((run_dir / name).exists() for name in SIGNS):
        found = "nothing of a run" if run_dir.is_dir() else "a file" if run_dir.exists() else "no such folder"
        fix = "name a folder that `composer-run train` writes or has written, such as runs/<name>"
        raise ConfigError("no run to watch", where=str(run_dir), expected="a run folder", found=found, fix=fix)


@define
class Watch:
    """Call `look` about once a second; `picture` is what the latest look has found."""

    run_dir: Path
    clock: Callable[[], float] = time.time
    fold: Fold = field(factory=Fold)
    status: Status | None = None
    _tail: Tail = field(init=False)
    _restarts: int = 0
    _behind: bool = False
    """The latest look has not come to the end of the diary."""
    _problem: str = ""
    _seen: deque[tuple[float, Mapping[str, int]]] = field(factory=lambda: deque(maxlen=SEEN))

    def __attrs_post_init__(self) -> None:
        self._tail = Tail(self.run_dir / "events.jsonl")

    def look(self, limit_s: float = READ_S) -> dict[str, Any]:
        """Read what is new, for about so long, and draw the picture."""
        try:
            self._read(time.monotonic() + limit_s)
        except OSError as error:
            self._problem = f"events.jsonl cannot be read: {error}"
        self.status, problem = read_status(self.run_dir)
        if self.status and (not self._seen or self._seen[-1][0] < self.status.time_s):
            self._seen.append((self.status.time_s, self.status.tables.get("slots", {})))
        return self.picture([text for text in (self._problem, problem) if text])

    def _read(self, until_s: float) -> None:
        self._problem, self._behind = "", True
        while True:
            lines = self._tail.read()
            if self._tail.restarts != self._restarts:
                self._restarts, self.fold = self._tail.restarts, Fold()
            if lines is None:
                self._behind = False
                return
            self.fold.add_lines(lines)
            if time.monotonic() >= until_s:
                return

    # --- the picture --------------------------------------------------------------------------------------------------

    def picture(self, problems: list[str]) -> dict[str, Any]:
        """Plain data that the terminal and the page draw."""
        fold, status, now_s = self.fold, self.status, self.clock()
        last_s = max(fold.last_s, status.time_s if status else 0.0)
        age_s = max(0.0, now_s - last_s) if last_s else None
        if fold.unreadable:
            problems.append(f"{fold.unreadable} lines of events.jsonl are no events that this version knows")
        word, mood, note = self._state(age_s)
        stage = fold.stage
        found = {
            "name": fold.name or self.run_dir.resolve().name,
            "folder": str(self.run_dir),
            "state": {"word": word, "mood": mood, "note": note},
            "now_s": now_s,
            "age_s": age_s,
            "old": _old(age_s),
            "read": self._tail.share if self._behind else 1.0,
            "problems": problems,
            "starts": fold.starts,
            "run_s": fold.run_s,
            "stage": stage and {**asdict(stage, filter=lambda a, _: a.name != "metrics"), "left_s": self._left_s()},
            "metrics": {name: stage.metrics[name] for name in CURVES if name in stage.metrics} if stage else {},
            "version": status.version if status and status.version is not None else fold.version,
            "rates": {name: fold.series.rate(name) for name in ("episodes", "tokens", "steps")},
            "status": self._told(now_s),
            "outcomes": dict(fold.outcomes.most_common()),
            "purposes": dict(fold.purposes),
            "evaluated": fold.evaluated,
            "faults": [[*key, seen.times, seen.error] for key, seen in self._faults()],
            "series": fold.series.to_json(),
            "seen": {"at_s": [at_s for at_s, _ in self._seen]}
            | {name: [slots.get(name, 0) for _, slots in self._seen] for name in STATES},
        }
        cleaned: dict[str, Any] = _printable(found)
        return cleaned

    def _told(self, now_s: float) -> dict[str, Any] | None:
        if self.status is None:
            return None
        status = self.status
        figures, tables = split(status.executor)
        told = {"age_s": max(0.0, now_s - status.time_s), "stage": status.stage, "waits_for": status.waits_for}
        oldest = [asdict(episode) for episode in status.oldest]
        ledger = {"tables": status.tables, "counts": status.counts}
        return {**told, **ledger, "executor": figures, "parts": tables, "oldest": oldest}

    def _faults(self) -> list[tuple[tuple[str, str], Any]]:
        return sorted(self.fold.faults.items(), key=lambda item: -item[1].times)

    def _state(self, age_s: float | None) -> tuple[str, str, str]:
        """One word, whether it is good, bad or a warning, and what is meant."""
        ends = {"finished": "good", "interrupted": "warn", "failed": "bad"}
        if self._behind:
            return "reading", "warn", "the diary is long: figures are of what has been read of it"
        if self.fold.status in ends:
            return self.fold.status, ends[self.fold.status], ""
        held = held_here(self.run_dir)
        if age_s is None:
            gone = "; no process of this machine holds its lock" if held is False else ""
            return "starting", "warn", f"nothing has happened yet{gone}"
        if age_s <= QUIET_S:
            return "running", "good", ""
        if held is False:
            return (
                "killed",
                "bad",
                "no process of this machine holds its lock: it was killed, or runs elsewhere and is stuck",
            )
        note = "its process is there" if held else "whether its process is there cannot be seen from here"
        return "quiet", "warn", f"{note}, and has said nothing for some time"

    def _left_s(self) -> float | None:
        """Of the stage, at its mean pace so far in this process."""
        stage = self.fold.stage
        if stage is None or stage.ended or not stage.steps or stage.step <= stage.first_step:
            return None
        each_s = (self.fold.run_s - stage.began_s) / (stage.step - stage.first_step)
        left = max(0, stage.steps - stage.step)
        return each_s * left


def unknown(why: str) -> dict[str, Any]:
    """The part of a picture that says that the rest is of an earlier look."""
    state = {"word": "unknown", "mood": "bad", "note": "figures are of an earlier look"}
    return {"state": state, "old": "figures of an earlier look", "problems": [printable(why)]}


def _old(age_s: float | None) -> str:
    if age_s is None:
        return "no figures yet"
    days = age_s / 86_400
    return "figures of now" if age_s < 2 else f"figures are {f'{days:,.0f} days' if days > 2 else clock(age_s)} old"


def _printable(value: Any) -> Any:
    """All texts of plain data with control characters and direction overrides as escapes, wherever they are shown."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(str(name)): _printable(item) for name, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, (list, tuple)) else value


def split(executor: Mapping[str, float]) -> tuple[dict[str, float], dict[str, dict[str, dict[str, float]]]]:
    """Figures of the whole, and those that are called `kind/id/figure` as kind -> id -> figure -> value."""
    whole: dict[str, float] = {}
    parts: dict[str, dict[str, dict[str, float]]] = {}
    for name, value in executor.items():
        kind, _, rest = name.partition("/")
        id, slash, figure = rest.partition("/")
        if slash:
            parts.setdefault(kind, {}).setdefault(id, {})[figure] = value
        else:
            whole[name] = value
    return whole, parts
