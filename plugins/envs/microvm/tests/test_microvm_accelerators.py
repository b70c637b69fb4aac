"""Captures, forks and forks of forks go on where they were, with either accelerator; on real QEMU.

The guest is six instructions in real mode, which count in a register and in memory. Any KVM runs them, also one that
runs no stock kernel, so what it keeps of a processor is tried where the suites of whole machines can only run with TCG.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from composer_core.errors import BackendError
from composer_plugin_microvm import kvm, memory
from composer_plugin_microvm.qemu import Base, Hardware, Qemu

ROM_BYTES = 1 << 16
COPY = bytes.fromhex("31c0 8ec0 0e1f be0001 bf0070 b90e00 fcf3a4 8ed8 6631c9 ea00700000")
"""From the ROM, which a capture does not hold: copy what lies at 0x100 to 0:7000, clear ecx, go there."""
COUNT = bytes.fromhex("6641 66890e0480 66ff060080 ebf2")
"""again: inc ecx; mov [8004], ecx; inc dword [8000]; jmp again."""
RESET = bytes.fromhex("ea000000f0")
RAM_BYTES = 64 << 20
PATIENCE_S = 20.0


@pytest.fixture
def rom(tmp_path: Path) -> int:
    made = bytearray(ROM_BYTES)
    for at, code in ((0, COPY), (0x100, COUNT), (ROM_BYTES - 16, RESET)):
        made[at : at + len(code)] = code
    path = tmp_path / "rom"
    path.write_bytes(made)
    return os.open(path, os.O_RDONLY)


def counted(machine: Qemu) -> tuple[int, int]:
    """What it counted in memory, and in its register."""
    with open(f"/proc/{machine.process.pid}/mem", "rb", buffering=0) as file:
        file.seek(memory.region(machine.process.pid, RAM_BYTES) + 0x8000)
        in_memory, in_register = struct.unpack("<II", file.read(8))
    return in_memory, in_register


async def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def forked(machine: Qemu) -> Qemu:
    capture = (await machine.save())()
    try:
        return await Qemu.clone(capture)
    finally:
        capture.close()


async def counts(machine: Qemu, more_than: int) -> None:
    """Register and memory went on together; the register is written first, and looked at at any time."""
    await until(lambda: counted(machine)[0] > more_than)
    await machine.halt()
    in_memory, in_register = counted(machine)
    assert in_register - in_memory in (0, 1)
    await machine.go_on()


async def family(hardware: Hardware, rom: int) -> None:
    base = Base(hardware, memory.memory_file("ram", RAM_BYTES))
    memory.seal(base.ram)
    words = ["-bios", f"/proc/self/fd/{rom}", "-serial", "null"]
    machines = [await Qemu.start(hardware, base.ram, words, base, [rom])]
    try:
        assert (await machines[0].qmp.ask("query-kvm"))["enabled"] is (hardware.kvm is not None)
        await until(lambda: counted(machines[0])[0] > 1000)
        for _ in range(2):
            before = counted(machines[-1])[0]
            machines.append(await forked(machines[-1]))
            await counts(machines[-1], before)
        await counts(machines[0], counted(machines[0])[0])
    finally:
        for machine in machines:
            await machine.close()
        os.close(base.ram)


@pytest.mark.parametrize("accel", ["tcg", "kvm"])
def test_forks_of_forks_go_on_with_the_memory_and_the_processor_of_that_moment(
    accel: str, rom: int, monkeypatch
) -> None:
    qemu = shutil.which("qemu-system-x86_64")
    assert qemu is not None
    access = None
    if accel == "kvm":
        try:
            access = kvm.access()
        except BackendError as error:  # there is no machine to be had with KVM, and that is told
            assert kvm.DEVICE in error.message
            return
    arguments = Hardware.arguments

    def less(self: Hardware, ram: int, shared: bool) -> list[str]:
        """A processor's features that some KVM offers and does not keep."""
        return ["host,-arch-capabilities" if word == "host" else word for word in arguments(self, ram, shared)]

    monkeypatch.setattr(Hardware, "arguments", less)
    root = os.open(__file__, os.O_RDONLY)  # which nobody reads
    try:
        asyncio.run(family(Hardware(qemu, access, RAM_BYTES, root), rom))
    finally:
        for fd in (root, rom):
            os.close(fd)
        if access is not None:
            access.close()
