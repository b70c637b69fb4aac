"""Settings of `microvm/qemu` and `microvm/firecracker`."""

from __future__ import annotations

from attrs import field, frozen, validators


@frozen(kw_only=True)
class MachineConfig:
    """Settings beside `sandbox.use` in the run file, whoever runs the machines."""

    suite: str = "bookworm"
    """Debian release that the image is made from."""
    packages: tuple[str, ...] = ("python3", "git", "ripgrep")
    """Debian packages in the image beside the smallest system; the agent needs python3."""
    rootfs: str = ""
    """A folder or a tar archive to make the image from instead, say of `docker export`; with Python 3.9 or newer."""
    kernel: str = ""
    """A Debian kernel package (.deb) to boot instead of the cloud kernel that apt finds."""
    cache: str = ""
    """Folder for images and booted machines, by content; default, composer/microvm in the user's cache folder."""
    machines: int = field(default=64, validator=validators.ge(1))
    """Machines that may live at once; more is no capacity."""
    starting: int = field(default=4, validator=validators.ge(1))
    """Machines that may start at once; others wait."""
    commands: int = field(default=0, validator=validators.ge(0))
    """Commands that may run at once in all machines; more wait their turn, which does not count as their time. 0 is
    four for each core that the run may use."""
    boot_s: float = field(default=60.0, validator=validators.gt(0))
    """Longest that a cold boot may take; one is made for each image and size of memory, and kept."""


@frozen(kw_only=True)
class QemuConfig(MachineConfig):
    """Settings of `microvm/qemu`."""

    qemu: str = "qemu-system-x86_64"
    """QEMU's command, a name on PATH or a path; 7.2 or newer."""
    accel: str = field(default="auto", validator=validators.in_(("auto", "kvm", "tcg")))
    """auto takes KVM where a machine boots with it, else TCG, which is slower and no assured boundary."""
    store_bytes: int = field(default=4 << 30, validator=validators.ge(1 << 20))
    """Memory that what templates and snapshots changed may take together."""


@frozen(kw_only=True)
class FirecrackerConfig(MachineConfig):
    """Settings of `microvm/firecracker`."""

    firecracker: str = "firecracker"
    """Firecracker's command, a name on PATH or a path; 1.13 or newer."""
    jailer: str = "jailer"
    """Its jailer of the same version, which takes a run as root; empty, Firecracker runs as the run's user, in no
    jail but its own filter of system calls."""
    uid: int = field(default=200_000, validator=validators.and_(validators.ge(1), validators.le(2**31)))
    """First of as many user and group numbers as `machines`: each machine that lives has one of its own. Runs that
    share a host should not share numbers."""
    cgroup_version: int = field(default=0, validator=validators.in_((0, 1, 2)))
    """Version of the control groups that the jailer puts each machine into, with a limit of its memory; 0 is none."""
    cgroups: tuple[str, ...] = ()
    """Further "file=value" of a machine's control group, say "cpu.weight=50"."""
    store_bytes: int = field(default=32 << 30, validator=validators.ge(1 << 20))
    """Disk in the cache folder that templates and snapshots may take together; each is a whole memory."""
