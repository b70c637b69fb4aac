"""The sandbox keeps its kind's contract, on real bubblewrap, and holds what is put into it."""

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from composer_core import BuildContext, NoConfig, Tree
from composer_core.errors import ConfigError, PathError
from composer_core.protocols import TemplateSpec
from composer_core.sandbox import Sandbox
from composer_plugin_workshop import jail
from composer_plugin_workshop.jail import PACKAGES, SHOWN, JailProvider
from composer_plugin_workshop.plugin import composer_sandboxes
from composer_testing.contracts.sandbox_commands import CommandContract

TREE = Tree.of({"a.txt": "one\n", "pkg/b.txt": "two\n"})
Act = Callable[[Sandbox], Awaitable[Any]]


def provider(folder: Path) -> JailProvider:
    return JailProvider(NoConfig(), BuildContext(folder))


class TestJail(CommandContract):
    spec = next(iter(composer_sandboxes()))


HOLES = {
    "read a file of the host": lambda walls: [*walls, "--ro-bind", "/var", "/var"],
    "wrote a file of the host": lambda walls: [*walls, "--bind", "/var/tmp", "/var/tmp"],
    "saw a process of the host": lambda walls: [*walls, "--ro-bind", "/proc", "/proc"],
    "killed a process of the host": lambda walls: [word for word in walls if word != "--unshare-all"],
    "connected to the host": lambda walls: [*walls, "--share-net"],
}


@pytest.mark.parametrize("hole", HOLES)
def test_the_contract_finds_a_hole_in_the_walls(hole, tmp_path, monkeypatch):
    """So it tells something that it finds none."""
    monkeypatch.setattr(jail, "WALLS", HOLES[hole](jail.WALLS))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    suite = TestJail()
    suite._tmp_path = tmp_path
    with pytest.raises(AssertionError, match=hole):
        suite.test_what_is_declared_is_given_and_what_is_given_is_declared("sandbox.isolates")


@pytest.fixture
def inside(tmp_path):
    """Run `act(sandbox)` in one sandbox of TREE; nothing of its provider may be left behind."""

    def run(act: Act) -> Any:
        async def whole() -> Any:
            jails = provider(tmp_path)
            try:
                (child,) = await jails.create(await jails.prepare(TemplateSpec(TREE.ref), TREE))
                return await act(Sandbox(child.backend, "workshop/jail", TREE))
            finally:
                await jails.close()
                assert not jails.root.exists()

        return asyncio.run(whole())

    return run


async def sh(sandbox: Sandbox, script: str, **options: Any) -> str:
    result = await sandbox.exec(["sh", "-c", script], **options)
    return (result.stdout + result.stderr).decode()


def test_links_to_the_host_are_not_followed_when_files_are_read_from_outside(inside, tmp_path):
    (tmp_path / "secret").write_text("secret")

    async def act(sandbox):
        await sh(sandbox, f"ln -s {tmp_path}/secret link; ln -s {tmp_path} folder; ln -s . here; mkfifo pipe")
        for path in ("link", "folder/secret", "pipe"):
            with pytest.raises(PathError):
                await sandbox.read(path)
        assert await sandbox.read("here/a.txt") == b"one\n"
        for path in ("link", "folder/new", "pipe"):
            with pytest.raises(PathError):
                await sandbox.write(path, b"x")
        with pytest.raises(PathError):
            await sandbox.list("folder")
        assert (await sandbox.patch()).skipped == ("folder", "here", "link", "pipe")

    inside(act)
    assert (tmp_path / "secret").read_text() == "secret"
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_a_command_sees_programs_of_the_host_and_nothing_else(inside):
    async def act(sandbox):
        seen = set((await sh(sandbox, "ls /")).split())
        own = {"bin", "dev", "etc", "lib", "lib64", "proc", "sbin", "tmp", "workspace"}
        assert seen <= own | {folder.parts[1] for folder in SHOWN}
        assert set((await sh(sandbox, "ls /etc")).split()) <= {"alternatives", "ld.so.cache"}
        for path in PACKAGES:
            assert await sh(sandbox, f"ls -A {path}") == ""

    assert PACKAGES
    inside(act)


def test_nothing_that_is_installed_beside_the_jail_can_be_imported_in_it(inside):
    """An installed package may hold the answers of tasks; the standard library is all there is."""
    installed = {name for name in metadata.packages_distributions() if name.isidentifier()} - sys.stdlib_module_names
    look = "import importlib.util, sys\nprint(*[name for name in sys.argv[1:] if importlib.util.find_spec(name)])"

    async def act(sandbox):
        for python in {"python3", str(jail.PYTHON)}:
            result = await sandbox.exec([python, "-c", look, "json", *sorted(installed)])
            assert result.stdout == b"json\n", (python, result)

    assert {"composer_core", "composer_plugin_workshop", "attrs", "pytest"} <= installed
    inside(act)


