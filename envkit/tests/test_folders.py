"""Sandboxes on folders keep the contract of their kind with nothing around their commands."""

import asyncio
import threading
from pathlib import Path

import pytest

from composer_core import SandboxSpec, Tree
from composer_core.errors import BackendError, PathError, PrepareError
from composer_core.protocols import Created, Failed, SnapshotRef, TemplateSpec
from composer_envkit import FolderProvider, FolderSandbox, Provider, lay
from composer_testing.contracts.sandbox_commands import CommandContract

TREE = Tree.of({"a.txt": "one\n", "pkg/b.txt": "two\n"})


class Plain(FolderProvider):
    def __init__(self, config, build):
        super().__init__(FolderSandbox)


class TestFolders(CommandContract):
    spec = SandboxSpec(name="folders", factory=Plain, capabilities={"sandbox.forks", "sandbox.snapshots.files"})


@pytest.fixture
def inside():
    """Run `act(backend, provider)` in one sandbox of TREE; nothing of its provider may be left behind."""

    def run(act):
        async def whole():
            folders = FolderProvider(FolderSandbox)
            try:
                (child,) = await folders.create(await folders.prepare(TemplateSpec(TREE.ref), TREE))
                return await act(child.backend, folders)
            finally:
                await folders.close()
                assert not folders.root.exists()

        return asyncio.run(whole())

    return run


def test_a_link_that_leads_out_is_not_followed(inside, tmp_path):
    (tmp_path / "secret").write_text("secret")

    async def act(sandbox, folders):
        for name, target in (("file", tmp_path / "secret"), ("folder", tmp_path), ("circle", "circle"), ("here", ".")):
            (sandbox.folder / name).symlink_to(target)
        for path in ("file", "folder/secret", "circle", "a\0b", "n" * 5000):
            with pytest.raises(PathError):
                await sandbox.read(path, 100)
            with pytest.raises(PathError):
                await sandbox.write(path, b"x")
        with pytest.raises(PathError):
            await sandbox.list("folder")
        assert await sandbox.read("here/a.txt", 100) == b"one\n"

    inside(act)
    assert (tmp_path / "secret").read_text() == "secret"


def test_forks_leave_no_folder_but_their_own(inside):
    async def act(sandbox, folders):
        children = await sandbox.fork(3)
        assert all(isinstance(child, Created) for child in children)
        template, homes = 1, 1 + len(children)
        assert len(list(folders.root.iterdir())) == template + homes == template + len(folders.live)

    inside(act)


def test_a_child_that_cannot_be_copied_is_failed_and_leaves_nothing(inside, monkeypatch):
    async def act(sandbox, folders):
        monkeypatch.setattr("composer_envkit.folders.copy", full)
        (failed,) = await folders.create(await folders.prepare(TemplateSpec(TREE.ref), TREE))
        assert failed == Failed("no space left on device")
        with pytest.raises(BackendError, match="no space"):
            await sandbox.fork(1)
        monkeypatch.undo()
        assert len(folders.live) == 1 and len(list(folders.root.iterdir())) == 2
        assert len(await sandbox.fork(1)) == 1

    async def full(source: Path, target: Path) -> None:
        raise OSError("no space left on device")

    inside(act)


def test_commands_that_a_template_needs_are_looked_for(inside):
    async def act(sandbox, folders):
        with pytest.raises(PrepareError, match="no-such-command"):
            await folders.prepare(TemplateSpec(TREE.ref, needs=("sh", "no-such-command")), TREE)

    inside(act)


def test_a_template_that_is_cancelled_while_it_is_laid_out_leaves_nothing(inside, monkeypatch):
    """Not even what the thread wrote after that."""
    begun, go = threading.Event(), threading.Event()

    def slow(tree: Tree, folder: Path) -> None:
        (folder / "before").touch()
        begun.set()
        assert go.wait(30)
        lay(tree, folder)

    async def act(sandbox, folders):
        before = set(folders.root.iterdir())
        monkeypatch.setattr("composer_envkit.folders.lay", slow)
        preparing = asyncio.ensure_future(folders.prepare(TemplateSpec(TREE.ref, env={"A": "1"}), TREE))
        assert await asyncio.to_thread(begun.wait, 30)
        preparing.cancel()
        await asyncio.sleep(0)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await preparing
        assert set(folders.root.iterdir()) == before
        monkeypatch.undo()
        await folders.prepare(TemplateSpec(TREE.ref, env={"A": "1"}), TREE)

    inside(act)


