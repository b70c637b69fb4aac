"""The proxy lets through what is allowed, by the address that it has looked at, in a form that has one meaning."""

import asyncio
from collections import Counter
from contextlib import suppress
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_core.errors import BackendError
from composer_core.hosts import Rule, canonical
from composer_envkit import proxy as module
from composer_envkit.http1 import Refusal, Request
from composer_envkit.policy import is_public, rules_of
from composer_envkit.proxy import Proxy, Tcp

LOOPBACK = ip_address("127.0.0.1")


class World:
    """A proxy and a server, both on this machine's loopback; the server tells what it was told."""

    def __init__(self, proxy: Proxy, proxy_port: int, port: int, heard: list[bytes]) -> None:
        self.proxy, self.proxy_port, self.port, self.heard = proxy, proxy_port, port, heard

    async def say(self, data: bytes, *more: bytes) -> bytes:
        """What comes back until the end of the connection; `more` is said afterwards."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.proxy_port)
        try:
            writer.write(data)
            for piece in more:
                await asyncio.sleep(0.05)
                writer.write(piece)
            return await asyncio.wait_for(reader.read(), 10)
        finally:
            writer.close()
            await writer.wait_closed()


def within(act, *, allow=None, resolve=None):
    """Run `act(world)`; by default the server's address and port are allowed."""

    async def whole():
        heard = []

        async def serve(reader, writer):
            try:
                head = await reader.readuntil(b"\r\n\r\n")
                body = b""
                lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                if lengths:
                    body = await reader.readexactly(int(lengths[0].split(b":")[1]))
                elif b"chunked" in head:
                    body = await reader.readuntil(b"0\r\n\r\n")
                heard.append(head + body)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                await writer.drain()
                with suppress(TimeoutError):
                    heard.append(await asyncio.wait_for(reader.read(1000), 0.2))
            finally:
                writer.close()

        proxy = Proxy(resolve)
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            proxy.allow([f"127.0.0.1:{port}"] if allow is None else [entry.format(port=port) for entry in allow])
            async with await asyncio.start_server(lambda r, w: proxy.serve(Tcp(r, w)), "127.0.0.1", 0) as front:
                return await act(World(proxy, front.sockets[0].getsockname()[1], port, heard))

    return asyncio.run(whole())


# --- what is allowed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "yes", "no"),
    [
        ("example.com", [("example.com", 1), ("example.com", 443)], [("a.example.com", 443), ("xample.com", 443)]),
        ("Example.COM.:443", [("example.com", 443)], [("example.com", 80)]),
        ("*.example.com", [("a.example.com", 1), ("a.b.example.com", 9)], [("example.com", 1), ("badexample.com", 1)]),
        ("10.0.0.1", [("10.0.0.1", 5)], [("10.0.0.10", 5)]),
        ("[::1]:80", [("::1", 80)], [("::1", 81), ("::2", 80)]),
        ("2001:DB8::0:1", [("2001:db8::1", 7)], []),
    ],
)
def test_an_entry_takes_its_host_and_no_other(entry, yes, no):
    rule = Rule.of(entry)
    assert all(rule.takes(canonical(host), port) for host, port in yes)
    assert not any(rule.takes(canonical(host), port) for host, port in no)


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "*",
        "*.",
        "http://x",
        "a b",
        "x/y",
        "x:0",
        "x:65536",
        "x:",
        "[::1",
        "*.[::1]",
        "*.::1",
        "a..b",
        "ü.de",
        "x:y",
        "*.1",
        "127.1",
        "0x7f000001",
    ],
)
def test_what_is_no_entry_is_refused_and_changes_nothing(entry):
    proxy = Proxy()
    proxy.allow(["example.com"])
    with pytest.raises(BackendError, match=r"network\.allow"):
        proxy.allow(["other.com", entry])
    assert proxy.rules == rules_of(["example.com"])


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.255.255.254", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
        *("100.64.0.1", "192.0.2.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "fc00::1"),
        *("ff02::1", "2001:db8::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe"),
        *("2002:7f00:1::", "2002:a00:1::1"),
    ],
)
def test_addresses_of_machines_links_and_organizations_are_not_public_however_they_are_spelled(address):
    assert not is_public(ip_address(address))


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]
)
def test_public_addresses_are(address):
    assert is_public(ip_address(address))


# --- where it connects --------------------------------------------------------------------------------------------


