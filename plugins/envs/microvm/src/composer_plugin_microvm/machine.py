"""A machine, whoever runs it: who it is, and how its state is taken while it lives.

Its monitor is a driver's (`drivers`); the agent in it speaks the same on every one.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import suppress
from typing import Any

from composer_core.errors import BackendError
from composer_plugin_microvm.channel import Broken, Channel
from composer_plugin_microvm.drivers import Capture, Monitor
from composer_plugin_microvm.process import Process

ENTROPY_BYTES = 64
ADOPT_S = 20.0
"""Longest that a clone may take to acknowledge who it is; it is not used before."""
HOLD_S = 20.0


class Machine:
    """A started machine; `ping` one that boots, `adopt` one that was cloned."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self._capturing = asyncio.Lock()

    @property
    def channel(self) -> Channel:
        return self.monitor.channel

    @property
    def process(self) -> Process:
        return self.monitor.process

    @property
    def ended(self) -> asyncio.Future[int]:
        return self.monitor.process.ended

    @property
    def ram_bytes(self) -> int:
        return self.monitor.ram_bytes

    async def last_words(self) -> str:
        return await self.monitor.last_words()

    # --- who it is ------------------------------------------------------------------------------------------------

    async def ping(self, patience_s: float) -> None:
        """Wait until the agent answers. What is said before it listens is lost, so it is said again."""
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            number, reply = self.channel.start("ping")
            waited: list[asyncio.Future[Any]] = [reply.future, self.ended]
            done, _ = await asyncio.wait(waited, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
            if reply.future in done and not reply.future.exception():
                return
            if self.ended.done():
                break
            self.channel.forget(number)
        raise BackendError("a machine did not boot", found=await self.last_words())

    async def adopt(self, running: bool = False) -> None:
        """Make a clone a machine of its own; raises BackendError unless the agent acknowledges just that.

        What its parent ran ends, or goes on in it if it is `running`.
        """
        generation = secrets.token_hex(16)
        fields: dict[str, Any] = {"generation": generation, "time_s": time.time(), "running": running}
        try:
            async with asyncio.timeout(ADOPT_S):
                header, _ = await self.channel.ask("adopt", secrets.token_bytes(ENTROPY_BYTES), **fields)
        except (Broken, TimeoutError) as error:
            raise BackendError("a clone did not acknowledge who it is", found=await self.last_words()) from error
        if header.get("generation") != generation:
            raise BackendError("a clone did not acknowledge who it is", found=str(header)[:300])

    def guest_ended_itself(self) -> bool:
        return self.monitor.guest_ended_itself()

    # --- captured, ended ------------------------------------------------------------------------------------------

    async def hold(self) -> None:
        """Nothing is said any more, which is when its state can be taken."""
        async with asyncio.timeout(HOLD_S):
            await self.channel.hold()

    async def capture(self) -> Capture:
        """Its state now, at a moment when nothing is being said; it goes on when that is taken.

        Cancelling waits for that: a machine left standing would look as if its workload had broken it.
        """
        taken = asyncio.ensure_future(self._capture())
        try:
            return await asyncio.shield(taken)
        except asyncio.CancelledError:
            taken.add_done_callback(_drop)
            await asyncio.wait([taken])
            raise

    async def _capture(self) -> Capture:
        async with self._capturing:
            try:
                await self.hold()
                rest = await self.monitor.save()
            except BaseException:
                with suppress(Broken, TimeoutError):  # which say no more than what is raised
                    await self._release()
                raise
            made = asyncio.ensure_future(asyncio.to_thread(rest))
            try:
                await self._release()
                return await asyncio.shield(made)
            except BaseException:
                made.add_done_callback(_drop)
                raise

    async def pause(self) -> None:
        """Stop it until `resume`. Its agent is told before: time stands still, whatever its clocks make of that."""
        async with self._capturing:
            try:
                await self.channel.ask("pause")
                await self.monitor.halt()
            except BaseException:  # whoever gave up may have been too late
                with suppress(BackendError, Broken, TimeoutError):
                    async with asyncio.timeout(HOLD_S):
                        await self.resume()
                raise

    async def resume(self) -> None:
        """Its clock is set: it has stood still, too."""
        await self.monitor.go_on()
        await self.channel.ask("resume", time_s=time.time())

    async def _release(self) -> None:
        async with asyncio.timeout(HOLD_S):
            await self.channel.release()

    async def close(self) -> None:
        """End it and wait until it is gone. Safe twice."""
        await self.monitor.close()


def _drop(made: asyncio.Future[Capture]) -> None:
    """Nobody waits for it any more."""
    if not made.cancelled() and made.exception() is None:
        made.result().close()
