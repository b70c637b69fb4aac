"""One QEMU process: its arguments, the two sockets it inherits, how it starts, is captured and ends.

A machine is either booted (kernel and initramfs, its RAM shared with a memory file that becomes a base) or cloned from
a capture (the base mapped privately, pages that differ written in, the devices' state loaded). Both have the same
devices: the root image, read-only and shared by all, and one serial port to the agent. No network card, no display.

QEMU runs as nobody where this process is root, without capabilities, under its own seccomp filter that forbids it to
start anything, and is killed by the kernel when this process dies. It is handed descriptors and opens no path of its
own but those of its firmware.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from attrs import frozen

from composer_core.errors import BackendError
from composer_plugin_microvm import memory
from composer_plugin_microvm.channel import Broken, Channel
from composer_plugin_microvm.initramfs import SERIAL
from composer_plugin_microvm.qmp import Qmp

NOBODY = 65534
ENTROPY_BYTES = 64
ADOPT_S = 20.0
"""Longest that a clone may take to acknowledge who it is; it is not used before."""
HOLD_S = 20.0
ROOT_SET, STATE_SET = 1, 2
"""Numbers of QEMU's descriptor sets for the root image and for the devices' state."""
DENIED = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
KERNEL_LINE = (
    "console=ttyS0 quiet loglevel=4 reboot=t panic=-1 mitigations=off audit=0 init_on_alloc=0 cryptomgr.notests "
    "rcupdate.rcu_expedited=1 tsc=reliable edd=off 8250.nr_uarts=1 random.trust_bootloader=off"
)
GUEST_ENDS = ("guest-reset", "guest-shutdown", "guest-panic")


@frozen
class Hardware:
    """What is the same for a base and all that is cloned from it."""

    qemu: str
    accel: str
    """kvm or tcg."""
    ram_bytes: int
    root: int
    """Descriptor of the root image."""

    def arguments(self, ram: int, shared: bool) -> list[str]:
        """Of QEMU, without what starts it and its sockets. `ram` is a descriptor that it inherits."""
        accel = "tcg,tb-size=128" if self.accel == "tcg" else "kvm"
        words = [self.qemu, "-M", "microvm,memory-backend=ram,graphics=off,suppress-vmdesc=on", "-accel", accel]
        words += ["-cpu", "max" if self.accel == "tcg" else "host", "-smp", "1", "-m", f"{self.ram_bytes >> 20}"]
        backend = f"memory-backend-file,id=ram,size={self.ram_bytes},mem-path=/proc/self/fd/{ram}"
        words += ["-object", f"{backend},share={'on' if shared else 'off'}"]
        words += ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-sandbox", DENIED]
        drive = f"id=root,if=none,format=raw,readonly=on,file.locking=off,file=/dev/fdset/{ROOT_SET}"
        words += ["-add-fd", f"fd={self.root},set={ROOT_SET}", "-drive", drive]
        words += ["-device", f"virtio-blk-device,drive=root,serial={SERIAL}", "-device", "virtio-serial-device"]
        return [*words, "-device", "virtserialport,chardev=agent,name=composer.agent"]


@frozen
class Capture:
    """A machine's state at one moment: the devices', and pages against the base."""

    devices: int
    """Descriptor of what QEMU saved."""
    delta: memory.Delta

    def close(self) -> None:
        os.close(self.devices)
        self.delta.close()


class Machine:
    """A running QEMU. `await Machine.start(...)`, then `adopt` or `ping`; `close` is safe twice."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self.qmp: Qmp
        self.channel: Channel
        self.process: subprocess.Popen[bytes]
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.capturing = asyncio.Lock()
        self._pidfd = -1

    @classmethod
    async def start(
        cls, hardware: Hardware, ram: int, extra: Sequence[str], shared: bool, fds: Sequence[int] = ()
    ) -> Machine:
        """Spawn it and wait until QEMU answers. `extra` may name the descriptors `fds`."""
        self = cls(hardware)
        ours = [socket.socketpair() for _ in range(2)]
        (agent, agent_theirs), (qmp, qmp_theirs) = ours
        try:
            words = hardware.arguments(ram, shared)
            words += ["-chardev", f"socket,id=agent,fd={agent_theirs.fileno()}"]
            words += ["-chardev", f"socket,id=qmp,fd={qmp_theirs.fileno()}", "-mon", "chardev=qmp,mode=control"]
            self._spawn([*words, *extra], [ram, hardware.root, agent_theirs.fileno(), qmp_theirs.fileno(), *fds])
        except OSError as error:
            agent.close()
            qmp.close()
            raise BackendError("QEMU cannot be started", where=hardware.qemu, found=str(error)) from error
        finally:
            agent_theirs.close()
            qmp_theirs.close()
        self.qmp = Qmp(qmp)
        self.channel = Channel(agent)
        try:
            await self.channel.open()
            await asyncio.wait_for(self.qmp.ready, ADOPT_S)
            await self.qmp.ask("qmp_capabilities")
        except BaseException as error:
            said = await self.last_words() if isinstance(error, Exception) else ""
            await self.close()
            if isinstance(error, BackendError | TimeoutError):
                raise BackendError("QEMU did not start a machine", found=said or str(error)) from error
            raise
        return self

    def _spawn(self, words: list[str], fds: list[int]) -> None:
        drop = ["setpriv", "--no-new-privs", "--pdeathsig", "KILL"]
        if os.geteuid() == 0:
            groups = _kvm_groups() if self.hardware.accel == "kvm" else ["--clear-groups"]
            drop += [f"--reuid={NOBODY}", f"--regid={NOBODY}", *groups, "--inh-caps=-all", "--bounding-set=-all"]
        self.process = subprocess.Popen(
            [*drop, "--", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            pass_fds=fds, cwd="/", env={"LANG": "C.UTF-8", "PATH": os.defpath}, start_new_session=True,
        )  # fmt: skip
        self._pidfd = os.pidfd_open(self.process.pid)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pidfd, self._reap)
        assert self.process.stdout is not None and self.process.stderr is not None
        for pipe in (self.process.stdout, self.process.stderr):
            os.set_blocking(pipe.fileno(), False)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self.process.wait()
        os.close(self._pidfd)
        if not self.ended.done():
            self.ended.set_result(None)

    async def last_words(self) -> str:
        """What QEMU printed, and the guest on its console. A full pipe only keeps QEMU waiting."""
        await asyncio.wait([self.ended], timeout=0.2)
        found = [pipe.read(1 << 16) or b"" for pipe in (self.process.stderr, self.process.stdout) if pipe]
        return b"\n".join(text[-2000:] for text in found).decode(errors="replace").strip()

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
        """Make a clone a machine of its own; raises BackendError unless the agent acknowledges just that."""
        generation = secrets.token_hex(16)
        fields: dict[str, Any] = {"generation": generation, "time_s": time.time(), "running": running}
        asked = self.channel.ask("adopt", secrets.token_bytes(ENTROPY_BYTES), **fields)
        try:
            header, _ = await asyncio.wait_for(asked, ADOPT_S)
        except (Broken, TimeoutError) as error:
            raise BackendError("a clone did not acknowledge who it is", found=await self.last_words()) from error
        if header.get("generation") != generation:
            raise BackendError("a clone did not acknowledge who it is", found=str(header)[:300])

    def guest_ended_itself(self) -> bool:
        """Whether the guest stopped its machine (a panic, a reset), which no fault of the host looks like."""
        self.qmp.drain()
        return self.qmp.end_reason in GUEST_ENDS

    # --- captured and cloned --------------------------------------------------------------------------------------

    async def capture(self) -> Capture:
        """Its state now, at a moment when nothing is being said; it goes on when that is taken."""
        async with self.capturing:
            try:
                return await self._capture()
            finally:
                await asyncio.wait_for(self.channel.release(), HOLD_S)

    async def _capture(self) -> Capture:
        await asyncio.wait_for(self.channel.hold(), HOLD_S)
        await self.qmp.ask("stop")
        try:
            devices = await self._save_devices()
            try:
                delta = await asyncio.to_thread(memory.collect, self.process.pid, self.hardware.ram_bytes)
            except BaseException:
                os.close(devices)
                raise
        finally:
            await self.qmp.ask("cont")
        return Capture(devices, delta)

    async def freeze(self) -> int:
        """Stop it for good at a moment when nothing is being said; its devices' state, see `Capture`."""
        await asyncio.wait_for(self.channel.hold(), HOLD_S)
        await self.qmp.ask("stop")
        return await self._save_devices()

    async def _save_devices(self) -> int:
        """A descriptor of what QEMU tells of the devices of a stopped machine."""
        fd = memory.memory_file("devices")
        try:
            passed = memory.reopened(fd, os.O_WRONLY)  # QEMU looks for a descriptor of just this kind in the set
            try:
                await self.qmp.ask("add-fd", (passed,), fdset_id=STATE_SET)
            finally:
                os.close(passed)
            await self.qmp.ask("xen-save-devices-state", filename=f"/dev/fdset/{STATE_SET}", live=False)
            await self.qmp.ask("remove-fd", fdset_id=STATE_SET)
            memory.seal(fd)
        except BaseException:
            os.close(fd)
            raise
        return fd

    @classmethod
    async def clone(cls, hardware: Hardware, ram: int, capture: Capture) -> Machine:
        """A machine that goes on from a capture; call `adopt` next."""
        extra = ["-serial", "null", "-global", "migration.send-configuration=off", "-incoming", "defer"]
        self = await cls.start(hardware, ram, extra, shared=False)
        try:
            await asyncio.to_thread(memory.lay, capture.delta, self.process.pid, hardware.ram_bytes)
            state = memory.reopened(capture.devices)
            try:
                passed = self.qmp.post("getfd", (state,), fdname="state")
                loaded = self.qmp.post("migrate-incoming", uri="fd:state")
            finally:
                os.close(state)
            await self.qmp.answer(passed, "getfd")
            await self.qmp.answer(loaded, "migrate-incoming")
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """End it and wait until it is gone."""
        try:
            if not self.ended.done():
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                await asyncio.shield(self.ended)
        finally:
            self.channel.end("the machine was closed")
            self.qmp.close()
            for pipe in (self.process.stdout, self.process.stderr):
                if pipe:
                    pipe.close()


def _kvm_groups() -> list[str]:
    """The group that may open /dev/kvm, if it is one that QEMU's user may be given."""
    group = os.stat("/dev/kvm").st_gid
    return [f"--groups={group}"] if group else ["--clear-groups"]
