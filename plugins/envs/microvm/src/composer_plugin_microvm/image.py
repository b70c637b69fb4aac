"""The image that all machines boot: a read-only root file system, a kernel, and the parts of the first stage.

Made once for each content and kept in the user's cache folder, which several processes may use at once: whoever comes
second waits for the first. The root is Debian's smallest system with the packages asked for (debootstrap, as root, from
the mirror that apt uses here), or any folder or archive that is given; the kernel is Debian's cloud kernel package.
Made with: `debootstrap`, `mksquashfs`, `apt-get`, `dpkg-deb`, a static `busybox`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from composer_core.errors import BackendError, ConfigError
from composer_plugin_microvm.config import MachineConfig
from composer_plugin_microvm.initramfs import ALL_MODULES, SPARE_MODULES, initramfs

Say = Callable[[str], None]
LAYOUT = 3
"""Grows when images are made differently."""
KERNEL = "linux-image-cloud-amd64"
DOCUMENTS = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info")
EMPTIED = ("boot", "dev", "proc", "run", "sys", "tmp", "workspace", "var/cache", "var/lib/apt/lists", "var/tmp")
"""Left out with what they hold, and made anew."""
PACKAGES = {"mksquashfs": "squashfs-tools", "busybox": "busybox-static", "dpkg-deb": "dpkg"}
HOSTS = "127.0.0.1 localhost"
"""What names in a machine lead to: its own loopback is all the network there is."""
FILES = ("root.squashfs", "vmlinuz", "initramfs")


@frozen
class Image:
    """Files of an image; `key` names their content."""

    root: Path
    kernel: Path
    initramfs: Path
    key: str


def cache_folder(config: MachineConfig) -> Path:
    """Where images are kept; made with rights for its owner alone."""
    own = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    folder = Path(config.cache).expanduser() if config.cache else Path(own, "composer", "microvm")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """One process at a time; the lock goes with its holder."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def image(config: MachineConfig, say: Say) -> Image:
    """The image of these settings, made if need be (about half a minute, and what a mirror takes).

    Raises:
        ConfigError: a tool is missing, or the settings name no image.
        BackendError: a tool failed.
    """
    cache = cache_folder(config)
    folder = cache / f"image-{_digest(_asked(config))}"
    with alone(cache / f"{folder.name}.lock"):
        if not (folder / "root.squashfs").exists():
            _make(config, folder, say)
        return _first_stage(folder)


def _asked(config: MachineConfig) -> str:
    """What decides the content of root and kernel."""
    given = [_identity(Path(path)) if path else "" for path in (config.rootfs, config.kernel)]
    return json.dumps([LAYOUT, config.suite, sorted(config.packages), *given])


def _identity(path: Path) -> str:
    """An archive by its bytes; a folder by what it lists, since reading all of it would take as long as packing it."""
    digest = hashlib.sha256()
    if path.is_file():
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    if not path.is_dir():
        raise ConfigError("there is no such root file system or kernel", found=str(path))
    for place, folders, files in os.walk(path):
        folders.sort()
        for name in sorted(files):
            info = os.lstat(os.path.join(place, name))
            digest.update(f"{place}/{name} {info.st_size} {info.st_mtime_ns} {info.st_mode}\n".encode(errors="replace"))
    return digest.hexdigest()


def _digest(text: str | bytes) -> str:
    return hashlib.sha256(text if isinstance(text, bytes) else text.encode()).hexdigest()[:16]


def _make(config: MachineConfig, folder: Path, say: Say) -> None:
    tools = ["mksquashfs", "busybox", "dpkg-deb", *([] if config.rootfs else ["debootstrap"])]
    if missing := [name for name in tools if not shutil.which(name, path=f"{os.defpath}:/usr/sbin:/sbin")]:
        fix = f"apt install {' '.join(PACKAGES.get(name, name) for name in missing)}"
        raise ConfigError(f"the image of microvm/qemu is made with {', '.join(missing)}", fix=fix)
    if not config.rootfs and os.geteuid() != 0:
        fix = "make it once as root, or name a root file system in sandbox.rootfs (docker export, debootstrap)"
        raise ConfigError("debootstrap makes an image as root only", fix=fix)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="making-") as place:
        made = Path(place, "image")
        made.mkdir(mode=0o755)
        _unpack_kernel(config, Path(place), made, say)
        _pack(config, _root(config, Path(place), say), made / "root.squashfs", say)
        (made / "busybox").write_bytes(_busybox())
        os.sync()
        os.rename(made, folder)
    say(f"image made in {time.monotonic() - started:.0f} s: {folder}")


def _busybox() -> bytes:
    """The program of the first stage, where there is no library yet."""
    data = Path(shutil.which("busybox") or "").read_bytes()
    if b"/ld-linux" in data:
        raise ConfigError("busybox needs libraries here", expected="a static one", fix="apt install busybox-static")
    return data