def test_a_request_and_a_tunnel_reach_what_is_allowed_and_are_told_why_they_reach_nothing_else():
    async def act(world):
        for target in (b"http://127.0.0.1:%d/x", b"http://127.0.0.1:%d"):
            assert (await world.say(b"GET " + target % world.port + b" HTTP/1.1\r\n\r\n")).endswith(b"ok")
        tunnel = b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % world.port
        assert (await world.say(tunnel, b"GET / HTTP/1.1\r\n\r\n")).endswith(b"ok")
        assert (await world.say(tunnel + b"GET / HTTP/1.1\r\n\r\n")).endswith(b"ok"), "said in one piece"
        for asked in (b"CONNECT example.com:443 HTTP/1.1", b"GET http://example.com:443/ HTTP/1.1"):
            said = await world.say(asked + b"\r\n\r\n")
            assert said.startswith(b"HTTP/1.1 403 ") and said.endswith(
                b"example.com:443 is not allowed: network.allow does not name it\n"
            )
        await world.say(b"CONNECT 127.0.0.1:1 HTTP/1.1\r\n\r\n")
        assert world.proxy.refused == Counter({"example.com:443": 2, "127.0.0.1:1": 1})
        assert world.proxy.let_through == 4

    within(act)


@pytest.mark.parametrize(
    "spelled", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "[::ffff:127.0.0.1]", "[::127.0.0.1]"]
)
def test_an_address_in_disguise_is_not_the_address_that_is_allowed(spelled):
    async def act(world):
        said = await world.say(f"CONNECT {spelled}:{world.port} HTTP/1.1\r\n\r\n".encode())
        assert said.startswith(b"HTTP/1.1 40") and world.proxy.let_through == 0

    within(act, allow=["127.0.0.1"])


def test_a_name_leads_to_no_address_of_this_machine_unless_that_is_allowed_too():
    async def act(world):
        said = await world.say(b"CONNECT localhost:%d HTTP/1.1\r\n\r\n" % world.port)
        assert said.startswith(b"HTTP/1.1 403 ") and b"127.0.0.1, not public" in said
        world.proxy.allow(["localhost", f"127.0.0.1:{world.port}"])
        tunnel = b"CONNECT LocalHost.:%d HTTP/1.1\r\n\r\n" % world.port
        assert (await world.say(tunnel, b"GET / HTTP/1.1\r\n\r\n")).endswith(b"ok")

    within(act, allow=["localhost"], resolve=None)


def test_the_address_that_was_looked_at_is_the_one_that_is_connected_to(monkeypatch):
    """A name that leads elsewhere when it is looked up again gains nothing: it is looked up once."""
    asked, connected = [], []

    async def rebinding(host, port):
        asked.append(host)
        return [ip_address("93.184.216.34"), LOOPBACK] if len(asked) == 1 else [LOOPBACK]

    async def connect(host, port):
        connected.append((host, port))
        raise OSError("not from a test")

    async def act(world):
        monkeypatch.setattr(module.asyncio, "open_connection", connect)
        stream = Said(b"CONNECT rebound.example:80 HTTP/1.1\r\n\r\n")
        await world.proxy.serve(stream)
        assert stream.answer.startswith(b"HTTP/1.1 502 ")
        stream = Said(b"CONNECT rebound.example:80 HTTP/1.1\r\n\r\n")
        await world.proxy.serve(stream)
        assert stream.answer.startswith(b"HTTP/1.1 403 ")

    within(act, allow=["rebound.example"], resolve=rebinding)
    assert asked == ["rebound.example"] * 2
    assert connected == [("93.184.216.34", 80)], "never to the address that is not public, and by no name"


class Said:
    """A client that says one thing."""

    def __init__(self, data):
        self.data, self.answer = data, b""

    async def read(self):
        data, self.data = self.data, b""
        return data

    async def write(self, data):
        self.answer += data

    async def shut(self):
        pass

    async def close(self):
        pass


