"""Who looks at a stage while it runs: a status file for people, and a watchdog for a run that stands still.

The loop tells its state about once a second, as plain data; `status.json` is that state, replaced atomically and not
synced, since a newer one is always about to come. The watchdog is a thread, so it also sees an event loop that is
itself stuck: when nothing has progressed for the set time it writes down every thread's stack, every asyncio task's
chain of awaits and the last state, and tells what the run waits for. Progress is an episode or a step that ended,
a token that was sampled, or another thing that is being done.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from attrs import define, field

from composer_core.errors import StoreError

STATUS_S = 1.0
"""Between two states."""
PROGRESS = ("episodes", "sampler/tokens")
"""What of an executor's counters shows that work goes on."""


@define
class Watch:
    """Over one stage."""

    look: Callable[[], dict[str, Any]]
    """The stage's state; its `waits_for` is a sentence, its `executor` the executor's counters."""
    write: Callable[[str, bytes], None]
    """Replace a file of the run folder. Raises StoreError."""
    stall_s: float
    """0: no watchdog."""
    alarm: Callable[[str], None]
    """Told what the run waits for, on the watchdog's thread."""
    _state: dict[str, Any] = field(factory=dict)
    _over: threading.Event = field(factory=threading.Event)

    @asynccontextmanager
    async def over(self) -> AsyncIterator[None]:
        """Look while the body runs, and once more when it has ended."""
        loop = asyncio.get_running_loop()
        ticker = loop.create_task(self._tick())
        guard = threading.Thread(target=self._guard, args=(loop,), name="composer-watchdog", daemon=True)
        if self.stall_s:
            guard.start()
        try:
            yield
        finally:
            ticker.cancel()
            self._over.set()
            self._tell()

    async def _tick(self) -> None:
        while True:
            self._tell()
            await asyncio.sleep(min(STATUS_S, self.stall_s / 4 or STATUS_S))

    def _tell(self) -> None:
        self._state = self.look()
        self._write("status.json", json.dumps(self._state, indent=1))

    def _write(self, name: str, text: str) -> None:
        with suppress(StoreError):  # a full disk ends the run where something is lost by it
            self.write(name, text.encode())

    def _guard(self, loop: asyncio.AbstractEventLoop) -> None:
        seen, since, stalls = _progress(self._state), time.monotonic(), 0
        told = False
        while not self._over.wait(min(self.stall_s / 10, 5.0)):
            if (now := _progress(self._state)) != seen:
                seen, since, told = now, time.monotonic(), False
            elif not told and time.monotonic() - since >= self.stall_s:
                told, stalls = True, stalls + 1
                name = f"stalled-{stalls}.txt"
                self._write(name, dump(loop, self._state))
                waits = self._state.get("waits_for", "the first look at the stage")
                self.alarm(f"nothing has progressed for {self.stall_s:g} s; it waits for {waits}; see {name}")


def _progress(state: Mapping[str, Any]) -> tuple[Any, ...]:
    counters = state.get("executor", {})
    own = (state.get(name) for name in ("step", "doing", "episodes"))
    return (*own, *(counters.get(name) for name in PROGRESS))


def dump(loop: asyncio.AbstractEventLoop, state: Mapping[str, Any]) -> str:
    """The state, every thread's stack, and what the loop's tasks wait in, the same ones counted."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = (
        f"thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
    tasks = Counter(map(_awaits, asyncio.all_tasks(loop)))
    waiting = (f"{count} x task\n{text}\n" for text, count in tasks.most_common())
    return "\n".join([json.dumps(state, indent=1), "", *stacks, *waiting])


def _awaits(task: asyncio.Task[Any]) -> str:
    """From a task's own coroutine to the innermost that it awaits."""
    lines: list[str] = []
    awaited: Any = task.get_coro()
    while frame := getattr(awaited, "cr_frame", None):
        lines.append(f'  File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_qualname}')
        awaited = getattr(awaited, "cr_await", None)
    return "\n".join([*lines, f"  {type(awaited).__name__}" if awaited is not None else "  about to run"])
