"""Worker of `sandboxes`, run in the peer's environment: SWE-ReX's local runtime, driven through its own methods."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from swerex.runtime.abstract import BashAction, CloseBashSessionRequest, Command, CreateBashSessionRequest
from swerex.runtime.local import LocalRuntime
from workers import serve

LOOP = asyncio.new_event_loop()
RUNTIME = LocalRuntime()


async def create(name: str) -> None:
    """A new session, to the end of its first command."""
    await RUNTIME.create_session(CreateBashSessionRequest(session=name))
    await true_in(name)


async def true_in(name: str) -> None:
    found = await RUNTIME.run_in_session(BashAction(command="true", session=name))
    assert found.exit_code == 0, found


async def execute(name: str) -> None:
    """A command without a session."""
    found = await RUNTIME.execute(Command(command=["true"]))
    assert found.exit_code == 0, found


async def close(name: str) -> None:
    await RUNTIME.close_session(CloseBashSessionRequest(session=name))


ACTS: dict[str, Callable[[str], Awaitable[None]]] = {
    "create": create,
    "true": true_in,
    "execute": execute,
    "close": close,
}


async def timed(act: str, width: int) -> list[float]:
    """Milliseconds of one act in `width` sessions at once."""

    async def one(name: str) -> float:
        started = time.perf_counter()
        await ACTS[act](name)
        return (time.perf_counter() - started) * 1e3

    return list(await asyncio.gather(*(one(f"session-{index}") for index in range(width))))


def answer(**request: Any) -> list[float]:
    return LOOP.run_until_complete(timed(**request))


if __name__ == "__main__":
    serve(answer)
