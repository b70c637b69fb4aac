"""What process 1 does to the machine: mounts, room for what commands write, and who the machine is after a clone.

The root image is shared by all machines and read-only. All that can be written is one tmpfs of a bounded size, shown
as the workspace, /tmp, /var/tmp and /dev/shm; memory and disk of a machine are thus one thing, and captured together.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

from composer_envkit.agent import linux
from composer_plugin_microvm.guest import OWNER, groups

STATE = "/run/state"
WORKSPACE = "/workspace"
PLACES = {"workspace": WORKSPACE, "tmp": "/tmp", "vartmp": "/var/tmp", "shm": "/dev/shm"}
INODES = 16_384
"""Files and folders that commands may make, beside those of the template."""
RNDADDENTROPY, RNDRESEEDCRNG = 0x40085203, 0x5207
START_BYTES = 512 << 20
"""Room until the template's limit is known."""
HARDENED = {
    "/proc/sys/kernel/unprivileged_userns_clone": "0",
    "/proc/sys/user/max_user_namespaces": "0",
    "/proc/sys/kernel/unprivileged_bpf_disabled": "2",
    "/proc/sys/kernel/dmesg_restrict": "1",
    "/proc/sys/kernel/printk": "1",
    "/proc/sys/kernel/core_pattern": "|/bin/false",
    "/proc/sys/vm/panic_on_oom": "0",
    "/proc/sys/kernel/modules_disabled": "1",
}


def begin() -> None:
    """Once, at boot. The first stage has mounted /proc, /sys, /dev and /run."""
    os.environ.clear()
    _mount_groups()
    groups.begin()
    groups.put("/proc/self/oom_score_adj", "-1000")
    os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    for path, value in HARDENED.items():
        if os.path.exists(path):
            groups.put(path, value)
    _mount_state()
    socket.sethostname("sandbox")
    linux.loopback_up()


def _mount_groups() -> None:
    """With the option that makes entering a group cheap, where the kernel has it (6.0)."""
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    try:
        linux.mount("cgroup2", groups.ROOT, "cgroup2", flags, "favordynmods")
    except OSError:
        linux.mount("cgroup2", groups.ROOT, "cgroup2", flags)


def _mount_state() -> None:
    os.mkdir(STATE)
    safe = linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("state", STATE, "tmpfs", safe, f"mode=755,size={START_BYTES}")
    os.makedirs("/dev/shm", exist_ok=True)
    for name, place in PLACES.items():
        folder = f"{STATE}/{name}"
        os.mkdir(folder)
        os.chown(folder, OWNER, OWNER)
        os.chmod(folder, 0o755 if place == WORKSPACE else 0o1777)
        linux.mount(folder, place, "none", linux.MS_BIND)


def limit_disk(disk_bytes: int) -> None:
    """From now on this much more may be written than there is."""
    found = os.statvfs(STATE)
    used = (found.f_blocks - found.f_bfree) * found.f_frsize
    inodes = found.f_files - found.f_ffree + INODES
    flags = linux.MS_REMOUNT | linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("state", STATE, "tmpfs", flags, f"mode=755,size={used + disk_bytes},nr_inodes={inodes}")


def adopt(generation: str, time_s: float, entropy: bytes) -> None:
    """A machine that was cloned becomes one of its own: randomness, clock, machine id. Before any command runs."""
    _add_entropy(entropy)
    time.clock_settime(time.CLOCK_REALTIME, time_s)
    with open("/run/machine-id", "w") as file:
        file.write(generation + "\n")


def _add_entropy(data: bytes) -> None:
    """Mix `data` into the kernel's generator, credit it, and make every generator draw anew."""
    with open("/dev/random", "wb") as device:
        fcntl.ioctl(device, RNDADDENTROPY, struct.pack("ii", 8 * len(data), len(data)) + data)
        fcntl.ioctl(device, RNDRESEEDCRNG)


@contextmanager
def as_owner() -> Iterator[None]:
    """Files and folders that are made meanwhile are the commands' own."""
    linux.files_as(OWNER, OWNER)
    try:
        yield
    finally:
        linux.files_as(0, 0)
