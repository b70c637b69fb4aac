"""How often processes may be started anew.

By the hour: one that dies whenever it is used would otherwise turn a mistake into a run that never ends.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from attrs import Factory, define

from composer_core.errors import ComposerError

HOUR_S = 3600.0


@define
class Restarts:
    """How many processes of a run were lost lately."""

    most: int
    clock: Callable[[], float] = time.monotonic
    _lost: deque[tuple[float, Exception]] = Factory(deque)

    def knows(self, lost: Exception) -> bool:
        """Whether this very loss was spent for: workers of one node wait for one environment server."""
        return any(one is lost for _, one in self._lost)

    def spend(self, lost: Exception) -> None:
        """Allow one more start.

        Raises:
            ComposerError: too many within an hour.
        """
        now = self.clock()
        while self._lost and now - self._lost[0][0] > HOUR_S:
            self._lost.popleft()
        self._lost.append((now, lost))
        if len(self._lost) > self.most:
            raise ComposerError(
                f"{len(self._lost)} processes of the run were lost within an hour",
                who="ray/ray",
                found=str(lost).replace("\n", ";"),
                expected=f"at most {self.most} (executor.restarts_per_hour)",
                fix="see what ends them (memory, a crash in a library), then resume",
            )
