"""Control groups of version 2, on a kernel that has nothing else: a virtual machine's, which `groups_guest` runs in."""

from __future__ import annotations

import io
import json
import shutil
import stat
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from composer_envkit import agent
from composer_plugin_local import keeper
from composer_plugin_microvm.config import QemuConfig
from composer_plugin_microvm.image import image
from composer_plugin_microvm.qemu_driver import LINE
from composer_plugin_microvm.tsc import tsc_khz

BOOT_S = 240.0
KILLED = 9


def program() -> bytes:
    """The keeper and `groups_guest` as one file that Python runs."""
    made = io.BytesIO()
    packages = {"composer_envkit": Path(agent.__file__).parent, "composer_plugin_local": Path(keeper.__file__).parent}
    with zipfile.ZipFile(made, "w") as archive:
        archive.write(Path(__file__).with_name("groups_guest.py"), "__main__.py")
        for package, folder in packages.items():
            archive.writestr(f"{package}/__init__.py", "")
            for path in folder.glob("*.py"):
                archive.write(path, f"{package}/{folder.name}/{path.name}")
    return made.getvalue()


def member(name: str, mode: int, data: bytes) -> bytes:
    """Of a cpio archive ("newc")."""
    fields = [0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return b"".join(part + b"\0" * (-len(part) % 4) for part in (head, data))


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the machine says: the image of microvm/qemu, with our program in the place of its agent."""
    made, folder = image(QemuConfig(), print), tmp_path_factory.mktemp("guest")
    ours = member("agent.pyz", stat.S_IFREG | 0o644, program()) + member("TRAILER!!!", 0, b"")
    (folder / "initramfs").write_bytes(made.initramfs.read_bytes() + ours)
    khz = tsc_khz()
    line = f"{LINE} tsc_early_khz={khz}" if khz else LINE
    words = "-M microvm,graphics=off -accel tcg -cpu max -m 512 -nodefaults -no-user-config -display none -no-reboot"
    drive = f"id=root,if=none,format=raw,readonly=on,file.locking=off,file={made.root}"
    ran = subprocess.run(
        [shutil.which("qemu-system-x86_64") or "qemu", *words.split(), "-kernel", str(made.kernel),
         "-initrd", str(folder / "initramfs"), "-append", line, "-serial", "stdio",
         "-drive", drive, "-device", "virtio-blk-device,drive=root"],
        stdin=subprocess.DEVNULL, capture_output=True, timeout=BOOT_S, check=False,
    )  # fmt: skip
    said = ran.stdout.decode(errors="replace")
    found = [json.loads(row.partition(" ")[2]) for row in said.splitlines() if row.startswith("scene ")]
    assert len(found) == 6, said + ran.stderr.decode(errors="replace")
    return found


def test_a_command_over_its_memory_is_killed_and_that_is_known(scenes: list[dict[str, Any]]) -> None:
    own = scenes[0]
    assert own["version"] == 2 and own["groups"] == "/sys/fs/cgroup"
    status, oom, output = own["hog"]
    assert (status & 127, oom, output) == (KILLED, True, "")
    assert own["after"] == own["last"] == [0, False, "alive\n"]


def test_files_in_memory_that_a_command_left_do_not_count_for_the_next(scenes: list[dict[str, Any]]) -> None:
    assert scenes[0]["kept"] == [0, False, ""]
    assert scenes[0]["beside"] == [0, False, "had it\n"]


def test_a_command_over_its_processes_cannot_go_on(scenes: list[dict[str, Any]]) -> None:
    status, oom, output = scenes[0]["forks"]
    assert status != 0 and not oom and "all" not in output


def test_groups_go_with_the_launcher_and_those_of_dead_ones_are_swept(scenes: list[dict[str, Any]]) -> None:
    assert [scenes[at]["left"] for at in (1, 3, 5)] == [[], [], []]


def test_beside_other_processes_a_group_is_made_further_up(scenes: list[dict[str, Any]]) -> None:
    assert scenes[2]["groups"] == "/sys/fs/cgroup"
    assert scenes[2]["hog"][1] is True


def test_nobody_is_taken_out_of_a_limit(scenes: list[dict[str, Any]]) -> None:
    assert scenes[4] == {"groups": None}
