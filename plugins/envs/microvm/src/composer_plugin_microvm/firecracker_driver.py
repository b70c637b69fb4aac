"""Machines of Firecracker: needs KVM, the two programs, and a cache folder on one file system.

A base is a memory file and a file of devices. Firecracker is jailed where the run is root: a folder of its own for a
root, a user of its own, its own filter of system calls, namespaces without processes or a network.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from composer_core.errors import BackendError, ConfigError
from composer_core.protocols import BuildContext
from composer_plugin_microvm import base, memory
from composer_plugin_microvm.config import FirecrackerConfig
from composer_plugin_microvm.drivers import Capture
from composer_plugin_microvm.firecracker import Firecracker
from composer_plugin_microvm.guest import VSOCK
from composer_plugin_microvm.image import cache_folder, image
from composer_plugin_microvm.jail import API, Jail, Kept, RunFolder, words
from composer_plugin_microvm.machine import Machine
from composer_plugin_microvm.provider import MachineProvider
from composer_plugin_microvm.vmlinux import vmlinux

LOG = logging.getLogger(__name__)
KVM = "/dev/kvm"
OLDEST = (1, 13)
"""The first whose snapshots its project supports, and that tracks what a loaded machine writes by that name."""
OVERHEAD_BYTES = 64 << 20
"""Of Firecracker beside its guest's memory, in the limit of its control group."""
LINE = (
    f"console=ttyS0 quiet loglevel=4 reboot=k panic=-1 audit=0 init_on_alloc=0 cryptomgr.notests edd=off {VSOCK} "
    "rcupdate.rcu_expedited=1 8250.nr_uarts=1 random.trust_bootloader=off i8042.noaux i8042.nomux i8042.dumbkbd "
    "swiotlb=noforce pci=off"
)
FIX = "see docs/sandboxes/microvm.md; or choose sandbox.use = 'microvm/qemu', which can do without KVM"


def build(config: FirecrackerConfig, build: BuildContext) -> MachineProvider:
    return MachineProvider(config, FirecrackerDriver(config))


class FirecrackerDriver:
    """A `Driver`."""

    def __init__(self, config: FirecrackerConfig) -> None:
        self.config = config
        self.assured: bool | None = None
        self.why = ""
        self._program = Path()
        self._jailer = ""
        self._users: set[int] = set()
        self._run: RunFolder | None = None
        self._preparing = asyncio.Lock()

    async def base(self, ram_bytes: int) -> Capture:
        cache = cache_folder(self.config)
        async with self._preparing:
            version = await asyncio.to_thread(self._check)
            made = await asyncio.to_thread(image, self.config, LOG.info)
            kernel = await asyncio.to_thread(vmlinux, made)
            if self._run is None:
                self._run = await asyncio.to_thread(RunFolder, cache)
            run = self._run
            for name, path in (("root", made.root), ("vmlinux", kernel), ("initrd", made.initramfs)):
                await asyncio.to_thread(run.hold, name, path)
        digest = hashlib.sha256(self._program.read_bytes()).hexdigest()
        want = base.Wanted.of(digest, version, "kvm", ram_bytes, made, LINE)
        try:
            how = _Boots(self, run, ram_bytes, version)
            folder = await base.kept(want, how, cache, self.config.boot_s, LOG.info)
        except BackendError as error:
            raise ConfigError("no machine boots with Firecracker here", found=str(error), fix=FIX) from error
        self.assured = True
        return await asyncio.to_thread(run.capture, ram_bytes, folder / "mem", folder / "state")

    def _check(self) -> str:
        """The version. Raises ConfigError where something that is needed is not here."""
        program = _found("firecracker", self.config.firecracker)
        version = _version("firecracker", program)
        if os.geteuid() == 0:
            if not self.config.jailer:
                raise ConfigError("Firecracker is not run as root without its jailer", fix="name it in sandbox.jailer")
            self._jailer = _found("jailer", self.config.jailer)
            other = _version("jailer", self._jailer)
            if other != version:
                raise ConfigError("Firecracker's jailer is of another version", found=other, expected=version, fix=FIX)
        elif self.config.jailer:
            raise ConfigError(
                "Firecracker's jailer runs as root only",
                fix="run as root; or sandbox.jailer = '', which runs Firecracker as you, in no jail but its own filter",
            )
        try:
            os.close(os.open(KVM, os.O_RDWR | os.O_CLOEXEC))
        except OSError as error:
            raise ConfigError("Firecracker needs KVM", where=KVM, found=str(error), fix=FIX) from error
        self._program = Path(program).resolve()
        return version

    async def clone(self, capture: Capture) -> Machine:
        assert isinstance(capture, Kept) and self._run is not None
        links = {name: capture.folder / name for name in ("mem", "state", "root")}
        monitor = self.start(self._run, links, capture.ram_bytes)
        async with ended_if_it_fails(monitor):
            await monitor.ready()
            await monitor.load()
        return Machine(monitor)

    def start(self, run: RunFolder, links: dict[str, Path], ram_bytes: int) -> Firecracker:
        """Raises OSError."""
        if not self._jailer:
            jail = Jail(run.path, self._program.name, -1, links)
            plain = [str(self._program), "--id", jail.id, "--api-sock", API]
            return Firecracker.start(run, jail, plain, ram_bytes, lambda: None)
        user = self._user()
        try:
            jail = Jail(run.path, self._program.name, user, links)
            version = self.config.cgroup_version
            groups = [_memory_limit(version, ram_bytes + OVERHEAD_BYTES), *self.config.cgroups] if version else []
            start = words(jail, self._program, self._jailer, groups, version, ram_bytes)
            return Firecracker.start(run, jail, start, ram_bytes, lambda: self._users.discard(user))
        except BaseException:
            self._users.discard(user)
            raise

    def _user(self) -> int:
        """A number that no machine has that lives."""
        user = self.config.uid
        while user in self._users:
            user += 1
        self._users.add(user)
        return user

    def close(self) -> None:
        if self._run is not None:
            self._run.close()


