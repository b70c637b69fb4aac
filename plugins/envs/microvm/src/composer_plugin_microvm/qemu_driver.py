"""Machines of QEMU: a base is a sealed memory file, and whatever is cloned of it maps that privately.

Nobody, not even a machine that has broken out into its QEMU, can write what others are made of. KVM where a machine
boots with it, else TCG, which emulates the processor.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from pathlib import Path

from composer_core.errors import BackendError, ConfigError
from composer_core.protocols import BuildContext
from composer_plugin_microvm import base, kvm, memory
from composer_plugin_microvm.base import Wanted
from composer_plugin_microvm.channel import Broken
from composer_plugin_microvm.config import QemuConfig
from composer_plugin_microvm.drivers import Capture
from composer_plugin_microvm.image import Image, cache_folder, image
from composer_plugin_microvm.machine import Machine
from composer_plugin_microvm.provider import MachineProvider
from composer_plugin_microvm.qemu import Base, Hardware, Qemu, QemuCapture

LOG = logging.getLogger(__name__)
KVM_FIX = (
    "`composer-run doctor` tells what KVM does here; or leave sandbox.accel out, which takes TCG where it is of no use"
)
KVM_BOOT_S = 20.0
"""Longest that a boot with KVM may take, which is done in half a second where it is done at all."""
FIX = "apt install qemu-system-x86 util-linux; or choose sandbox.use = 'local/namespaces'"
LINE = (
    "console=ttyS0 quiet loglevel=4 reboot=t panic=-1 mitigations=off audit=0 init_on_alloc=0 cryptomgr.notests "
    "rcupdate.rcu_expedited=1 tsc=reliable edd=off 8250.nr_uarts=1 random.trust_bootloader=off"
)


def build(config: QemuConfig, build: BuildContext) -> MachineProvider:
    return MachineProvider(config, QemuDriver(config))


class QemuDriver:
    """A `Driver`."""

    def __init__(self, config: QemuConfig) -> None:
        self.config = config
        self.assured: bool | None = None
        self.why = ""
        self._deciding = asyncio.Lock()
        self._kvm: kvm.Access | None = None
        self._bases: list[Base] = []

    async def base(self, ram_bytes: int) -> Capture:
        qemu = shutil.which(self.config.qemu)
        if qemu is None or shutil.which("setpriv") is None:
            raise ConfigError("sandboxes of microvm/qemu need QEMU and setpriv", found="neither or one", fix=FIX)
        made = await asyncio.to_thread(image, self.config, LOG.info)
        said = await asyncio.to_thread(base.version, qemu)
        async with self._deciding:
            if self.assured is None and self.config.accel != "tcg":
                found = await self._tried(Wanted.of(qemu, said, "kvm", ram_bytes, made, LINE), made)
                if found is not None:
                    return found
        accel = "kvm" if self.assured else "tcg"
        return await self._base(Wanted.of(qemu, said, accel, ram_bytes, made, LINE), made, self.config.boot_s)

    async def _tried(self, want: Wanted, made: Image) -> Capture | None:
        """The first base, with KVM; None where TCG is to be taken. Raises ConfigError where the run insists on KVM."""
        refusals = kvm.Refusals(cache_folder(self.config), (want.monitor, want.version, want.image))
        try:
            self._kvm = await asyncio.to_thread(kvm.access)
            self.why = "" if self.config.accel == "kvm" else await asyncio.to_thread(refusals.why)
            if not self.why:
                return await self._base(want, made, min(self.config.boot_s, KVM_BOOT_S))
        except (BackendError, Broken, TimeoutError) as error:
            if self.config.accel == "kvm":
                raise ConfigError("no machine boots with KVM here", found=str(error), fix=KVM_FIX) from error
            self.why = _line(error)
            if self._kvm is not None:
                await asyncio.to_thread(refusals.remember, self.why)
        finally:
            if not self.assured:
                self._forget_kvm()
        LOG.warning("machines run under TCG, an emulator and so much slower, and not with KVM: %s", self.why)
        self.assured = False
        return None

    async def _base(self, want: Wanted, made: Image, boot_s: float) -> Capture:
        root = os.open(made.root, os.O_RDONLY | os.O_CLOEXEC)
        hardware = Hardware(want.monitor, self._kvm, want.ram_bytes, root)
        how = ColdBoots(hardware, made)
        try:
            folder = await base.kept(want, how, cache_folder(self.config), boot_s, LOG.info)
            capture = await asyncio.to_thread(_load, hardware, folder)
        except BaseException:
            os.close(root)
            raise
        finally:
            how.close()
        self._bases.append(capture.base)
        self.assured = self._kvm is not None
        return capture

    async def clone(self, capture: Capture) -> Machine:
        assert isinstance(capture, QemuCapture)
        return Machine(await Qemu.clone(capture))

    def close(self) -> None:
        while self._bases:
            self._bases.pop().close()
        self._forget_kvm()

    def _forget_kvm(self) -> None:
        access, self._kvm = self._kvm, None
        if access is not None:
            access.close()


class ColdBoots:
    """A `base.Boots`."""

    def __init__(self, hardware: Hardware, image: Image) -> None:
        self._hardware, self._image = hardware, image
        self._ram = -1

    async def boot(self, khz: int | None) -> Machine:
        line = LINE if khz is None else f"{LINE} tsc_early_khz={khz}"
        files = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in (self._image.kernel, self._image.initramfs)]
        self._ram = memory.memory_file("ram", self._hardware.ram_bytes)
        try:
            words = ["-kernel", f"/proc/self/fd/{files[0]}", "-initrd", f"/proc/self/fd/{files[1]}", "-append", line]
            return Machine(await Qemu.start(self._hardware, self._ram, [*words, "-serial", "stdio"], fds=files))
        finally:
            for fd in files:
                os.close(fd)

    async def keep(self, machine: Machine, place: Path) -> None:
        monitor = machine.monitor
        assert isinstance(monitor, Qemu)
        await monitor.qmp.ask("stop")
        devices = await monitor.save_devices()
        try:
            await machine.close()
            for name, fd in (("ram", self._ram), ("devices", devices)):
                await asyncio.to_thread(_write, fd, place / name)
        finally:
            os.close(devices)

    def close(self) -> None:
        if self._ram >= 0:
            os.close(self._ram)


def _write(source: int, path: Path) -> None:
    with open(path, "xb") as file:
        os.truncate(file.fileno(), os.fstat(source).st_size)
        memory.copy_sparse(source, file.fileno())
        os.fsync(file.fileno())


def _load(hardware: Hardware, folder: Path) -> QemuCapture:
    ram, devices = _sealed(folder / "ram", "ram"), _sealed(folder / "devices", "devices")
    if os.fstat(ram).st_size != hardware.ram_bytes:
        raise BackendError("a kept machine is damaged", where=str(folder), fix="remove the folder")
    return QemuCapture(Base(hardware, ram), devices, memory.Delta(memory.memory_file("delta"), (), 0))


def _sealed(path: Path, name: str) -> int:
    with open(path, "rb") as file:
        fd = memory.memory_file(name, os.fstat(file.fileno()).st_size)
        memory.copy_sparse(file.fileno(), fd)
    memory.seal(fd)
    return fd


def _line(error: Exception) -> str:
    """What it says, and of the many lines that were found the one that tells most."""
    found = str(error.fields.get("found", "")) if isinstance(error, BackendError) else ""
    lines = [line.strip() for line in found.splitlines() if line.strip()]
    told = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "")
    return ": ".join(filter(None, (str(error).partition("\n")[0], told)))
