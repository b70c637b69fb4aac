"""The fake grading rooms do what a run's does: pristine at first, then patched, hidden files last."""

import asyncio
import tempfile

import pytest

from composer_core import File, Patch, ToolContext, Tree
from composer_core.errors import PathError, SandboxGone
from composer_core.protocols import ExecResult
from composer_core.types import Grading
from composer_testing.fakes import tools
from composer_testing.fakes.rooms import folder_rooms, rooms_of
from composer_testing.fakes.sandbox import sandbox_of

FILES = {"a.txt": "one", "folder/b.txt": b"two"}
GRADING = Grading(Tree.of({"hidden/test.txt": "three"}), ("cat", "a.txt"), protected=("folder/*",))


@pytest.fixture(params=["folder", "memory"])
def rooms(request):
    return folder_rooms(Tree.of(FILES), GRADING) if request.param == "folder" else rooms_of(FILES, GRADING)


def test_a_room_is_pristine_until_a_patch_is_applied_and_the_next_one_again(rooms):
    async def body() -> list[bytes]:
        found = []
        for _ in range(2):
            async with rooms() as room:
                found.append(await room.sandbox.read("a.txt"))
                await room.apply(Patch((File("a.txt", b"changed"),)))
                found += [await room.sandbox.read("a.txt"), (await room.run()).stdout]
        return found

    assert asyncio.run(body()) == [b"one", b"changed", b"changed"] * 2


def test_what_a_patch_deletes_is_gone_and_what_is_protected_stays(rooms):
    async def body() -> list[bytes]:
        async with rooms() as room:
            await room.apply(Patch(deletes=("a.txt", "folder/b.txt")))
            with pytest.raises(PathError):
                await room.sandbox.read("a.txt")
            return [await room.sandbox.read(path) for path in ("folder/b.txt", "hidden/test.txt")]

    assert asyncio.run(body()) == [b"two", b"three"]


def test_what_cannot_be_laid_down_is_left_out_and_named(rooms):
    async def body() -> Patch:
        async with rooms() as room:
            return await room.apply(Patch((File("a.txt/below", b"x"), File("new/c.txt", b"three"))))

    applied = asyncio.run(body())
    assert ([file.path for file in applied.writes], applied.skipped) == (["new/c.txt"], ("a.txt/below",))


def test_a_reward_runs_commands_of_its_own_in_a_folder():
    async def body() -> tuple[list[int | None], list[str]]:
        async with folder_rooms(Tree.of(FILES), GRADING)() as room:
            await room.sandbox.write("script", b"import sys; sys.exit(open('b.txt').read() != 'two')")
            commands = (["grep", "o", "a.txt"], ["grep", "x", "a.txt"])
            codes = [(await room.sandbox.exec(argv)).exit_code for argv in commands]
            codes.append((await room.sandbox.exec(["python3", "../script"], cwd="folder")).exit_code)
            return codes, [entry.name for entry in await room.sandbox.list()]

    assert asyncio.run(body()) == ([0, 1, 0], ["a.txt", "folder", "script"])


def test_a_folder_and_what_runs_in_it_are_gone_when_the_room_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def body() -> None:
        async with folder_rooms(Tree.of(FILES), GRADING)() as room:
            assert list(tmp_path.iterdir())
            running = asyncio.ensure_future(room.sandbox.exec(["sleep", "60"], timeout_s=60))
            await asyncio.sleep(0.2)
        with pytest.raises(SandboxGone):
            await asyncio.wait_for(running, 5)
        assert not list(tmp_path.iterdir())

    asyncio.run(body())


@pytest.mark.parametrize(
    ("argv", "timeout_s", "status", "code"),
    [
        (("python3", "-c", "raise SystemExit(3)"), 60, "exited", 3),
        (("sleep", "60"), 0.3, "timeout", None),
        (("no-such-command",), 60, "exited", 127),
    ],
)
def test_a_command_in_a_folder_ends_as_in_a_run(argv, timeout_s, status, code):
    async def body() -> ExecResult:
        async with folder_rooms(Tree.of(FILES), Grading(Tree(()), argv, timeout_s=timeout_s))() as room:
            return await room.run()

    result = asyncio.run(body())
    assert (result.status, result.exit_code) == (status, code)


def test_a_tool_is_tried_on_a_sandbox_that_one_line_makes():
    sandbox = sandbox_of(FILES)
    context = ToolContext(sandbox, state={})
    assert asyncio.run(tools.read(context, "folder/b.txt")) == "two"
    asyncio.run(tools.write(context, "new/c.txt", "three"))
    assert asyncio.run(sandbox.patch()) == Patch((File("new/c.txt", b"three"),))


def test_a_room_in_memory_runs_the_commands_it_is_given():
    def check(files, argv, stdin) -> ExecResult:
        return ExecResult("exited", int(files["a.txt"] != files["hidden/test.txt"]))

    async def body(text: bytes) -> int | None:
        async with rooms_of(FILES, Grading(GRADING.hidden, ("check",)), {"check": check})() as room:
            await room.apply(Patch((File("a.txt", text),)))
            return (await room.run()).exit_code

    assert (asyncio.run(body(b"three")), asyncio.run(body(b"four"))) == (0, 1)