def test_a_command_can_write_to_the_workspace_and_to_a_folder_of_its_own_alone(inside):
    async def act(sandbox):
        for path in ("/x", "/usr/x", "/etc/x", "/dev/x", *(f"{path}/x" for path in PACKAGES)):
            assert "Read-only" in await sh(sandbox, f"touch {path}")
        assert await sh(sandbox, "touch here /tmp/mine; ls /tmp") == "mine\n"
        assert await sh(sandbox, "ls /tmp; ls") == "a.txt\nhere\npkg\n"

    inside(act)


def test_there_is_no_network_and_no_process_of_the_host(inside):
    async def act(sandbox):
        found = await sandbox.exec(["python3", "-c", "import socket; print([n for _, n in socket.if_nameindex()])"])
        assert found.stdout == b"['lo']\n"
        assert len((await sh(sandbox, "ls -d /proc/[0-9]*")).split()) <= 4

    inside(act)


def test_a_command_has_no_privilege_to_win_back(inside):
    async def act(sandbox):
        assert "CapEff:\t0000000000000000" in await sh(sandbox, "cat /proc/self/status")
        assert "NoNewPrivs:\t1" in await sh(sandbox, "cat /proc/self/status")
        assert await sh(sandbox, "unshare --user true && echo entered") != "entered\n"

    inside(act)


def test_nothing_that_a_command_starts_outlives_it(inside):
    async def act(sandbox):
        late = "setsid sh -c 'sleep 0.5; echo late > late' >/dev/null 2>&1 &"
        assert (await sandbox.exec(["sh", "-c", f"{late} sleep 60"], timeout_s=0.2)).status == "timeout"
        assert (await sandbox.exec(["sh", "-c", f"{late} true"])).exit_code == 0
        await asyncio.sleep(0.8)
        with pytest.raises(PathError):
            await sandbox.read("late")

    inside(act)


def test_killing_everything_in_reach_ends_the_command_and_not_the_sandbox(inside):
    async def act(sandbox):
        for forged in ("", "for fd in /proc/*/fd/3; do echo 0 > $fd; done 2>/dev/null; echo 0 >&3;"):
            assert (await sandbox.exec(["sh", "-c", f"{forged} kill -9 -1"])).status in ("exited", "signaled")
            assert (await sandbox.exec(["sh", "-c", f"{forged} exit 3"])).exit_code == 3
        assert await sh(sandbox, "echo alive") == "alive\n"

    inside(act)


def test_a_command_whose_words_are_too_many_is_refused_as_a_shell_does(inside):
    async def act(sandbox):
        return await sandbox.exec(["echo", "x" * 3_000_000])

    result = inside(act)
    assert (result.status, result.exit_code) == ("exited", 126)


def test_a_link_that_is_exchanged_for_a_folder_while_a_file_is_written_leads_nowhere(inside, tmp_path):
    async def act(sandbox):
        swap = f"for i in $(seq 300); do mkdir w; rm -rf w; ln -s {tmp_path} w; rm w; done 2>/dev/null"
        racing = asyncio.ensure_future(sandbox.exec(["sh", "-c", swap]))
        written = 0
        while not racing.done():
            with suppress(PathError):
                await sandbox.write("w/file", b"x")
                written += 1
        assert (await racing).status == "exited" and written

    inside(act)
    assert not list(tmp_path.iterdir())


def test_names_that_are_no_text_are_listed_and_are_no_part_of_a_patch(inside):
    async def act(sandbox):
        await sh(sandbox, r'touch "$(printf "odd\377")"')
        kinds = {entry.name: entry.kind for entry in await sandbox.list()}
        assert kinds["odd\\udcff"] == "other"
        assert not await sandbox.patch()

    inside(act)


def test_a_sandbox_that_defends_itself_is_removed_all_the_same(inside):
    async def act(sandbox):
        await sh(sandbox, "mkdir shut; touch shut/file; chmod 0 shut")
        deep = "import os\nfor _ in range(1200): os.mkdir('d'); os.chdir('d')"
        assert (await sandbox.exec(["python3", "-c", deep])).exit_code == 0

    inside(act)


def test_what_is_missing_is_named_before_anything_runs(tmp_path, monkeypatch):
    async def probe() -> None:
        jails = provider(tmp_path)
        try:
            await jails.probe()
        finally:
            await jails.close()

    monkeypatch.setattr(jail, "PATH", f"{tmp_path}:/bin/nowhere")
    with pytest.raises(ConfigError, match="apt install bubblewrap"):
        asyncio.run(probe())
