"""The grading room, on the in-memory provider."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from composer_core.errors import QuotaError
from composer_core.grading import Room, open_room
from composer_core.protocols import ExecResult
from composer_core.sandbox import Sandboxes
from composer_core.trees import File, Patch, Tree
from composer_core.types import Grading, TaskView
from composer_testing.fakes.sandbox import Files, MemoryProvider, MemorySandbox

TREE = Tree.of({"src/main.py": "bug", "tests/test_main.py": "visible", "runner.py": "run"})
VIEW = TaskView("task", "prompt", TREE.ref)
GRADING = Grading(Tree.of({"hidden/test.py": "secret"}), ("show",), protected=("tests/*", "runner.py", "*conftest.py"))


def show(files: Files, argv: Sequence[str], stdin: bytes) -> ExecResult:
    """Prints the whole workspace."""
    return ExecResult("exited", 0, "\n".join(f"{path}={files[path].decode()}" for path in sorted(files)).encode())


def graded(patch: Patch, grading: Grading = GRADING) -> tuple[Patch, dict[str, str]]:
    async def whole() -> tuple[Patch, dict[str, str]]:
        provider = MemoryProvider({"show": show})
        async with open_room(Sandboxes(provider, "fakes/memory", lambda ref: TREE), VIEW, grading) as room:
            applied = await room.apply(patch)
            result = await room.run()
        assert not provider.live
        return applied, dict(line.split("=") for line in result.stdout.decode().split("\n"))

    return asyncio.run(whole())


def test_an_empty_patch_grades_the_pristine_workspace_with_the_hidden_files() -> None:
    applied, files = graded(Patch())
    assert not applied
    assert files == {**{file.path: file.data.decode() for file in TREE.files}, "hidden/test.py": "secret"}


def test_writes_and_deletes_outside_protected_paths_are_applied() -> None:
    patch = Patch((File("src/main.py", b"fixed"), File("src/new.py", b"new")), ())
    applied, files = graded(patch)
    assert applied == patch
    assert (files["src/main.py"], files["src/new.py"]) == ("fixed", "new")
    assert "src/main.py" not in graded(Patch(deletes=("src/main.py",)))[1]


def test_protected_paths_are_neither_written_nor_deleted() -> None:
    writes = (File("tests/test_main.py", b"pass"), File("runner.py", b"exit"), File("src/conftest.py", b"trick"))
    applied, files = graded(Patch(writes, ("tests/test_main.py", "runner.py")))
    assert not applied
    assert (files["tests/test_main.py"], files["runner.py"]) == ("visible", "run")
    assert "src/conftest.py" not in files


@pytest.mark.parametrize("path", ["hidden/test.py", "hidden/test.py/inner", "hidden"])
def test_hidden_files_win_whatever_the_patch_put_there(path: str) -> None:
    assert graded(Patch((File(path, b"forged"),)))[1]["hidden/test.py"] == "secret"


def test_a_path_that_cannot_be_laid_down_is_skipped_and_named() -> None:
    applied, files = graded(Patch((File("src", b"file"), File("ok.py", b"1")), (), ("link",)))
    assert ([file.path for file in applied.writes], applied.skipped) == (["ok.py"], ("link", "src"))
    assert files["src/main.py"] == "bug"


def test_a_patch_that_takes_all_the_room_takes_none_from_the_hidden_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt is graded and has failed: one that is void would be made again."""
    room_bytes = sum(len(file.data) for file in TREE.files) + 100
    real = MemorySandbox.write

    async def write(self: MemorySandbox, path: str, data: bytes) -> None:
        others = sum(len(kept) for name, kept in self.files.items() if name != path)
        if others + len(data) > room_bytes:
            raise QuotaError("the disk is full")
        await real(self, path, data)

    monkeypatch.setattr(MemorySandbox, "write", write)
    applied, files = graded(Patch(tuple(File(f"src/{n}.txt", b"x") for n in range(200))))
    assert files["hidden/test.py"] == "secret"
    assert 0 < len(applied.writes) < 100 and applied.skipped


def test_each_room_is_fresh() -> None:
    async def whole() -> None:
        sandboxes = Sandboxes(MemoryProvider({"show": show}), "fakes/memory", lambda ref: TREE)
        async with open_room(sandboxes, VIEW, GRADING) as first, open_room(sandboxes, VIEW, GRADING) as second:
            assert isinstance(first, Room) and first.sandbox.id != second.sandbox.id
            await first.apply(Patch((File("src/main.py", b"fixed"),)))
            assert await second.sandbox.read("src/main.py") == b"bug"
            with pytest.raises(OSError, match="hidden"):
                await second.sandbox.read("hidden/test.py")

    asyncio.run(whole())
