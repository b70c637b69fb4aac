"""Cold boots of virtual machines for `microvm.py`: from starting QEMU with a kernel to the end of the first command."""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from statistics import median

from results import Row

from composer_core.protocols import ExecRequest
from composer_plugin_microvm import base, image
from composer_plugin_microvm.machine import Machine
from composer_plugin_microvm.qemu import QemuCapture
from composer_plugin_microvm.qemu_driver import ColdBoots, QemuDriver
from composer_plugin_microvm.tsc import tsc_khz

TRUE = ExecRequest(("true",))
AT_ONCE = 3


async def cold(driver: QemuDriver, ram_bytes: int, count: int, at_once: int) -> list[float]:
    """Seconds of each boot that ended with a command; one that failed is missing, and said."""
    kept = await driver.base(ram_bytes)
    assert isinstance(kept, QemuCapture)
    made, gate, found = image.image(driver.config, print), asyncio.Semaphore(at_once), list[float]()

    async def boot() -> None:
        async with gate:
            try:
                found.append(await timed_boot(ColdBoots(kept.base.hardware, made), driver.config.boot_s))
            except Exception as error:
                print(f"a boot failed: {error}", file=sys.stderr)

    try:
        await asyncio.gather(*(boot() for _ in range(count)))
    finally:
        kept.close()
    return found


async def timed_boot(how: ColdBoots, boot_s: float) -> float:
    khz = tsc_khz()
    started = time.perf_counter()
    try:
        machine = await how.boot(khz)
        try:
            await machine.ping(boot_s)
            await first_command(machine)
            return time.perf_counter() - started
        finally:
            await machine.close()
    finally:
        how.close()


async def first_command(machine: Machine) -> None:
    await machine.channel.ask("settle", files=[], needs=[], limits=base.WARM_LIMITS)
    words = json.dumps([TRUE.argv, {}]).encode()
    header, _ = await machine.channel.ask("exec", words, words=len(words), cwd="", timeout_s=20.0, output_bytes=1)
    assert header.get("exit_code") == 0, header


def boot_rows(alone: list[float], together: list[float], count: int) -> list[Row]:
    rows = []
    for how, found in {"one after the other": alone, f"{AT_ONCE} at once": together}.items():
        what = f"{count} cold boots, {how}"
        rows += [
            Row(f"{what}: ran a command", float(len(found)), "machines", target=f"ours >= {count}"),
            Row(f"{what}: p50", median(found or [math.inf]), "s", target="ours <= 5"),
            Row(f"{what}: slowest", max(found or [math.inf]), "s", target="ours <= 5"),
        ]
    return rows
