"""How a QEMU that is nobody comes to /dev/kvm where the run is root, and what is remembered where that is of no use.

Most hosts give the device to a group, and QEMU is then put into that group. In containers and small machines it is
often root's alone. It is left as it is, since what we would allow all could use, and for longer than a run: QEMU is
started in a mount namespace of its own, in which another node of the same device stands in its place, for QEMU's group.
The namespace ends with the run and the machines in it. (QEMU 7.2 opens /dev/kvm by this name and takes no descriptor.)

Whether a machine boots with it is known once one has. Where none did, it is not tried again by a later run until the
host was started anew or QEMU or the image has changed: some hosts offer a KVM that takes a minute to come to nothing.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from attrs import frozen

from composer_core.errors import BackendError

DEVICE = "/dev/kvm"
NOBODY = 65534
MAKE = """
place=$1
mount -t tmpfs -o mode=755,size=16k,nosuid,noexec kvm "$place"
mknod -m 660 "$place/kvm" c "$2" "$3"
chown "0:$4" "$place/kvm"
mount --bind "$place/kvm" "$5"
umount -l "$place"
echo made
read wait
"""
"""In a mount namespace of its own; it lives on while somebody holds a descriptor of it."""


@frozen
class Access:
    """How QEMU is started so that it may open the device; open until `close`."""

    groups: tuple[int, ...] = ()
    """What it is in beside its own group."""
    namespace: int = -1
    """Descriptor of the mount namespace that it is started in; -1 is this process' own."""

    def words(self) -> list[str]:
        """What stands before all others. QEMU does not inherit the descriptor: it is found by whose it is."""
        return ["nsenter", f"--mount=/proc/{os.getpid()}/fd/{self.namespace}", "--"] if self.namespace >= 0 else []

    def close(self) -> None:
        if self.namespace >= 0:
            os.close(self.namespace)


def access(device: str = DEVICE) -> Access:
    """Raises BackendError where QEMU, as the user it will be, could not open the device."""
    try:
        found = os.stat(device)
    except OSError as error:
        raise BackendError(f"there is no {device}") from error
    if os.geteuid() != 0:
        if not os.access(device, os.R_OK | os.W_OK):
            raise BackendError(f"{device} may not be opened by this user", fix="add it to the group of the device")
        return Access()
    if found.st_mode & 0o006 == 0o006:
        return Access()
    if found.st_mode & 0o060 == 0o060 and found.st_gid != 0:
        return Access(groups=(found.st_gid,))
    return Access(namespace=_namespace(device, found))


def _namespace(device: str, found: os.stat_result) -> int:
    if not stat.S_ISCHR(found.st_mode):
        raise BackendError(f"{device} is no device")
    numbers = [str(os.major(found.st_rdev)), str(os.minor(found.st_rdev)), str(NOBODY)]
    enter = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-e", "-c", MAKE, "sh"]
    with tempfile.TemporaryDirectory(prefix="composer-kvm-") as place:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen([*enter, place, *numbers, device], **pipes) as maker:  # type: ignore[call-overload]
            if maker.stdout.readline() == b"made\n":
                return os.open(f"/proc/{maker.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            said = maker.stderr.read().decode(errors="replace").strip()
    raise BackendError(
        f"{device} is for root alone, and no mount namespace can be made in which QEMU may open it",
        found=said[-300:],
        fix=f"give it to a group of its own on the host (chgrp kvm {device}; chmod 660 {device})",
    )


class Refusals:
    """Why no machine booted with KVM, kept in the cache folder under what it was tried with."""

    def __init__(self, folder: Path, tried: Sequence[str]) -> None:
        self.path = folder / "no-kvm.json"
        with open("/proc/sys/kernel/random/boot_id") as file:
            self._tried = [file.read().strip(), *tried]

    def why(self) -> str:
        """Empty if it was not tried since."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(self.path.read_text())
            if kept["tried"] == self._tried:
                return str(kept["why"])
        return ""

    def remember(self, why: str) -> None:
        fresh = self.path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps({"tried": self._tried, "why": why}))
        os.replace(fresh, self.path)
