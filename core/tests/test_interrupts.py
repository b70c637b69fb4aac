"""What a signal does to a command that runs a coroutine."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from composer_core.commands.common import run_async
from composer_core.errors import RunInterrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_does_not_cut_short_what_the_first_began(number: signal.Signals) -> None:
    cleaned = []

    async def main() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(60)
        finally:
            os.kill(os.getpid(), number)
            await asyncio.sleep(0.01)
            cleaned.append("whole")

    with pytest.raises(RunInterrupted, match=number.name):
        run_async(main)
    assert cleaned == ["whole"]
