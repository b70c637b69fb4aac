"""What a fork carries, and that a patch is true however files were changed."""

from __future__ import annotations

import asyncio

import pytest
from containers import act, create, sh

from composer_core.errors import NoCapacity
from composer_core.protocols import Created, Failed
from composer_plugin_docker.config import DockerConfig
from composer_plugin_docker.sandbox import DockerSandbox

CHANGE = """
rm -r pkg/deep; mv a.txt moved; mkdir -p new/er a.txt; echo x > a.txt/inner; ln -s moved link; ln moved twin
mkfifo pipe; chmod 751 new; chmod 600 moved; touch -d '2005-05-05 05:05:05' moved new/er; echo t > /tmp/kept
echo odd > "$(printf 'n\\377')"; mkdir closed; echo in > closed/file; chmod 0 closed/file closed
"""
LOOK = (
    "chmod 700 closed; chmod 600 closed/file; find . /tmp | sort | xargs -d '\\n' stat -c '%n %f %h %s %y %N' | cat -v"
)


async def fork(sandbox: DockerSandbox) -> DockerSandbox:
    (child,) = await sandbox.fork(1)
    assert isinstance(child, Created) and isinstance(child.backend, DockerSandbox), child
    return child.backend


def test_a_fork_has_modes_links_times_deletions_and_what_is_in_tmp() -> None:
    async def action(sandbox, provider):
        await sh(sandbox, CHANGE)
        child = await fork(await fork(sandbox))
        look = LOOK + "; cat moved twin a.txt/inner closed/file /tmp/kept; ls -ld new"
        mine, theirs = await sh(sandbox, look), await sh(child, look)
        assert mine.exit_code == 0 and theirs.stdout.count(b"2005-05-05") == 3

        def lines(text: bytes) -> list[bytes]:
            changing = (
                b". ",
                b"./closed ",
                b"/tmp ",
                b"./a.txt ",
            )  # folders whose own times follow what is laid in them
            return [line for line in text.splitlines() if not line.startswith(changing)]

        assert lines(mine.stdout) == lines(theirs.stdout)
        assert await sandbox.changes(100) == await child.changes(100)

    act(action)


def test_a_patch_tells_every_way_of_changing_a_file() -> None:
    changes = {
        "truncate -s 0 a.txt": b"",
        "printf 'two\\n' | dd of=a.txt conv=notrunc 2>/dev/null": b"two\n",
        "cp -p pkg/b.txt a.txt; touch -r pkg/b.txt a.txt": b"two\n",
        "chmod +x a.txt": b"one\n",
        "mv a.txt x; mv pkg/b.txt a.txt; touch -d @946684800 a.txt": b"two\n",
        "exec python3 -S -c \"import mmap,time; f=open('a.txt','r+b'); m=mmap.mmap(f.fileno(),4); m[0]; "
        "time.sleep(.1); m[0:3]=b'map'\"": b"map\n",
    }

    async def action(sandbox, provider):
        for script, data in changes.items():
            child = await create(provider)
            assert (await sh(child, script)).exit_code == 0
            patch = await child.changes(100)
            found = {file.path: file.data for file in patch.writes}
            assert found.get("a.txt") == data, script
            await child.destroy()

    act(action)


def test_what_was_only_read_or_changed_back_is_not_in_the_patch() -> None:
    async def action(sandbox, provider):
        await sh(sandbox, "cat a.txt pkg/b.txt; grep -r o .; cp a.txt b; rm a.txt; mv b a.txt; chmod -R u+rw .")
        assert not await sandbox.changes(100)
        assert not await (await fork(sandbox)).changes(100)

    act(action)


def test_eight_forks_at_once_are_eight_or_say_why_not() -> None:
    async def action(sandbox, provider):
        await sandbox.write("x", b"parent")
        children = await sandbox.fork(8)
        boxes = [child.backend for child in children if isinstance(child, Created)]
        assert len({box.id for box in boxes}) == 8
        assert await asyncio.gather(*(box.read("x", 10) for box in boxes)) == [b"parent"] * 8

    act(action)


def test_a_child_that_fails_keeps_no_sibling(monkeypatch) -> None:
    async def action(sandbox, provider):
        count, start = 0, DockerSandbox.start

        async def sometimes(self, capture):
            nonlocal count
            count += 1
            if count == 2:
                raise NoCapacity("injected")
            await start(self, capture)

        monkeypatch.setattr(DockerSandbox, "start", sometimes)
        children = await sandbox.fork(3)
        failed = [child for child in children if isinstance(child, Failed)]
        assert [(child.error, child.retryable) for child in failed] == [("injected", True)]
        assert len(provider._live) == 3

    act(action)


def test_snapshots_beyond_the_store_are_refused_and_change_nothing() -> None:
    async def action(sandbox, provider):
        await sandbox.write("large", b"x" * (1 << 20) + b"x")
        with pytest.raises(NoCapacity, match="store_bytes"):
            await sandbox.snapshot()
        assert await sandbox.read("a.txt", 10) == b"one\n"

    act(action, config=DockerConfig(store_bytes=1 << 20))
