"""Machines of QEMU: a base is a sealed memory file, and whatever is cloned of it maps that privately.

Nobody, not even a machine that has broken out into its QEMU, can write what others are made of. KVM where a machine
boots with it, else TCG, which emulates the processor.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import stat
from pathlib import Path

from composer_core.errors import BackendError, ConfigError
from composer_core.protocols import BuildContext
from composer_plugin_microvm import base, memory
from composer_plugin_microvm.config import QemuConfig
from composer_plugin_microvm.drivers import Capture
from composer_plugin_microvm.image import Image, cache_folder, image
from composer_plugin_microvm.machine import Machine
from composer_plugin_microvm.provider import MachineProvider
from composer_plugin_microvm.qemu import Base, Hardware, Qemu, QemuCapture

LOG = logging.getLogger(__name__)
KVM_FIX = (
    "`composer-run doctor` tells whether a guest boots, and who may open /dev/kvm (QEMU runs as nobody in the device's "
    "group); or leave sandbox.accel out, which takes TCG where KVM does not work"
)
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
        self._bases: list[Base] = []

    async def base(self, ram_bytes: int) -> Capture:
        qemu = shutil.which(self.config.qemu)
        if qemu is None or shutil.which("setpriv") is None:
            raise ConfigError("sandboxes of microvm/qemu need QEMU and setpriv", found="neither or one", fix=FIX)
        made = await asyncio.to_thread(image, self.config, LOG.info)
        if self.config.accel == "kvm" or (self.config.accel == "auto" and kvm_offered()):
            try:
                return await self._base(qemu, "kvm", ram_bytes, made)
            except BackendError as error:
                if self.config.accel == "kvm":
                    raise ConfigError("no machine boots with KVM here", found=str(error), fix=KVM_FIX) from error
                LOG.info("no machine boots with KVM here (%s), taking TCG", error.message)
        return await self._base(qemu, "tcg", ram_bytes, made)

    async def _base(self, qemu: str, accel: str, ram_bytes: int, made: Image) -> Capture:
        said = await asyncio.to_thread(base.version, qemu)
        want = base.Wanted.of(qemu, said, accel, ram_bytes, made, LINE)
        root = os.open(made.root, os.O_RDONLY | os.O_CLOEXEC)
        hardware = Hardware(qemu, accel, ram_bytes, root)
        how = ColdBoots(hardware, made)
        try:
            folder = await base.kept(want, how, cache_folder(self.config), self.config.boot_s, LOG.info)
            capture = await asyncio.to_thread(_load, hardware, folder)
        except BaseException:
            os.close(root)
            raise
        finally:
            how.close()
        self._bases.append(capture.base)
        self.assured = accel == "kvm"
        return capture

    async def clone(self, capture: Capture) -> Machine:
        assert isinstance(capture, QemuCapture)
        return Machine(await Qemu.clone(capture))

    def close(self) -> None:
        while self._bases:
            self._bases.pop().close()


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


def kvm_offered() -> bool:
    """Whether QEMU, as the user it will be, may open /dev/kvm; that a machine boots with it is another matter."""
    try:
        info = os.stat("/dev/kvm")
    except OSError:
        return False
    if os.geteuid() != 0:
        return os.access("/dev/kvm", os.R_OK | os.W_OK)
    mode = info.st_mode
    return bool(mode & stat.S_IROTH and mode & stat.S_IWOTH) or bool(info.st_gid and mode & stat.S_IWGRP)
