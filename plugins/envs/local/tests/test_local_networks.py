"""A sandbox's way out: where it ends, what goes with it, and that a policy which is wrong in any way is caught."""

from __future__ import annotations

import asyncio
import os

import pytest

from composer_core import hosts
from composer_core.errors import BackendError, SandboxGone
from composer_core.protocols import Created, ExecRequest, TemplateSpec
from composer_core.sandbox import Sandbox
from composer_core.trees import Tree
from composer_envkit import proxy
from composer_envkit.agent.relay import PORT
from composer_plugin_local.namespaces import NamespacesProvider, NamespacesSandbox
from composer_testing.sandbox_networks import networks
from composer_testing.sandbox_suite import new_sandbox

TREE = Tree.of({"a.txt": "one\n"})
ANY = "python3 -c 'import socket; s = socket.create_server((\"127.0.0.1\", {port})); print(1, flush=True); {then}'"
GET = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""


def act(action):
    """Run `action(sandbox, provider, url)` beside a server of this machine."""

    async def whole():
        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
            await writer.drain()
            writer.close()

        provider = NamespacesProvider()
        try:
            async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
                (child,) = await provider.create(await provider.prepare(TemplateSpec(TREE.ref, ("python3",)), TREE))
                assert isinstance(child, Created)
                at = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
                return await asyncio.wait_for(action(child.backend, provider, at), 60)
        finally:
            await provider.close()

    return asyncio.run(whole())


async def get(sandbox, at):
    result = await sandbox.exec(ExecRequest(("python3", "-c", GET, f"http://{at}/"), timeout_s=20))
    return (result.stdout + result.stderr).decode().strip()


def test_an_allowed_host_answers_and_all_others_are_refused_with_the_reason_and_counted():
    async def action(sandbox, provider, at):
        await sandbox.set_network([at])
        assert await get(sandbox, at) == "hello"
        assert await get(sandbox, "example.com") == "403 example.com:80 is not allowed: network.allow does not name it"
        network = sandbox._keeper.networks[sandbox.id]
        assert network.proxy.refused == {"example.com:80": 1} and network.proxy.let_through == 1

    act(action)


def test_a_policy_is_one_sandboxes_whoever_holds_it_and_goes_with_it():
    async def action(sandbox, provider, at):
        await (await provider.attach(sandbox.id)).set_network([at])
        assert await get(sandbox, at) == "hello"
        await sandbox.write("changed", b"x")
        (child,) = await sandbox.fork(1)
        ref = await sandbox.snapshot()
        (again,) = await provider.create(ref)
        for one in (child.backend, again.backend):
            assert (await one.exec(ExecRequest(("sh", "-c", "env | grep -ci _proxy")))).stdout == b"0\n"
            refused = await one.exec(ExecRequest(("bash", "-c", f": < /dev/tcp/127.0.0.1/{PORT}")))
            assert refused.exit_code == 1
        assert await get(sandbox, at) == "hello", "a parent that goes on in a new home keeps its way out"
        keeper = sandbox._keeper
        await sandbox.destroy()
        assert keeper.networks == {}
        with pytest.raises(SandboxGone):
            await sandbox.set_network([at])

    act(action)


def test_a_command_that_holds_the_port_gets_no_other_network_and_hinders_itself_alone():
    async def action(sandbox, provider, at):
        script = ANY.format(port=PORT, then="import time; time.sleep(30)")
        holds = asyncio.ensure_future(sandbox.exec(ExecRequest(("sh", "-c", script), timeout_s=2)))
        await asyncio.sleep(1)
        with pytest.raises(BackendError, match="port"):
            await sandbox.set_network([at])
        assert (await holds).status == "timeout"
        await sandbox.set_network([at])
        assert await get(sandbox, at) == "hello"

    act(action)


def test_nothing_is_left_of_connections_that_were_open_when_their_sandbox_ended():
    async def action(sandbox, provider, at):
        await sandbox.set_network([at])
        before = len(os.listdir("/proc/self/fd"))
        script = "exec 3<>/dev/tcp/127.0.0.1/{0}; printf 'CONNECT {1} HTTP/1.1\\r\\n\\r\\n' >&3; sleep 50"
        words = ("bash", "-c", script.format(PORT, at))
        running = [asyncio.ensure_future(sandbox.exec(ExecRequest(words, timeout_s=55))) for _ in range(5)]
        while len(os.listdir("/proc/self/fd")) < before + 5:
            await asyncio.sleep(0.05)
        await sandbox.destroy()
        await asyncio.gather(*running, return_exceptions=True)
        while len(os.listdir("/proc/self/fd")) > before:
            await asyncio.sleep(0.05)

    act(action)


# --- policies that are wrong --------------------------------------------------------------------------------------


def found():
    """What the probe says of the claim."""

    async def whole():
        provider = NamespacesProvider()
        try:
            sandbox = await new_sandbox(provider)
            await networks(sandbox, provider)
        except AssertionError as error:
            return str(error)
        finally:
            await provider.close()
        return ""

    return asyncio.run(whole())


def test_a_policy_that_works_passes():
    assert found() == ""


def test_a_proxy_that_knows_no_list_is_caught(monkeypatch):
    monkeypatch.setattr(proxy.Proxy, "_takes", lambda self, host, port: True)
    assert "were allowed, and a command connected to" in found()


def test_a_port_that_is_not_looked_at_is_caught(monkeypatch):
    monkeypatch.setattr(hosts.Rule, "takes", lambda self, host, port: host == self.host)
    assert "were allowed, and a command connected to" in found()


def test_names_that_may_lead_anywhere_are_caught(monkeypatch):
    monkeypatch.setattr(proxy, "is_public", lambda address: True)
    assert "a name led to an address that is not public" in found()


def test_a_policy_that_is_never_taken_back_is_caught(monkeypatch):
    allow = proxy.Proxy.allow
    monkeypatch.setattr(proxy.Proxy, "allow", lambda self, hosts: allow(self, hosts) if not self.rules else None)
    assert "allowed no more can still be reached" in found()


def test_forks_that_have_their_parents_network_are_caught(monkeypatch):
    fork = Sandbox.fork

    async def inherits(self, n):
        children = await fork(self, n)
        for child in children:
            rules = self.backend._keeper.networks[self.id].proxy.rules
            await child.set_network(
                [f"[{rule.host}]:{rule.port}" if ":" in rule.host else f"{rule.host}:{rule.port}" for rule in rules]
            )
        return children

    monkeypatch.setattr(Sandbox, "fork", inherits)
    assert "a fork, to which no network was allowed, connected" in found()


def test_a_policy_that_lets_nothing_through_is_caught(monkeypatch):
    async def nothing(self, allow):
        pass

    monkeypatch.setattr(NamespacesSandbox, "set_network", nothing)
    assert "no command could connect" in found()