def test_a_name_that_leads_nowhere_and_a_host_that_does_not_listen_are_told():
    async def act(world):
        world.proxy.allow(["127.0.0.1:1", "nowhere.invalid"])
        for host in (b"127.0.0.1:1", b"nowhere.invalid:80"):
            assert (await world.say(b"CONNECT " + host + b" HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 502 ")

    async def nothing(host, port):
        return []

    within(act, resolve=nothing)


def test_refusals_of_very_many_hosts_take_no_room():
    async def act(world):
        for number in range(1050):
            await world.proxy.serve(Said(b"CONNECT a%d.example:1 HTTP/1.1\r\n\r\n" % number))
        assert len(world.proxy.refused) == 1001 and world.proxy.refused["others"] == 50

    within(act)


def test_what_is_allowed_no_more_is_cut_and_what_still_is_goes_on():
    async def act(world):
        reader, writer = await asyncio.open_connection("127.0.0.1", world.proxy_port)
        writer.write(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % world.port)
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        world.proxy.allow([f"127.0.0.1:{world.port}", "example.com"])
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        world.proxy.allow(["example.com"])
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()

    within(act)


def test_what_is_allowed_no_more_while_it_is_connected_to_is_refused(monkeypatch):
    connect = asyncio.open_connection

    async def act(world):
        async def late(host, port):
            made = await connect(host, port)
            world.proxy.allow(["example.com"])
            return made

        monkeypatch.setattr(module.asyncio, "open_connection", late)
        said = Said(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % world.port)
        await world.proxy.serve(said)
        assert said.answer.startswith(b"HTTP/1.1 403 ") and not world.proxy.let_through

    within(act)


# --- what is passed on --------------------------------------------------------------------------------------------


def test_the_host_of_the_line_beats_the_header_and_headers_of_this_hop_stay():
    async def act(world):
        named = b"Connection: close, X-Mine\r\nX-Mine: 1\r\nUpgrade: h2c\r\nKeep-Alive: 5\r\n"
        lines = b"Host: evil.example\r\nX-Kept: 2\r\n" + named + b"Proxy-Authorization: secret\r\nTE: gzip\r\n"
        await world.say(b"GET http://127.0.0.1:%d/a?b HTTP/1.1\r\n" % world.port + lines + b"\r\n")
        assert world.heard[0] == (
            b"GET /a?b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\nx-kept: 2\r\n\r\n" % world.port
        )

    within(act)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_has_its_length_and_nothing_behind_it_is_passed_on(chunked):
    second = b"GET http://127.0.0.1/second HTTP/1.1\r\nHost: evil.example\r\n\r\n"
    body = b"3;ext=1\r\nabc\r\n" if chunked else b"abc"

    async def act(world):
        how = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 3"
        head = b"POST http://127.0.0.1:%d/ HTTP/1.1\r\n" % world.port + how + b"\r\n\r\n"
        sent = b"3\r\nabc\r\n0\r\nTrailer: x\r\n\r\n" if chunked else b"abc"
        assert (await world.say(head + sent[:4], sent[4:] + second)).endswith(b"ok")
        assert world.heard[0].endswith(b"\r\n\r\n" + (b"3\r\nabc\r\n0\r\n\r\n" if chunked else b"abc"))
        assert world.heard[1:] in ([], [b""])
        if chunked:
            world.heard.clear()
            assert await world.say(head + body) == b"", "what is no chunk ends the connection"

    within(act)


BAD = (
    b"",
    b"GET / HTTP/1.1",
    b"GET https://127.0.0.1/ HTTP/1.1",
    b"GET http://user@127.0.0.1/ HTTP/1.1",
    b"GET http:///x HTTP/1.1",
    b"GET http://[::1/ HTTP/1.1",
    b"GET  http://127.0.0.1/ HTTP/1.1",
    b"get http://127.0.0.1/ HTTP/1.1",
    b"GET http://127.0.0.1/ HTTP/2.0",
    b"GET http://127.0.0.1/\tx HTTP/1.1",
    b"CONNECT 127.0.0.1 HTTP/1.1",
    b"CONNECT ::1:80 HTTP/1.1",
    b"CONNECT 127.0.0.1:080000 HTTP/1.1",
    b"CONNECT http://127.0.0.1:80 HTTP/1.1",
    *(
        b"POST http://127.0.0.1/ HTTP/1.1\r\n" + lines
        for lines in (
            b"Content-Length: 1\r\nTransfer-Encoding: chunked",
            b"Content-Length: 1\r\nContent-Length: 2",
            b"Content-Length: 1, 1",
            b"Content-Length: +1",
            b"Content-Length: 0x1",
            b"Transfer-Encoding: gzip, chunked",
            b"Transfer-Encoding: \x0bchunked",
            b"Content-Length: 1\r\nConnection: content-length",
            b"X : 1",
            b" folded: 1",
            b"X: 1\r\n continued",
            b"X: 1\nY: 2",
            b"X: 1\rY: 2",
            b"X: \0",
            b"no colon",
        )
    ),
)


@pytest.mark.parametrize("head", BAD)
def test_what_could_be_read_in_two_ways_is_refused(head):
    with pytest.raises(Refusal) as refused:
        Request.of(head)
    assert refused.value.status == 400


@given(st.binary(max_size=300))
def test_bytes_are_a_request_or_are_refused_and_what_is_told_the_server_is_one_head(data):
    for head in (data, b"GET http://a.example/" + data + b" HTTP/1.1", b"GET http://a.example/ HTTP/1.1\r\n" + data):
        try:
            request = Request.of(head)
        except Refusal:
            continue
        if request.path:
            assert request.head().count(b"\r\n\r\n") == 1 and request.head().lower().count(b"\r\nhost:") == 1


def test_a_request_that_never_comes_or_never_ends_is_given_up(monkeypatch):
    monkeypatch.setattr(module, "HEAD_S", 0.2)

    async def act(world):
        assert (await world.say(b"GET http://")).startswith(b"HTTP/1.1 400 ")
        assert (await world.say(b"GET http://127.0.0.1/ HTTP/1.1\r\n" + b"X: y\r\n" * 20000)).startswith(
            b"HTTP/1.1 400 "
        )

    within(act)
