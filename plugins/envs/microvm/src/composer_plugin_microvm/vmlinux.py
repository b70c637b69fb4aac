"""The kernel as Firecracker boots it: the ELF file inside a compressed one.

Debian's kernel is a bzImage, which Firecracker takes from version 1.17 on; what it holds is taken out here for those
before. Where the parts lie is told by the header (Documentation/arch/x86/boot.rst of Linux). Debian compresses with
LZ4, for which Python has nothing, so a tool is asked.
"""

from __future__ import annotations

import lzma
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

from composer_core.errors import BackendError, ConfigError
from composer_plugin_microvm.image import Image

SECTORS, MAGIC, PAYLOAD = 0x1F1, 0x202, 0x248
SECTOR_BYTES = 512
SIZE_BYTES = 4
"""The size of what is packed stands after it."""
TOOLS = {b"\x02\x21\x4c\x18": "lz4", b"\x28\xb5\x2f\xfd": "zstd"}


def vmlinux(image: Image) -> Path:
    """Made beside the image's kernel, once. Two at once write the same."""
    path = image.kernel.with_name("vmlinux")
    if not path.exists():
        data = unpacked(image.kernel.read_bytes())
        fresh = path.with_name(f"making-{path.name}")
        fresh.write_bytes(data)
        fresh.chmod(0o644)
        fresh.rename(path)
    return path


def unpacked(data: bytes) -> bytes:
    """Raises BackendError where it is no kernel, ConfigError where a tool is missing."""
    if data[MAGIC : MAGIC + 4] != b"HdrS":
        raise BackendError("a kernel is no bzImage", found=data[:4].hex())
    at, length = struct.unpack_from("<II", data, PAYLOAD)
    at += ((data[SECTORS] or 4) + 1) * SECTOR_BYTES
    found = _unpacked(data[at : at + length])
    if found[:4] != b"\x7fELF":
        raise BackendError("a kernel holds no ELF file", found=found[:4].hex())
    return found


def _unpacked(data: bytes) -> bytes:
    if data[:2] == b"\x1f\x8b":
        return zlib.decompressobj(31).decompress(data)
    if data[:6] == b"\xfd7zXZ\0":
        return lzma.LZMADecompressor().decompress(data)
    tool = TOOLS.get(data[:4])
    if tool is None:
        raise BackendError("a kernel is compressed in an unknown way", found=data[:4].hex())
    if shutil.which(tool) is None:
        raise ConfigError(f"the kernel for Firecracker is unpacked with {tool}", fix=f"apt install {tool}")
    done = subprocess.run([tool, "-dc"], input=data[:-SIZE_BYTES], capture_output=True, check=False)
    if done.returncode:
        raise BackendError(f"{tool} failed", found=done.stderr.decode(errors="replace")[-500:])
    return done.stdout
