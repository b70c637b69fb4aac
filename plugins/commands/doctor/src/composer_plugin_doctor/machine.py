"""What this machine offers to runs: one probe for each thing, bounded in time, which never raises.

A probe does what a run would do, in small: bubblewrap starts a command in namespaces, KVM runs a guest, Docker's daemon
is asked for a sign of life. To be installed is not enough. Whatever is missing says what is lost without it and how to
mend it; nobody needs all of it.

The list is fixed and there is no hook for more: what one component alone knows about a machine is its `probe()`, which
`composer-run check --probe` and the start of every run call.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from attrs import frozen

from composer_plugin_doctor import kvm as kvm_guest
from composer_plugin_doctor.cgroups import ROOT, cpu_quota, memory_bytes, text_of

COMMAND_S = 10.0
"""Wall clock of one command that a probe runs."""
SOCKET_S = 3.0
LOW_DISK_BYTES = 2 << 30
GIB = 1 << 30
OK, ABSENT, BROKEN = "ok", "absent", "broken"

USERNS = {
    "proc/sys/user/max_user_namespaces": ("0", "sysctl -w user.max_user_namespaces=10000"),
    "proc/sys/kernel/unprivileged_userns_clone": ("0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    "proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile that lets bwrap use them",
    ),
}
"""Switches that forbid user namespaces: file -> (the value that forbids, how to allow)."""


@frozen
class Finding:
    """What one probe found."""

    name: str
    state: str
    """ok; absent: not there; broken: there, and does not work, or not enough of it."""
    found: str
    lost: str = ""
    """What cannot be done without it."""
    fix: str = ""
    needed_by: tuple[str, ...] = ()
    """Components that were named and need it; only `doctor --plugins` fills it in."""


def says(argv: Sequence[str], timeout_s: float = COMMAND_S) -> tuple[bool, str]:
    """Whether a command ended well in time, and its first line (of what it complained, if not)."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    good = done.returncode == 0
    texts = (done.stdout, done.stderr) if good else (done.stderr, done.stdout)
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    return good, lines[0].strip() if lines else f"exit code {done.returncode}"


