"""Sandboxes come and go, some of them badly, and nothing of them stays. Subclass `ChurnContract` and name the record:

class TestChurn(ChurnContract):
    spec = next(iter(composer_sandboxes()))
    few, many = 200, 10_000

`many` are made with COMPOSER_SOAK=1 (`make soak`), `few` otherwise; one in twenty crashes. What is compared before and
after are processes below this one, their descriptors, mounts and namespaces, control groups, and temporary files.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from composer_core.errors import ComposerError
from composer_core.protocols import Created, SandboxBackend, SandboxProvider
from composer_core.sandbox import Sandbox
from composer_testing.sandbox_claims import SPEC, TREE
from composer_testing.sandbox_suite import SandboxSuite

CRASHES = 20
"""One in so many crashes."""
KINDS = ("mnt", "pid", "net", "user", "ipc", "uts")
SETTLE_S = 10.0


class ChurnContract(SandboxSuite):
    """Name your subclass `Test...`."""

    longest_s = 7200.0
    few: ClassVar[int] = 40
    many: ClassVar[int] = 1000
    """How many sandboxes are made, quickly and in a soak."""
    at_once: ClassVar[int] = 4
    forks: ClassVar[bool] = False
    """Whether they are forks of one sandbox rather than made from the template."""
    slack: ClassVar[int] = 4
    """By how much a count may differ: what the machinery opens and closes for itself."""

    def test_nothing_stays_of_sandboxes_that_come_and_go(self, record_property: Callable[[str, object], None]) -> None:
        count = self.many if os.environ.get("COMPOSER_SOAK") else self.few
        record_property("sandboxes", count)
        assert count > self.slack * 2, "a leak of one for each sandbox would be within the slack"

        async def act(provider: SandboxProvider) -> None:
            await self.round(provider, self.slack + self.at_once)  # makes what is shared by all
            before = await self.footprint(provider)
            await self.round(provider, count)
            after, waited_s = await self.footprint(provider), 0.0
            while _more(after, before, self.slack) and waited_s < SETTLE_S:
                await asyncio.sleep(0.5)
                after, waited_s = await self.footprint(provider), waited_s + 0.5
            more = _more(after, before, self.slack)
            assert not more, f"after {count} sandboxes there is more than before: {more}"

        self.use(act)

    async def round(self, provider: SandboxProvider, count: int) -> None:
        source = await provider.prepare(SPEC, TREE)
        (parent,) = await provider.create(source) if self.forks else (None,)
        for start in range(0, count, self.at_once):
            wanted = min(self.at_once, count - start)
            if isinstance(parent, Created):
                forked = await Sandbox(parent.backend, "under/test", TREE).fork(wanted)
                made = [child.backend for child in forked if isinstance(child, Sandbox)]
            else:
                made = [child.backend for child in await provider.create(source, wanted) if isinstance(child, Created)]
            assert len(made) == wanted, f"{wanted} sandboxes were asked for and {len(made)} made"
            await asyncio.gather(*(self.life(backend, start + index) for index, backend in enumerate(made)))
        if isinstance(parent, Created):
            await parent.backend.destroy()

    async def life(self, backend: SandboxBackend, number: int) -> None:
        """Write, run, end; one in `CRASHES` crashes in the midst of a command."""
        sandbox = Sandbox(backend, "under/test", TREE)
        await sandbox.write("a.txt", b"%d" % number)
        if number % CRASHES:
            await sandbox.exec(["cat", "a.txt"])
        else:
            running = asyncio.ensure_future(sandbox.exec(["sh", "-c", "sleep 60 & sleep 60"], timeout_s=60))
            await asyncio.sleep(0.05)
            await self.crash(backend)
            with suppress(ComposerError):
                await sandbox.destroy()
            with suppress(ComposerError):
                await running
        with suppress(ComposerError):
            await sandbox.destroy()

    async def crash(self, backend: SandboxBackend) -> None:
        """What breaks; by default a sandbox is destroyed under its command. A backend with a process kills that."""

    async def footprint(self, provider: SandboxProvider) -> Counter[str]:
        """What there is now, by kind; a backend adds what it keeps elsewhere."""
        found: Counter[str] = Counter()
        namespaces: set[str] = set()
        tables: dict[str, int] = {}
        below = list(descendants(os.getpid()))
        for pid in (os.getpid(), *below):
            with suppress(OSError):
                found["descriptors"] += len(os.listdir(f"/proc/{pid}/fd"))
                names = [os.readlink(f"/proc/{pid}/ns/{kind}") for kind in KINDS]
                namespaces.update(names)
                tables[names[0]] = len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
        found["processes"] = len(below)
        found["namespaces"] = len(namespaces)
        found["mounts"] = sum(tables.values())
        found["files"] = sum(len(files) + len(folders) for _, folders, files in os.walk(tempfile.gettempdir()))
        own = {f"composer-{pid}" for pid in below}
        for folder, folders, _ in os.walk("/sys/fs/cgroup"):
            found["groups"] += len(folders) if os.path.basename(folder) in own else 0
        return found


def descendants(pid: int) -> Iterator[int]:
    """Processes below one."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                yield child
                yield from descendants(child)


def _more(after: Counter[str], before: Counter[str], slack: int) -> dict[str, str]:
    return {kind: f"{before[kind]} -> {after[kind]}" for kind in after if after[kind] > before[kind] + slack}
