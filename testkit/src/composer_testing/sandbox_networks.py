"""Whether a network policy lets through what it allows and nothing else: one of the probes of `sandbox_claims`.

What is tried to reach are sockets of this machine, two on each of its addresses. A command tries each of them directly,
and, where its variables name a proxy, through that. Takes `sh`, and bash or python3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from composer_core.protocols import Forks, SandboxProvider
from composer_core.sandbox import Sandbox
from composer_testing.sandbox_walls import host_servers

BASH = """
proxy=${http_proxy#http://}; proxy=${proxy%/}
for at in "$@"; do
  (exec 3<>/dev/tcp/$at)
  [ -n "$proxy" ] || continue
  host=${at%/*}; case $host in *:*) host="[$host]";; esac
  (exec 3<>/dev/tcp/${proxy%:*}/${proxy##*:}
   printf 'CONNECT %s:%s HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n' "$host" "${at#*/}" >&3; read -t 5 -r line <&3; echo "$line")
done 2>/dev/null; echo tried
"""
PYTHON = """
import os, socket, sys
proxy = os.environ.get("http_proxy", "").removeprefix("http://").strip("/").rpartition(":")
for host, _, port in (at.rpartition("/") for at in sys.argv[1:]):
    for at in ((host, port), (proxy[0], proxy[2]))[: 2 if proxy[2] else 1]:
        try:
            with socket.create_connection(at, 2) as one:
                name = f"[{host}]" if ":" in host else host
                one.sendall(f"CONNECT {name}:{port} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode() * (at[0] != host))
                one.recv(100)
        except OSError:
            pass
print("tried")
"""
TRY = 'if command -v bash >&2; then exec bash -c "$0" bash "$@"; else exec python3 -I -c "$PYTHON" "$@"; fi'


async def networks(sandbox: Sandbox, provider: SandboxProvider) -> None:
    async with host_servers() as (named, to_named), host_servers() as (others, to_others):
        targets = [*named, *others]
        local = f"localhost/{named[0].rpartition('/')[2]}"

        async def reached(box: Sandbox) -> set[str]:
            words = ["sh", "-c", TRY, BASH, *targets, local]
            result = await box.exec(words, timeout_s=40, env={"PYTHON": PYTHON})
            assert result.stdout.endswith(b"tried\n"), f"no command to try it with: {result}"
            await asyncio.sleep(0.2)
            found = {*to_named, *to_others}
            to_named.clear()
            to_others.clear()
            return found

        async def allowed(allow: Sequence[str]) -> set[str]:
            await sandbox.set_network(allow)
            return await reached(sandbox)

        await sandbox.set_network([])
        found = await reached(sandbox)
        assert not found, f"a command connected to the host, to which no network was allowed: {sorted(found)}"
        entries = list(map(entry, named))
        found = await allowed(entries)
        assert found, f"no command could connect to {entries}, which were allowed"
        assert found == set(named), f"{entries} were allowed, and a command connected to {sorted(found)}"
        if isinstance(sandbox.backend, Forks):
            child = (await sandbox.fork(1))[0]
            assert isinstance(child, Sandbox), f"no fork of a sandbox with a network: {child}"
            found = await reached(child)
            assert not found, f"a fork, to which no network was allowed, connected to {sorted(found)}"
        found = await allowed([])
        assert not found, f"what is allowed no more can still be reached: {sorted(found)}"
        found = await allowed(["localhost"])
        assert not found, f"a name led to an address that is not public and was not allowed: {sorted(found)}"


def entry(target: str) -> str:
    """Of an allow-list."""
    host, _, port = target.rpartition("/")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