def find_command(*names: str) -> str | None:
    """Path of the first command that is on the path or beside this interpreter."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    return next((found for name in names if (found := shutil.which(name, path=path))), None)


# --- the machine ------------------------------------------------------------------------------------------------


def python() -> Finding:
    return Finding("python", OK, f"{platform.python_version()}, {sys.executable}, {platform.platform()}")


def cores(root: Path = ROOT) -> Finding:
    affinity, quota = len(os.sched_getaffinity(0)), cpu_quota(root)
    usable = min(affinity, quota or affinity)
    bound = "none" if quota is None else f"{quota:g}"
    return Finding("cores", OK, f"{usable:g} usable: {os.cpu_count()} there, affinity {affinity}, cgroup quota {bound}")


def memory(root: Path = ROOT) -> Finding:
    total, available, limit = memory_bytes(root)
    bound = "none" if limit is None else f"{limit / GIB:.1f} GiB"
    return Finding("memory", OK, f"{total / GIB:.1f} GiB, {available / GIB:.1f} available, cgroup limit {bound}")


def disk() -> Finding:
    folders = dict.fromkeys((os.getcwd(), tempfile.gettempdir()))
    free = {folder: shutil.disk_usage(folder).free for folder in folders}
    found = ", ".join(f"{left / GIB:.1f} GiB free in {folder}" for folder, left in free.items())
    if min(free.values()) >= LOW_DISK_BYTES:
        return Finding("disk", OK, found)
    lost = "runs that end when the disk is full: checkpoints, weights and traces are written as they go"
    return Finding("disk", BROKEN, found, lost, "make room, or write elsewhere with --run-dir and TMPDIR")


def gpu(root: Path = ROOT) -> Finding:
    lost = "training and sampling on a GPU; a CPU is enough for models of a few million parameters"
    command = find_command("nvidia-smi")
    asked = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    good, text = says([command, *asked]) if command else (False, "no nvidia-smi")
    if good:
        return Finding("gpu", OK, text)
    cards = [text_of(path) for path in sorted(root.glob("proc/driver/nvidia/gpus/*/information"))]
    names = [line.partition(":")[2].strip() for card in cards for line in card.splitlines() if line.startswith("Model")]
    if names:
        return Finding("gpu", OK, f"{', '.join(names)} ({text})")
    if command:
        return Finding("gpu", BROKEN, text, lost, "mend or reinstall the NVIDIA driver")
    return Finding("gpu", ABSENT, "no NVIDIA driver", lost, "install the driver, where there is a GPU")


# --- isolation --------------------------------------------------------------------------------------------------


def bubblewrap(root: Path = ROOT) -> Finding:
    lost = "sandboxes in namespaces: local/namespaces refuses to start"
    command = find_command("bwrap")
    if command is None:
        return Finding("bubblewrap", ABSENT, "no command bwrap", lost, "apt install bubblewrap")
    walls = ["--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--ro-bind", "/", "/"]
    good, text = says([command, *walls, "--proc", "/proc", "--dev", "/dev", "true"])
    if good:
        return Finding("bubblewrap", OK, f"{says([command, '--version'])[1]}, starts a command in its namespaces")
    if "--disable-userns" in text:
        return Finding("bubblewrap", BROKEN, text, lost, "install bubblewrap 0.8 or newer")
    shut = [how for path, (value, how) in USERNS.items() if text_of(root / path) == value]
    fix = "; ".join(shut) or "start the container with --privileged, or run outside of it"
    return Finding("bubblewrap", BROKEN, text, lost, fix)


def kvm(device: str = kvm_guest.DEVICE) -> Finding:
    lost = "a virtual machine for each episode, at the speed of the machine"
    if not os.path.exists(device):
        fix = "load kvm_intel or kvm_amd, switch on (nested) virtualization, or pass --device /dev/kvm to the container"
        return Finding("kvm", ABSENT, f"no {device}", lost, fix)
    if not os.access(device, os.R_OK | os.W_OK):
        return Finding("kvm", BROKEN, f"{device} may not be opened", lost, "add yourself to the group kvm")
    good, text = says([sys.executable, "-I", str(kvm_guest.__file__), device])
    fix = (
        "switch on virtualization in the firmware, or nested virtualization in the hypervisor below; on a rented "
        "machine, take a kind that offers it"
    )
    return Finding("kvm", OK if good else BROKEN, f"{device} {text}", "" if good else lost, "" if good else fix)


def docker() -> Finding:
    lost = "sandboxes in containers"
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    scheme, _, where = address.partition("://")
    try:
        answer = _ping(scheme, where)
    except FileNotFoundError:
        return Finding("docker", ABSENT, f"no daemon at {address}", lost, "install Docker and start its daemon")
    except PermissionError:
        return Finding("docker", BROKEN, f"{address} may not be opened", lost, "add yourself to the group docker")
    except (OSError, ValueError) as error:
        return Finding("docker", BROKEN, f"{address}: {error}", lost, "start the daemon, or correct DOCKER_HOST")
    head, *lines = answer.splitlines()
    server = next((line.partition(":")[2].strip() for line in lines if line.lower().startswith("server:")), "daemon")
    if " 200 " in f"{head} ":
        return Finding("docker", OK, f"{server} answers at {address}")
    return Finding("docker", BROKEN, f"{address} answered {head!r}", lost, "look at the daemon's log")


def _ping(scheme: str, where: str) -> str:
    """The daemon's answer to GET /_ping."""
    family = {"unix": socket.AF_UNIX, "tcp": socket.AF_INET}.get(scheme)
    if family is None:
        raise ValueError(f"cannot be asked over {scheme!r}")
    host, _, port = where.rpartition(":")
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(SOCKET_S)
        connection.connect(where if scheme == "unix" else (host, int(port)))
        connection.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
        return connection.recv(4096).decode(errors="replace") or "nothing"


# --- commands ---------------------------------------------------------------------------------------------------


def command(name: str, names: Sequence[str], lost: str, fix: str) -> Callable[[], Finding]:
    """A probe that looks for a command and asks it for its version."""

    def probe() -> Finding:
        found = find_command(*names)
        if found is None:
            return Finding(name, ABSENT, f"no command {' or '.join(names)}", lost, fix)
        good, text = says([found, "--version"])
        return Finding(name, OK, f"{text}, {found}") if good else Finding(name, BROKEN, f"{found}: {text}", lost, fix)

    return probe


QEMU = f"qemu-system-{platform.machine()}"
FIRECRACKER = "install firecracker and jailer of its project's releases (1.13 or newer); they need KVM"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")
PROBES: dict[str, Callable[[], Finding]] = {
    "python": python,
    "cores": cores,
    "memory": memory,
    "disk": disk,
    "gpu": gpu,
    "bubblewrap": bubblewrap,
    "kvm": kvm,
    "docker": docker,
    "qemu": command("qemu", (QEMU,), "a virtual machine for each episode", "apt install qemu-system"),
    "firecracker": command("firecracker", ("firecracker",), "sandboxes of microvm/firecracker", FIRECRACKER),
    "rg": command("rg", ("rg",), "the tools glob and grep of the plugin code", "apt install ripgrep"),
    "ruff": command("ruff", ("ruff",), "the tool read_lints of the plugin code", "pip install ruff"),
    "chromium": command("chromium", CHROMIUM, "tests that open reports in a browser", "apt install chromium"),
}


def examine(probes: dict[str, Callable[[], Finding]] = PROBES) -> list[Finding]:
    """All findings, in order; the probes run side by side."""
    with ThreadPoolExecutor(len(probes)) as pool:
        return list(pool.map(_safely, probes.items()))


def _safely(named: tuple[str, Callable[[], Finding]]) -> Finding:
    name, probe = named
    try:
        return probe()
    except Exception as error:
        return Finding(name, BROKEN, f"could not be found out: {type(error).__name__}: {error}")
