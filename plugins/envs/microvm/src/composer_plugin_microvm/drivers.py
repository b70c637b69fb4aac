"""What differs between monitors: how a machine is booted, cloned, saved and ended. All else is shared.

    Driver   base(memory) -> Capture (booted once, kept)      clone(Capture) -> Machine
    Monitor  one machine's process: its channel to the agent, save() -> Capture, close()

A capture knows what it was taken against, so whoever holds one needs nothing else to make machines of it. Its content
is a driver's own business: `qemu` keeps pages that differ from a base, `firecracker` a whole memory file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from composer_plugin_microvm.channel import Channel
from composer_plugin_microvm.process import Process

if TYPE_CHECKING:
    from composer_plugin_microvm.machine import Machine


class Capture(Protocol):
    """A machine's state at one moment: memory and devices."""

    @property
    def size_bytes(self) -> int:
        """What it holds beside what it shares with others."""

    def close(self) -> None:
        """Clones that were made of it live on."""


class Monitor(Protocol):
    """The process that runs one machine."""

    ram_bytes: int
    channel: Channel
    process: Process

    async def save(self) -> Callable[[], Capture]:
        """Stop, take what has to be taken now, go on. Nothing is being said meanwhile (`Channel.hold`).

        The rest is in what is returned: it blocks, is called once, and the machine goes on beside it.
        """

    async def halt(self) -> None:
        """Stop it until `go_on`; what is said to it meanwhile is heard then."""

    async def go_on(self) -> None:
        """Safe also where it was not stopped."""

    async def last_words(self) -> str:
        """What it and its guest said last, for whoever has to find out why it ended."""

    def guest_ended_itself(self) -> bool:
        """Whether the guest stopped its machine (a panic, a reset), which no fault of the host looks like."""

    async def close(self) -> None:
        """End it and wait until it is gone. Safe twice."""


class Driver(Protocol):
    """Made once for a provider."""

    assured: bool | None
    """Whether the boundary is a processor's (KVM) and not an emulator's; None before the first machine."""
    why: str
    """Why it is an emulator's, where KVM was asked for and is of no use."""

    async def base(self, ram_bytes: int) -> Capture:
        """A machine that has just booted. Raises ConfigError where none can, BackendError where one did not."""

    async def clone(self, capture: Capture) -> Machine:
        """A machine that goes on from a capture; `adopt` it before anything else."""

    def close(self) -> None:
        """After all machines and captures; leaves nothing but what is kept for other runs."""


def promise(driver: Driver) -> str:
    """What machines are run by here, in words; empty before the first one."""
    if driver.assured is None:
        return ""
    if driver.assured:
        return "KVM: the boundary is the processor's"
    why = f" KVM is of no use here: {driver.why}" if driver.why else ""
    return f"TCG: an emulator is no assured boundary against hostile code, and slower.{why}"
