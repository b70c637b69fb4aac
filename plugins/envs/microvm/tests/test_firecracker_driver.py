"""What must be here before Firecracker starts, its jail's words and files, and the kernel that it boots."""

from __future__ import annotations

import asyncio
import gzip
import lzma
import os
import struct
import sys
from pathlib import Path

import pytest
from machines import new_provider
from strict import jailer

from composer_core.errors import BackendError, ConfigError
from composer_plugin_microvm import firecracker_driver, jail, memory, vmlinux
from composer_plugin_microvm.config import FirecrackerConfig
from composer_plugin_microvm.firecracker import counted
from composer_plugin_microvm.jail import Jail, RunFolder


def refused(config: FirecrackerConfig) -> str:
    async def whole() -> str:
        provider = new_provider(config)
        try:
            with pytest.raises(ConfigError) as caught:
                await provider.probe()
            return str(caught.value)
        finally:
            await provider.close()

    return asyncio.run(whole())


def program(folder: Path, name: str, says: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("firecracker", "jails", "said"),
    [
        (None, "Jailer v1.14.0", "needs firecracker"),
        ("Firecracker v1.14.0", None, "needs jailer"),
        ("Firecracker v1.12.9", "Jailer v1.12.9", "expected: v1.13 or newer"),
        ("Firebird 5", "Jailer v1.14.0", "no version that is known"),
        ("Firecracker v1.14.0", "Jailer v1.14.1", "of another version"),
        ("Firecracker v1.14.0", "", "not run as root without its jailer"),
        ("Firecracker v1.14.0", "Jailer v1.14.0", "needs KVM"),
    ],
)
def test_what_is_missing_is_named_with_what_to_do(tmp_path: Path, monkeypatch, firecracker, jails, said: str) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(firecracker_driver, "KVM", str(tmp_path / "kvm"))
    names = [
        says and program(tmp_path, name, says) if says is not None else str(tmp_path / "nothing")
        for name, says in (("firecracker", firecracker), ("jailer", jails))
    ]
    text = refused(FirecrackerConfig(firecracker=names[0], jailer=names[1], cache=str(tmp_path / "cache")))
    assert " ".join(said.split()) in " ".join(text.split()) and ("fix:" in text or "expected:" in text), text
    assert not (tmp_path / "cache").exists() or not [*(tmp_path / "cache").iterdir()]


def test_a_jailer_is_nothing_for_a_run_without_rights(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    path = program(tmp_path, "firecracker", "Firecracker v1.15.0")
    assert "sandbox.jailer = ''" in refused(FirecrackerConfig(firecracker=path, cache=str(tmp_path)))


def test_a_machine_that_does_not_boot_is_told_with_firecrackers_own_words(
    strict: FirecrackerConfig, monkeypatch
) -> None:
    monkeypatch.setattr(firecracker_driver, "LINE", f"{firecracker_driver.LINE} nomodule")
    text = refused(strict)
    assert "no machine boots with Firecracker here" in text and "refused PUT /boot-source" in text, text
    assert "a kernel of modules would not boot" in text and "the strict server runs" in text
    assert not [*Path(strict.cache, "firecracker").glob("run-*")]


# --- the jail -----------------------------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path):
    found = Jail(tmp_path, "firecracker", -1, {})
    yield found
    found.close()


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_jailer_is_given_words_that_it_takes(made: Jail, version: int) -> None:
    program = Path(sys.executable).resolve()
    made.user = 200_007
    limit = firecracker_driver._memory_limit(version, 1 << 28)
    words = jail.words(made, program, "/bin/jailer", [limit, "cpu.weight=50"], version, 1 << 28)
    cut = words.index("/bin/jailer")
    assert words[:cut][:2] == ["unshare", "--pid"] and "--net" in words[:cut] and "--kill-child=KILL" in words[:cut]
    end = words.index("--", cut)
    given = jailer.parser().parse_args(words[cut + 1 : end])
    assert (given.uid, given.gid, given.exec_file, given.id) == (200_007, 200_007, program, made.id)
    assert given.chroot_base_dir / program.name / given.id == (made.base / program.name / made.id).resolve()
    assert dict(given.resource_limit)["fsize"] >= 1 << 28
    assert given.cgroup == ([limit, "cpu.weight=50"] if version else [])
    assert (given.cgroup_version, given.parent_cgroup) == ((version, "composer") if version else (1, None))
    assert words[end + 1 :] == ["--api-sock", "api.sock"]


def test_groups_that_the_jailer_made_go_with_the_machine(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"x {tmp_path}/one cgroup rw 0 0\ny {tmp_path}/two cgroup2 rw 0 0\nz {tmp_path}/no tmpfs rw 0 0\n"
    )
    for name in ("one", "no"):
        (tmp_path / name / "composer" / "id").mkdir(parents=True)
    jail._remove_groups("id", mounts)
    assert not (tmp_path / "one/composer/id").exists() and (tmp_path / "no/composer/id").exists()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "large", "nothing"])