def test_others_go_on_while_a_folder_is_listed(inside, monkeypatch):
    """It may hold many files: were it not in a thread, nobody could set what this listing waits for."""
    went_on = threading.Event()

    def slow(folder: int, path: str) -> list:
        assert went_on.wait(10), "the event loop stood still"
        return []

    async def act(sandbox, folders):
        monkeypatch.setattr("composer_envkit.folders.files.listing", slow)
        listing = asyncio.ensure_future(sandbox.list(""))
        await asyncio.sleep(0.05)
        went_on.set()
        assert await listing == []

    inside(act)


def test_closing_says_what_could_not_be_ended_and_ends_the_rest(monkeypatch):
    async def fail(self):
        raise RuntimeError("cannot be killed")

    async def whole():
        folders = FolderProvider(FolderSandbox)
        await folders.create(await folders.prepare(TemplateSpec(TREE.ref), TREE), 2)
        monkeypatch.setattr("composer_envkit.folders.Processes.kill", fail)
        with pytest.raises(RuntimeError, match="cannot be killed"):
            await folders.close()
        assert not folders.root.exists()
        await folders.close()

    asyncio.run(whole())


def test_a_start_that_fails_fails_one_child_as_far_as_it_says():
    class Choosy(Provider):
        async def start(self, spec, state):
            assert state == TREE
            if self.live:
                raise BackendError("one is enough")
            return Lone()

    class Lone:
        id = "lone"

        async def destroy(self):
            raise ValueError("it stays")

    async def whole():
        provider = Choosy()
        template = await provider.prepare(TemplateSpec(TREE.ref), TREE)
        first, second = await provider.create(template, 2)
        assert isinstance(first, Created) and await provider.attach("lone") is first.backend
        assert second == Failed("one is enough", BackendError.retryable)
        with pytest.raises(ValueError, match="it stays"):
            await provider.close()

    asyncio.run(whole())


def test_a_source_that_is_released_while_children_are_made_of_it_fails_no_more_than_children():
    class Releasing(Provider):
        async def start(self, spec, state):
            await self.release(SnapshotRef(next(iter(self.sources), "")))
            raise BackendError("its files are gone")

    async def whole():
        provider = Releasing()
        children = await provider.create(await provider.prepare(TemplateSpec(TREE.ref), TREE), 2)
        assert children == [Failed("its files are gone", BackendError.retryable)] * 2

    asyncio.run(whole())


def test_equal_specs_are_one_template_whatever_the_order_of_their_variables(inside):
    async def act(sandbox, folders):
        names = {
            (await folders.prepare(TemplateSpec(TREE.ref, env=env), TREE)).id
            for env in ({"A": "1", "B": "2"}, {"B": "2", "A": "1"})
        }
        assert len(names) == 1

    inside(act)


def test_a_creation_that_is_cancelled_leaves_no_sandbox_that_nobody_holds(inside, monkeypatch):
    async def act(sandbox, folders):
        template = await folders.prepare(TemplateSpec(TREE.ref), TREE)
        (first,) = await folders.create(template)
        before, copied = set(folders.root.iterdir()), 0

        async def slow(source: Path, target: Path) -> None:
            nonlocal copied
            copied += 1
            await asyncio.sleep(60 if copied == 3 else 0)

        monkeypatch.setattr("composer_envkit.folders.copy", slow)
        creating = asyncio.ensure_future(folders.create(template, 4))
        while copied < 3:
            await asyncio.sleep(0.01)
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
        assert set(folders.live) == {sandbox.id, first.backend.id}
        assert set(folders.root.iterdir()) == before

    inside(act)


def test_a_snapshot_that_is_released_while_a_child_is_copied_of_it_gives_no_part_of_it(inside, monkeypatch):
    async def act(backend, folders):
        ref, copied = await backend.snapshot(), []

        async def released(source, target, home):
            await folders.release(ref)
            copied.append(target)  # as if its files had been listed before, and none found

        monkeypatch.setattr("composer_envkit.folders.copied", released)
        (child,) = await folders.create(ref)
        return child, copied

    child, (target,) = inside(act)
    assert isinstance(child, Failed) and "released" in child.error
    assert not target.exists()
