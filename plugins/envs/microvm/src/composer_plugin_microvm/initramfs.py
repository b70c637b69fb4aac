"""The first stage of a boot: a file system in memory with busybox, the few modules a root image needs, and the agent.

Debian's cloud kernel has all of virtio as modules. The archive is written here (cpio, "newc"), not by a tool, so that
equal parts give equal bytes; it is not compressed, since the guest would be slower at unpacking than at reading.
"""

from __future__ import annotations

import io
import stat
import zipfile
from pathlib import Path

from composer_envkit import agent as shared
from composer_plugin_microvm import guest
from composer_plugin_microvm.guest import VSOCK

MODULES = ("virtio_ring", "virtio", "virtio_mmio", "virtio_blk", "virtio_console", "squashfs")
"""In the order in which they are loaded."""
VSOCK_MODULES = ("virtio-rng", "vsock", "vmw_vsock_virtio_transport_common", "vmw_vsock_virtio_transport")
"""Loaded after them where the kernel's command line says `guest.VSOCK`."""
ALL_MODULES = (*MODULES, *VSOCK_MODULES)
SPARE_MODULES = ("vsock_loopback",)
"""Kept beside an image and in no machine; tests reach the agent's vsock port through it."""
INIT = """#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs dev /dev
modules="{modules}"
case " $($b cat /proc/cmdline) " in *" {vsock} "*) modules="$modules {vsock_modules}";; esac
for module in $modules; do $b insmod /modules/$module.ko; done
tries=0
while [ $tries -lt 200 ] && [ ! -b /dev/vda ]; do tries=$((tries+1)); $b usleep 10000; done
$b mount -t squashfs -o ro,nosuid /dev/vda /root || exec $b reboot -f
$b mount -t tmpfs -o mode=755,nosuid,nodev,size=4m run /root/run
$b cp /agent.pyz /root/run/agent.pyz
for at in dev proc sys; do $b mount --move /$at /root/$at; done
for python in /usr/bin/python3 /usr/local/bin/python3; do
  if [ -e /root$python ]; then exec $b switch_root /root $python -I -S -B /run/agent.pyz; fi
done
$b echo "the image has no python3"
exec $b reboot -f
"""
MAIN = "from composer_plugin_microvm.guest.agent import main\nmain()\n"
FOLDERS = ("bin", "dev", "modules", "proc", "root", "sys")
EPOCH = (1980, 1, 1, 0, 0, 0)


def agent() -> bytes:
    """The agent as one file, which Python runs: `guest` and the parts that it shares, above them nothing."""
    sources = {"__main__.py": MAIN.encode()}
    for package in (guest, shared):
        folder = package.__name__.replace(".", "/")
        sources[f"{folder.partition('/')[0]}/__init__.py"] = b""
        for path in sorted(Path(package.__file__ or "").parent.glob("*.py")):
            sources[f"{folder}/{path.name}"] = path.read_bytes()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in sources.items():
            archive.writestr(zipfile.ZipInfo(name, EPOCH), data)
    return made.getvalue()


def initramfs(busybox: bytes, modules: dict[str, bytes]) -> bytes:
    """The archive; `modules` are those of `ALL_MODULES` by name."""
    words = {"modules": " ".join(MODULES), "vsock": VSOCK, "vsock_modules": " ".join(VSOCK_MODULES)}
    init = INIT.format(**words).encode()
    parts = [_entry(name, stat.S_IFDIR | 0o755) for name in FOLDERS]
    parts += [_entry("init", stat.S_IFREG | 0o755, init), _entry("bin/busybox", stat.S_IFREG | 0o755, busybox)]
    parts += [_entry(f"modules/{name}.ko", stat.S_IFREG | 0o644, modules[name]) for name in ALL_MODULES]
    parts += [_entry("agent.pyz", stat.S_IFREG | 0o644, agent()), _entry("TRAILER!!!", 0)]
    return b"".join(parts)


def _entry(name: str, mode: int, data: bytes = b"") -> bytes:
    """One member: thirteen fields of eight digits after the magic number; name and data padded to four bytes."""
    fields = [0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return _padded(head) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
