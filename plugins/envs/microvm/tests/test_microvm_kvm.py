"""How QEMU comes to /dev/kvm as nobody, and what is done where no machine boots with it. No machine needed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from composer_core.errors import BackendError, ConfigError
from composer_plugin_microvm import kvm, qemu_driver
from composer_plugin_microvm.config import QemuConfig
from composer_plugin_microvm.drivers import promise
from composer_plugin_microvm.image import Image
from composer_plugin_microvm.qemu import Hardware, less_power
from composer_plugin_microvm.qemu_driver import QemuDriver

NULL = "/dev/null"


@pytest.fixture
def device(monkeypatch) -> Any:
    """Let /dev/null have other rights, as far as we look."""
    found, stat = os.stat(NULL), os.stat

    def as_root(mode: int, group: int) -> None:
        said = SimpleNamespace(st_mode=0o020000 | mode, st_gid=group, st_rdev=found.st_rdev)
        monkeypatch.setattr(os, "stat", lambda path, **more: said if path == NULL else stat(path, **more))
        monkeypatch.setattr(os, "geteuid", lambda: 0)

    return as_root


@pytest.mark.parametrize(
    ("mode", "group", "found"),
    [
        (0o600, 0, kvm.Access(namespace=9)),
        (0o660, 0, kvm.Access(namespace=9)),
        (0o660, 108, kvm.Access(groups=(108,))),
        (0o666, 0, kvm.Access()),
    ],
)
def test_qemu_is_let_at_the_device_by_its_group_and_by_a_node_of_its_own_where_it_is_roots(
    device, monkeypatch, mode: int, group: int, found: kvm.Access
) -> None:
    device(mode, group)
    monkeypatch.setattr(kvm, "_namespace", lambda device, found: 9)
    assert kvm.access(NULL) == found
    assert ("--groups=108" in less_power(found.groups)) == bool(found.groups)


def test_a_user_who_may_not_open_the_device_is_told(device, monkeypatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(BackendError, match="group of the device"):
        kvm.access(NULL)
    with pytest.raises(BackendError, match="there is no /dev/no-kvm"):
        kvm.access("/dev/no-kvm")


def test_a_device_that_is_roots_alone_is_opened_by_nobody_and_stays_roots(device) -> None:
    if os.geteuid() != 0:  # who is not root is QEMU's user
        assert kvm.access(NULL) == kvm.Access()
        return
    words = ["setpriv", *less_power(), "--", "sh", "-c", f"stat -c '%a %u %g' {NULL}; id -u; echo > {NULL} && echo in"]
    before = os.stat(NULL)
    device(0o600, 0)
    access = kvm.access(NULL)
    try:
        done = subprocess.run([*access.words(), *words], capture_output=True, text=True, check=False, cwd="/")
    finally:
        access.close()
    assert (done.stdout, done.stderr) == ("660 0 65534\n65534\nin\n", "")
    assert os.lstat(NULL) == before


def test_a_refusal_holds_until_something_else_would_be_tried(tmp_path: Path) -> None:
    tried = kvm.Refusals(tmp_path, ("qemu", "7.2", "image"))
    assert tried.why() == ""
    tried.remember("no")
    assert kvm.Refusals(tmp_path, ("qemu", "7.2", "image")).why() == "no"
    assert kvm.Refusals(tmp_path, ("qemu", "8.0", "image")).why() == ""
    kept = json.loads(tried.path.read_text())
    tried.path.write_text(json.dumps({**kept, "tried": ["another boot", *kept["tried"][1:]]}))
    assert tried.why() == ""
    for damaged in ("", "[]", "{}", "{"):
        tried.path.write_text(damaged)
        assert tried.why() == ""


@pytest.fixture
def boots(tmp_path: Path, monkeypatch) -> list[str]:
    """Accelerators that a machine was booted with; it does not with KVM."""
    tried: list[str] = []

    async def kept(want: Any, *words: Any) -> Path:
        tried.append(want.accel)
        if want.accel == "kvm":
            raise BackendError("a machine did not boot", found="a log\nKVM internal error")
        return tmp_path

    made = Image(*(tmp_path / name for name in ("root", "kernel", "initramfs")), key="key")
    made.root.write_bytes(b"")
    capture = SimpleNamespace(base=SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(qemu_driver, "image", lambda config, say: made)
    monkeypatch.setattr(qemu_driver.base, "version", lambda command: "1")
    monkeypatch.setattr(qemu_driver.base, "kept", kept)
    monkeypatch.setattr(qemu_driver, "_load", lambda hardware, folder: capture)
    monkeypatch.setattr(kvm, "access", kvm.Access)
    return tried


def test_where_no_machine_boots_with_kvm_tcg_is_taken_and_told_and_kvm_is_not_tried_again(
    boots: list[str], tmp_path: Path, caplog
) -> None:
    def based(accel: str) -> QemuDriver:
        driver = QemuDriver(QemuConfig(accel=accel, cache=str(tmp_path), qemu="sh"))

        async def both() -> None:
            await asyncio.gather(driver.base(1 << 28), driver.base(1 << 29))

        asyncio.run(both())
        driver.close()
        return driver

    first = based("auto")
    assert boots == ["kvm", "tcg", "tcg"] and first.assured is False
    assert "a machine did not boot: KVM internal error" in promise(first)
    assert "under TCG" in caplog.text
    again = based("auto")
    assert boots == ["kvm", *["tcg"] * 4] and promise(again) == promise(first)
    assert "of no use" not in promise(based("tcg"))
    with pytest.raises(ConfigError, match="KVM internal error"):
        based("kvm")
    assert boots[-1] == "kvm"


def test_with_kvm_the_guest_has_the_hosts_processor() -> None:
    words = Hardware("qemu", kvm.Access(), 1 << 28, 3).arguments(4, shared=False)
    assert [words[words.index(name) + 1] for name in ("-accel", "-cpu")] == ["kvm", "host"]
    words = Hardware("qemu", None, 1 << 28, 3).arguments(4, shared=False)
    assert words[words.index("-accel") + 1].startswith("tcg")