@asynccontextmanager
async def ended_if_it_fails(monitor: Firecracker) -> AsyncIterator[None]:
    """What it said goes with the error."""
    try:
        yield
    except BaseException as error:
        said = await monitor.last_words() if isinstance(error, Exception) else ""
        await monitor.close()
        if isinstance(error, BackendError):
            found = f"{error.fields.get('found', '')} {said}".strip()
            raise BackendError(error.message, found=found) from error
        raise


class _Boots:
    """A `base.Boots`."""

    def __init__(self, driver: FirecrackerDriver, run: RunFolder, ram_bytes: int, version: str) -> None:
        self._driver, self._run, self._ram_bytes, self._version = driver, run, ram_bytes, version

    async def boot(self, khz: int | None) -> Machine:
        links = {name: self._run.path / name for name in ("root", "vmlinux", "initrd")}
        monitor = self._driver.start(self._run, links, self._ram_bytes)
        async with ended_if_it_fails(monitor):
            await monitor.ready()
            said = await monitor.version()
            if said != self._version:
                raise BackendError("Firecracker is of another version than it said", found=said, expected=self._version)
            await monitor.boot(LINE, self._driver.config.boot_s)
        return Machine(monitor)

    async def keep(self, machine: Machine, place: Path) -> None:
        monitor = machine.monitor
        assert isinstance(monitor, Firecracker)
        await monitor.pause()
        saved, devices = await monitor.write("Full")
        try:
            await machine.close()
            for name, fd in (("mem", saved), ("state", devices)):
                await asyncio.to_thread(_keep, fd, place / name)
        finally:
            os.close(saved)
            os.close(devices)


def _keep(source: int, path: Path) -> None:
    """Firecracker writes all memory; most of it is nothing."""
    with open(path, "xb") as file:
        memory.copy_bytes(source, file.fileno())
        os.fsync(file.fileno())
    path.chmod(0o444)


def _found(what: str, command: str) -> str:
    found = shutil.which(command)
    if found is None:
        raise ConfigError(f"microvm/firecracker needs {what}", found=f"no command {command!r}", fix=FIX)
    return found


def _version(what: str, command: str) -> str:
    said = base.version(command)
    found = re.search(r"v(\d+)\.(\d+)\S*", said)
    oldest = f"v{OLDEST[0]}.{OLDEST[1]} or newer"
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        raise ConfigError(f"{what} is of no version that is known to do", where=command, found=said, expected=oldest)
    return found[0]


def _memory_limit(version: int, most: int) -> str:
    return f"memory.max={most}" if version == 2 else f"memory.limit_in_bytes={most}"
