"""Latencies of `local/namespaces`, beside bare bubblewrap started from the same process: medians in milliseconds.

python benchmarks/sandboxes.py [REPEATS]. Bare means: `bwrap` with the same namespaces and binds, and `true`. Each
row is measured in two blocks: interleaved, one row would pay for the network namespaces that the row before left the
kernel to clean up.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

from composer_core.protocols import Created, ExecRequest, SandboxBackend, TemplateSpec
from composer_core.trees import Tree
from composer_plugin_local.namespaces import NamespacesProvider

TREE = Tree.of({f"pkg/module_{index}.py": "x = 1\n" * 60 for index in range(12)})
BARE = (
    "--unshare-all --unshare-user --disable-userns --die-with-parent --new-session --cap-drop ALL "
    "--uid 65534 --gid 65534 --ro-bind /usr /usr --symlink usr/lib /lib --symlink usr/lib64 /lib64 "
    "--symlink usr/bin /bin --proc /proc --dev /dev --tmpfs /tmp --tmpfs /workspace --clearenv true"
)


async def bare() -> None:
    path = shutil.which("bwrap") or "bwrap"
    pid = os.posix_spawn(path, [path, *BARE.split()], {"PATH": "/usr/bin:/bin"})
    os.waitpid(pid, 0)


async def main(repeats: int) -> None:
    provider = NamespacesProvider()
    try:
        template = await provider.prepare(TemplateSpec(TREE.ref, ("python3",)), TREE)

        async def create() -> SandboxBackend:
            (child,) = await provider.create(template)
            assert isinstance(child, Created)
            return child.backend

        sandbox: Any = await create()
        await sandbox.write("pkg/module_0.py", b"x = 2\n")
        run = ExecRequest(("true",))

        async def whole() -> None:
            one = await create()
            await one.exec(run)
            await one.destroy()

        async def fork() -> None:
            for child in await sandbox.fork(1):
                await child.backend.destroy()

        acts: dict[str, Callable[[], Awaitable[Any]]] = {
            "bare bwrap true": bare,
            "exec true": lambda: sandbox.exec(run),
            "create, exec true, destroy": whole,
            "create": create,
            "fork, destroy": fork,
            "read": lambda: sandbox.read("pkg/module_1.py", 1 << 20),
            "write": lambda: sandbox.write("pkg/module_1.py", b"y = 2\n" * 60),
            "changes": lambda: sandbox.changes(1 << 20),
            "exec python3 -I -S -B": lambda: sandbox.exec(ExecRequest(("python3", "-I", "-S", "-B", "-c", "0"))),
        }
        times: dict[str, list[float]] = {name: [] for name in acts}
        for name, act in [*acts.items(), *acts.items()]:
            await asyncio.sleep(0.3)
            for _ in range(repeats):
                started = time.perf_counter()
                await act()
                times[name].append((time.perf_counter() - started) * 1e3)
    finally:
        await provider.close()
    peer = median(times["bare bwrap true"])
    print(f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, {repeats} repeats")
    for name, row in times.items():
        print(f"{name:<28}{median(row):8.2f} ms  {median(row) / peer:6.2f} x bare")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
