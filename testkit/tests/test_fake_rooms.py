"""The fake grading room does what a run's does: pristine at first, then patched, hidden files last."""

import asyncio

from composer_core import File, Patch, Tree
from composer_core.types import Grading
from composer_testing.fakes.rooms import folder_rooms

PRISTINE = Tree.of({"a.txt": "one", "folder/b.txt": "two"})
GRADING = Grading(Tree.of({"hidden/test.txt": "three"}), ("cat", "a.txt"), protected=("folder/*",))


def test_a_room_is_pristine_until_a_patch_is_applied():
    async def body() -> tuple[bytes, bytes]:
        async with folder_rooms(PRISTINE, GRADING)() as room:
            before = await room.sandbox.read("a.txt")
            await room.apply(Patch((File("a.txt", b"changed"),)))
            return before, await room.sandbox.read("a.txt")

    assert asyncio.run(body()) == (b"one", b"changed")


def test_what_a_patch_deletes_is_gone_and_what_is_protected_stays():
    async def body() -> set[str]:
        async with folder_rooms(PRISTINE, GRADING)() as room:
            await room.apply(Patch(deletes=("a.txt", "folder/b.txt")))
            return {path.relative_to(room.root).as_posix() for path in room.root.rglob("*") if path.is_file()}

    assert asyncio.run(body()) == {"folder/b.txt", "hidden/test.txt"}