def _root(config: MachineConfig, place: Path, say: Say) -> Path:
    """A folder with the root file system, which is the given one if it is a folder."""
    given = Path(config.rootfs).expanduser()
    if config.rootfs and given.is_dir():
        return given
    root = place / "root"
    root.mkdir(mode=0o755)
    if config.rootfs:
        say(f"unpacking {given}")
        run("tar", "-xf", str(given), "-C", str(root), "--exclude=dev/*", "--exclude=./dev/*", "--no-same-owner")
    else:
        say(f"debootstrap: {config.suite} with {', '.join(config.packages)}")
        include = f"--include={','.join(config.packages)}"
        run("debootstrap", "--variant=minbase", include, config.suite, str(root), *_mirror(config.suite))
    return root


def _mirror(suite: str) -> list[str]:
    """Where apt has this release from on this machine; nothing if it has it not: debootstrap knows Debian's own."""
    if shutil.which("apt-get"):
        said = run(
            "apt-get", "indextargets", "--format", "$(CODENAME) $(COMPONENT) $(REPO_URI)", "Created-By: Packages"
        )
        for line in said.splitlines():
            words = line.split()
            if words[:2] == [suite, "main"] and len(words) == 3:
                return [words[2]]
    return []


def _pack(config: MachineConfig, root: Path, target: Path, say: Say) -> None:
    """Everything belongs to root, mount points are empty, the machine's id is one that is made at each start."""
    say("packing the root file system")
    left_out = [*EMPTIED, "etc/machine-id", "etc/hosts", *([] if config.rootfs else DOCUMENTS)]
    made = [part for name in EMPTIED for part in ("-p", f"{name} d {'1777' if 'tmp' in name else '755'} 0 0")]
    made += ["-p", "etc/machine-id s 777 0 0 /run/machine-id", "-p", f"etc/hosts f 644 0 0 echo {HOSTS}"]
    words = ["-comp", "lz4", "-noappend", "-all-root", "-quiet", "-no-progress", "-no-xattrs", *made]
    run("mksquashfs", str(root), str(target), *words, "-e", *left_out)
    target.chmod(0o644)


def _unpack_kernel(config: MachineConfig, place: Path, made: Path, say: Say) -> None:
    package = Path(config.kernel).expanduser() if config.kernel else _download(place, say)
    unpacked = place / "kernel"
    run("dpkg-deb", "-x", str(package), str(unpacked))
    (kernel,) = unpacked.glob("boot/vmlinuz-*")
    shutil.copyfile(kernel, made / "vmlinuz")
    (made / "modules").mkdir()
    for name in (*ALL_MODULES, *SPARE_MODULES):
        found = [*unpacked.glob(f"lib/modules/*/kernel/**/{name}.ko")]
        if not found:
            raise ConfigError(f"the kernel has no module {name}", found=package.name, expected="Debian's cloud kernel")
        shutil.copyfile(found[0], made / "modules" / f"{name}.ko")


def _download(place: Path, say: Say) -> Path:
    """Debian's newest cloud kernel, without installing it."""
    if not shutil.which("apt-get"):
        raise ConfigError("a kernel is found by apt, which is not here", fix="name a package in sandbox.kernel")
    depends = run("apt-cache", "depends", "--important", KERNEL)
    names = [word for word in depends.split() if word.startswith("linux-image-") and word != KERNEL]
    if not names:
        raise ConfigError(f"apt knows no {KERNEL}", fix="apt update, or name a package in sandbox.kernel")
    say(f"downloading {names[0]}")
    folder = place / "download"
    folder.mkdir()
    run("apt-get", "download", "-qq", names[0], cwd=folder)
    (package,) = folder.glob("*.deb")
    return package


def _first_stage(folder: Path) -> Image:
    """The initramfs has the agent in it, so it is made anew when that changes; it takes milliseconds."""
    modules = {name: (folder / "modules" / f"{name}.ko").read_bytes() for name in ALL_MODULES}
    data = initramfs((folder / "busybox").read_bytes(), modules)
    path = folder / f"initramfs-{_digest(data)}"
    if not path.exists():
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(data)
        os.chmod(file.name, 0o644)
        os.rename(file.name, path)
    return Image(folder / "root.squashfs", folder / "vmlinuz", path, f"{folder.name} {path.name}")


def run(*argv: str, cwd: Path | None = None) -> str:
    """Run a tool and return what it prints. Raises BackendError with its last words."""
    env = {
        "PATH": f"{os.defpath}:/usr/local/sbin:/usr/sbin:/sbin",
        "LANG": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
    }
    env |= {name: os.environ[name] for name in os.environ if name.lower().endswith("_proxy")}
    done = subprocess.run(argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        words = (done.stdout[-1000:] + done.stderr[-1000:]).decode(errors="replace").strip()
        raise BackendError(f"{argv[0]} failed while an image was made", found=words)
    return done.stdout.decode(errors="replace")
