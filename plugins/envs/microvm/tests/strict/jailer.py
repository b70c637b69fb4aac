"""The jailer as a program: its arguments are checked as the published one's are, its folder made and its user become.

It calls no `chroot`, since Python and QEMU would be out of reach: the working folder is the root, and the strict server
looks nowhere else.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import stat
from pathlib import Path

from strict.server import VERSION
from strict.server import main as server

FOLDERS = (".", "dev", "dev/net", "run")
KVM = os.makedev(10, 232)
LIMITS = {"fsize": resource.RLIMIT_FSIZE, "no-file": resource.RLIMIT_NOFILE}


def _number(text: str) -> int:
    number = int(text)
    if not 0 <= number < 2**32:
        raise ValueError(text)
    return number


def _inner(text: str) -> str:
    if any(part in ("", ".", "..") for part in text.split("/")):
        raise ValueError(text)
    return text


def _group(text: str) -> str:
    file, value = text.split("=")
    if not value or "." not in _inner(file):
        raise ValueError(text)
    return text


def _limit(text: str) -> tuple[str, int]:
    name, value = text.split("=")
    if name not in LIMITS:
        raise ValueError(text)
    return name, int(value)


def _id(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9-]{1,64}", text):
        raise ValueError(text)
    return text


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=True)
    made.add_argument("--id", required=True, type=_id)
    made.add_argument("--exec-file", required=True, type=lambda text: Path(text).resolve(strict=True))
    made.add_argument("--uid", required=True, type=_number)
    made.add_argument("--gid", required=True, type=_number)
    made.add_argument("--chroot-base-dir", default="/srv/jailer", type=lambda text: Path(text).resolve(strict=True))
    made.add_argument("--cgroup-version", default=1, type=int, choices=(1, 2))
    made.add_argument("--cgroup", action="append", default=[], type=_group)
    made.add_argument("--parent-cgroup", type=_inner)
    made.add_argument("--resource-limit", action="append", default=[], type=_limit)
    return made


def main(words: list[str], loopback: bytes) -> None:
    if words == ["--version"]:
        print(f"Jailer v{VERSION}\n")
        return
    cut = words.index("--") if "--" in words else len(words)
    given = parser().parse_args(words[:cut])
    os.closerange(3, 1 << 16)
    os.environ.clear()
    root = given.chroot_base_dir / given.exec_file.name / given.id / "root"
    root.mkdir(parents=True, exist_ok=True)
    copied = root / given.exec_file.name
    shutil.copy(given.exec_file, copied)
    os.chown(copied, given.uid, given.gid)
    for name, most in given.resource_limit:
        resource.setrlimit(LIMITS[name], (most, most))
    os.chdir(root)
    for folder in FOLDERS:
        os.makedirs(folder, exist_ok=True)
        os.chmod(folder, 0o700)
        os.chown(folder, given.uid, given.gid)
    os.mknod("dev/kvm", stat.S_IFCHR | 0o600, KVM)
    os.chown("dev/kvm", given.uid, given.gid)
    os.setgroups([])
    os.setresgid(given.gid, given.gid, given.gid)
    os.setresuid(given.uid, given.uid, given.uid)
    times = ["--start-time-us", "0", "--start-time-cpu-us", "0", "--parent-cpu-time-us", "0"]
    server(["--id", given.id, *times, *words[cut + 1 :]], loopback)