def test_what_a_machine_has_saved_is_a_file_of_its_own_and_no_larger_than_it_may_be(
    made: Jail, tmp_path: Path, kind: str
) -> None:
    path = made.root / "saved"
    (tmp_path / "secret").write_text("secret")
    if kind == "link":
        path.symlink_to(tmp_path / "secret")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "large":
        path.write_bytes(b"x" * 101)
    with pytest.raises((OSError, BackendError)):
        made.take("saved", 100)


def test_memory_that_was_saved_is_laid_over_the_memory_before(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.hold("root", Path(__file__))
    before, saved, devices = (memory.memory_file(name, 1 << 20) for name in ("before", "saved", "devices"))
    try:
        for fd, at, data in ((before, 0, b"old" * 4096), (before, 65536, b"kept"), (saved, 4096, b"new" * 1024)):
            os.pwrite(fd, data, at)
        kept = run.merge(1 << 20, before, saved, devices)
        found = (kept.folder / "mem").read_bytes()
        assert found[:4096] == (b"old" * 4096)[:4096] and found[65536:65540] == b"kept"
        assert found[4096 : 4096 + 3072] == b"new" * 1024 and len(found) == 1 << 20
        assert 0 < kept.size_bytes < 1 << 18 and (kept.folder / "mem").stat().st_mode & 0o222 == 0
        with pytest.raises(FileExistsError):
            jail._new(kept.folder / "mem")
    finally:
        for fd in (before, saved, devices):
            os.close(fd)
        run.close()
        run.close()
    assert [path.name for path in (tmp_path / "firecracker").iterdir()] == ["lock"]


def test_what_is_zero_takes_no_room(tmp_path: Path) -> None:
    source, target = (memory.memory_file(name, 1 << 20) for name in ("source", "target"))
    os.pwrite(source, b"\0" * (1 << 20), 0)
    os.pwrite(source, b"x", 777_777)
    memory.copy_bytes(source, target)
    assert os.pread(target, 1 << 20, 0) == os.pread(source, 1 << 20, 0)
    assert os.fstat(target).st_blocks * 512 <= memory.PIECE_BYTES < os.fstat(source).st_blocks * 512
    os.close(source)
    os.close(target)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (b'{"vcpu": {"failures": 2, "exit_io_in": 0}, "net": {"fails": 5}}\n', "vcpu.failures=2"),
        (b'{"vcpu": {"failures": 1}}\n{"seccomp": {"num_faults": 3}}\n{"vcpu": {"fail', "seccomp.num_faults=3"),
        (b'{"vcpu": {"failures": 0}}\n', ""),
        (b'[1]\n{"vcpu": 1}\nnonsense\n' + b"[" * 99_999, ""),
        (b"", ""),
    ],
)
def test_counters_of_faults_are_told_and_no_others(said: bytes, found: str) -> None:
    assert counted(said) == found


# --- the kernel ---------------------------------------------------------------------------------------------------


def packed(data: bytes, sectors: int = 3) -> bytes:
    head = bytearray((sectors + 1) * 512)
    head[vmlinux.SECTORS] = sectors
    head[vmlinux.MAGIC : vmlinux.MAGIC + 4] = b"HdrS"
    struct.pack_into("<II", head, vmlinux.PAYLOAD, 16, len(data))
    return bytes(head) + b"\0" * 16 + data + b"more"


ELF = b"\x7fELF" + bytes(range(256)) * 40


@pytest.mark.parametrize("data", [gzip.compress(ELF), lzma.compress(ELF) + struct.pack("<I", len(ELF))])
def test_the_kernel_inside_a_kernel_is_found(data: bytes) -> None:
    assert vmlinux.unpacked(packed(data)) == ELF


@pytest.mark.parametrize("data", [b"MZ" * 1000, packed(b"no such way"), packed(gzip.compress(b"no ELF"))])
def test_what_is_no_kernel_is_refused(data: bytes) -> None:
    with pytest.raises(BackendError):
        vmlinux.unpacked(data)


def test_a_tool_that_unpacks_is_named_where_it_is_missing(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nothing")
    with pytest.raises(ConfigError, match="apt install lz4"):
        vmlinux.unpacked(packed(b"\x02\x21\x4c\x18" + b"x" * 100))
