"""What machines boot, made of small parts; the whole image is made and booted by the other tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from composer_core.errors import BackendError, ConfigError
from composer_envkit import agent as shared
from composer_plugin_microvm import base, guest, image
from composer_plugin_microvm.config import QemuConfig
from composer_plugin_microvm.initramfs import ALL_MODULES, agent, initramfs
from composer_plugin_microvm.tsc import tsc_khz


def test_a_given_root_is_packed_without_what_a_machine_makes_itself_and_left_as_it_was(tmp_path: Path) -> None:
    root, packed = tmp_path / "root", tmp_path / "packed"
    for name in ("etc/machine-id", "tmp/left", "proc/1", "usr/share/doc/manual", "opt/tool"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    image._pack(QemuConfig(rootfs=str(root)), root, packed, lambda text: None)
    listed = subprocess.run(["unsquashfs", "-lls", packed], capture_output=True, text=True, check=True).stdout
    rows = {
        line.split()[5].removeprefix("squashfs-root"): line.split()
        for line in listed.splitlines()
        if "root/root" in line
    }
    assert {"/opt/tool", "/usr/share/doc/manual", "/workspace", "/dev/shm"[:4]} <= set(rows)
    assert rows["/etc/machine-id"][-1] == "/run/machine-id" and rows["/tmp"][0] == "drwxrwxrwt"
    assert not {"/tmp/left", "/proc/1"} & set(rows)
    assert (root / "etc/machine-id").read_text() == "etc/machine-id" and (root / "tmp/left").exists()


def test_the_first_stage_is_an_archive_and_equal_parts_are_equal_bytes(tmp_path: Path) -> None:
    modules = dict.fromkeys(ALL_MODULES, b"module")
    made = initramfs(b"busybox", modules)
    assert made == initramfs(b"busybox", modules) != initramfs(b"another", modules)
    listed = subprocess.run(["busybox", "cpio", "-t"], input=made, capture_output=True, check=True).stdout.decode()
    assert {"init", "bin/busybox", "agent.pyz", *(f"modules/{name}.ko" for name in ALL_MODULES)} <= set(listed.split())


def test_the_agent_needs_nothing_but_what_travels_with_it(tmp_path: Path) -> None:
    """All of it comes out of the archive, or of the standard library."""
    archive = tmp_path / "agent.pyz"
    archive.write_bytes(agent())
    script = f"import sys; sys.path.insert(0, {str(archive)!r}); import composer_plugin_microvm.guest.agent\n"
    script += "print(*(module.__file__ for name, module in sys.modules.items() if name.startswith('composer')))"
    ran = subprocess.run([sys.executable, "-I", "-S", "-B", "-c", script], capture_output=True, text=True, check=True)
    files = ran.stdout.split()
    assert len(files) > 8 and all(file.startswith(str(archive)) for file in files)


@pytest.mark.parametrize("package", [guest, shared], ids=["its own", "shared with other backends"])
def test_a_machine_that_was_booted_with_another_agent_is_not_used(tmp_path: Path, monkeypatch, package) -> None:
    folder, copied = tmp_path / "image", tmp_path / "sources"
    (folder / "modules").mkdir(parents=True)
    for name in ("busybox", *(f"modules/{module}.ko" for module in ALL_MODULES)):
        (folder / name).write_bytes(b"")
    shutil.copytree(Path(package.__file__).parent, copied)
    kept = image._first_stage(folder)
    monkeypatch.setattr(package, "__file__", str(copied / "__init__.py"))
    assert image._first_stage(folder) == kept
    source = next(path for path in sorted(copied.glob("*.py")) if path.name != "__init__.py")
    source.write_text(source.read_text() + "\n")
    changed = image._first_stage(folder)
    assert changed.key != kept.key and changed.initramfs != kept.initramfs
    wanted = [base.Wanted.of("qemu", "1", "tcg", 1 << 28, one, "").key for one in (kept, changed)]
    assert wanted[0] != wanted[1]


def test_equal_settings_name_one_image_and_an_archive_is_named_by_its_bytes(tmp_path: Path) -> None:
    archive, other = tmp_path / "a.tar", tmp_path / "b.tar"
    archive.write_bytes(b"one")
    other.write_bytes(b"one")
    named = [image._asked(QemuConfig(rootfs=str(path))) for path in (archive, other)]
    assert named[0] == named[1]
    archive.write_bytes(b"two")
    assert image._asked(QemuConfig(rootfs=str(archive))) != named[1]
    assert image._asked(QemuConfig(packages=("a", "b"))) == image._asked(QemuConfig(packages=("b", "a")))
    with pytest.raises(ConfigError, match="no such"):
        image._asked(QemuConfig(rootfs=str(tmp_path / "nothing")))


def test_what_is_missing_to_make_an_image_is_named_with_its_package(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    with pytest.raises(ConfigError, match="squashfs-tools busybox-static"):
        image.image(QemuConfig(cache=str(tmp_path)), lambda text: None)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: f"/usr/bin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match=r"sandbox\.rootfs"):
        image.image(QemuConfig(cache=str(tmp_path)), lambda text: None)
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".lock"]


def test_a_tool_that_fails_says_its_last_words() -> None:
    with pytest.raises(BackendError, match="cannot access"):
        image.run("ls", "/nothing")


def test_a_machine_that_was_booted_with_another_clock_is_not_used(tmp_path: Path) -> None:
    for kept, now, fits in (
        (2_000_000, 2_001_000, True),
        (2_000_000, 2_600_000, False),
        (None, None, True),
        (None, 1, False),
    ):
        (tmp_path / "info.json").write_text(json.dumps({"khz": kept}))
        assert base._fits(tmp_path, now) is fits
    (tmp_path / "info.json").write_text("{")
    assert not base._fits(tmp_path, None)


def test_the_counters_rate_is_measured_alike() -> None:
    first, second = tsc_khz.__wrapped__(), tsc_khz.__wrapped__()
    assert first is not None and second is not None and abs(first - second) < 0.01 * first


@pytest.mark.parametrize(
    ("apt", "arguments"),
    [
        ("trixie main http://mirror/a\nbookworm contrib http://mirror/b\n", []),
        ("trixie main http://mirror/a\nbookworm main http://mirror/c\n", ["http://mirror/c"]),
        (None, []),
    ],
    ids=["another release", "this release", "no apt"],
)
def test_debootstrap_asks_the_mirror_that_apt_has_the_release_from_and_else_its_own(
    tmp_path: Path, monkeypatch, apt: str | None, arguments: list[str]
) -> None:
    """Debian's own is the default of debootstrap where it is given none; apt knows others by proxies and policies."""
    asked = []

    def run(*argv: str, cwd: Path | None = None) -> str:
        asked.append(argv)
        return apt or ""

    monkeypatch.setattr(image, "run", run)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: apt and f"/usr/bin/{name}")
    image._root(QemuConfig(suite="bookworm"), tmp_path, lambda text: None)
    words = asked[-1]
    assert words[0] == "debootstrap" and [*words[words.index("bookworm") + 2 :]] == arguments
    assert [words[0] for words in asked] == (["apt-get", "debootstrap"] if apt else ["debootstrap"])
