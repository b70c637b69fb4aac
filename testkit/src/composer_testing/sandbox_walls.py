"""Whether commands of a sandbox reach the host: one of the probes of `sandbox_claims`.

What a probe tries to reach is its own: a file, a process and listening sockets that it made on this machine, one on
each address that is tried and on no other. The script takes `sh`, coreutils, and bash or python3 to try the network.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

from composer_core.protocols import Created, SandboxProvider, TemplateSpec
from composer_core.sandbox import Sandbox
from composer_core.trees import Tree

SECRET = "a secret of the host"
PLACES = ("/var/tmp", "~")
"""Folders of the host, beside that for temporary files, below which a secret is laid."""
BREAK_OUT = """
command -v bash || command -v python3 || exit
for at in {folders}; do
  cat "$at/secret" "/proc/1/root$at/secret"
  echo mine > "$at/secret"
  rm -f "$at/secret"
done
cat /proc/[0-9]*/cmdline
kill -9 {pid}
for at in {targets}; do
  bash -c "exec 3<>/dev/tcp/$at"
  python3 -c "import socket; socket.create_connection('$at'.split('/'), 1)"
done
"""


async def isolates(sandbox: Sandbox, provider: SandboxProvider) -> None:
    sleeps = f"600.{os.getpid()}"
    async with host_process("sleep", sleeps) as process, host_servers() as (targets, connections):
        with ExitStack() as stack:
            folders = [stack.enter_context(host_folder(place)) for place in (tempfile.gettempdir(), *PLACES)]
            shown = shlex.join(folder for folder in folders if folder)
            script = BREAK_OUT.format(folders=shown, pid=process.pid, targets=" ".join(targets))
            result = await sandbox.exec(["sh", "-c", script], timeout_s=30)
            assert result.stdout.startswith(b"/"), f"no command to try it with: {result.stderr.decode()!r}"
            await sandbox.exec(["true"], env={"LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": f"{folders[0]}/loaded"})
            secrets = [Path(folder, "secret") for folder in folders if folder]
            tried = {
                "read a file of the host": SECRET.encode() in result.stdout,
                "wrote a file of the host": not all(path.is_file() and path.read_text() == SECRET for path in secrets),
                "gave its variables to a program of the host": list(Path(folders[0]).glob("loaded.*")) != [],
                "saw a process of the host": sleeps.encode() in result.stdout,
                "killed a process of the host": await ended(process),
                "connected to the host": bool(connections),
            }
    found = [what for what, happened in tried.items() if happened]
    assert not found, f"a command {', '.join(found)}"


async def walls_hold(provider: SandboxProvider) -> None:
    """For suites that do harm where nothing holds: raises AssertionError where a command can reach this machine."""
    tree = Tree.of({"file": ""})
    (child,) = await provider.create(await provider.prepare(TemplateSpec(tree.ref), tree))
    assert isinstance(child, Created), child
    async with Sandbox(child.backend, "under/test", tree) as sandbox:
        await isolates(sandbox, provider)


@contextmanager
def host_folder(place: str) -> Iterator[str]:
    """A folder that holds the secret, readable by all; "" where none can be made."""
    if not os.access(os.path.expanduser(place), os.W_OK):
        yield ""
        return
    with tempfile.TemporaryDirectory(dir=os.path.expanduser(place), prefix=".composer-") as folder:
        os.chmod(folder, 0o755)
        Path(folder, "secret").write_text(SECRET)
        yield folder


@asynccontextmanager
async def host_process(*argv: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(*argv)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def ended(process: asyncio.subprocess.Process) -> bool:
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), 0.2)
    return process.returncode is not None


@asynccontextmanager
async def host_servers() -> AsyncIterator[tuple[list[str], list[str]]]:
    """A server on each of `addresses`: "address/port" of each, and that of one for each connection made to it."""
    connections: list[str] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append("/".join(map(str, writer.get_extra_info("sockname")[:2])))
        writer.close()

    async with AsyncExitStack() as stack:
        targets = []
        for address in addresses():
            with suppress(OSError):  # this machine has no IPv6
                server = await stack.enter_async_context(await asyncio.start_server(connected, address, 0))
                targets.append(f"{address}/{server.sockets[0].getsockname()[1]}")
        yield targets, connections


def addresses() -> list[str]:
    """Under which a command could find this machine: its loopback, and where its packets would leave from, since a
    sandbox with a network may well have a loopback of its own.
    """
    found = ["127.0.0.1", "::1"]
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))  # sends nothing; an address that documentation has for itself
            found.append(probe.getsockname()[0])
    return list(dict.fromkeys(found))
