"""Who may ask and for what: tokens, bodies, ids, keys; the OpenAPI document; and the settings that a server refuses."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import subprocess
from contextlib import suppress

import aiohttp
import pytest
from inprocess import SPEC, TOKEN, TREE, client, create, served

from composer_core import RunView
from composer_core.cli import main
from composer_core.errors import ConfigError, QuotaError
from composer_core.protocols import BuildContext, ExecRequest, ExecResult
from composer_plugin_server import api, tokens, wire
from composer_plugin_server.config import TOKEN_VARIABLE, RemoteConfig
from composer_plugin_server.openapi import document
from composer_plugin_server.plugin import composer_check
from composer_plugin_server.remote import build
from composer_plugin_server.settings import Server
from composer_plugin_server.strict import structured

HEADERS = {"Authorization": f"Bearer {TOKEN}"}


async def asked(session, method, url, **given):
    async with session.request(method, url, **given) as reply:
        return reply.status, await reply.read()


def over_http(tmp_path, monkeypatch, act, **tables):
    """Run `act(session, url, lease, box)` beside a server with one sandbox."""

    async def both():
        async with served(tmp_path, monkeypatch, **tables) as running, client(running) as provider:
            (box,) = await create(provider)
            lease = {wire.LEASE_HEADER: next(iter(provider.leases.values()))}
            async with aiohttp.ClientSession() as session:
                return await act(session, f"{running.url}/v1", {**HEADERS, **lease}, box)

    return asyncio.run(both())


# --- the token ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "authorization", [None, "", TOKEN, f"Basic {TOKEN}", "Bearer ", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x"]
)
def test_without_the_token_nothing_is_told_or_done(tmp_path, monkeypatch, authorization):
    async def act(session, url, headers, box):
        given = {**headers, "Authorization": authorization} if authorization is not None else {}
        root = url.removesuffix("/v1")
        calls = [("GET", f"{url}/node"), ("POST", f"{url}/leases"), ("GET", f"{url}/fleet"), ("GET", f"{root}/metrics")]
        calls += [("DELETE", f"{url}/sandboxes/{box.id}"), ("GET", f"{root}/nothing"), ("DELETE", f"{url}/lease")]
        for method, address in calls:
            status, body = await asked(session, method, address, headers=given)
            assert status == 401, address
            assert json.loads(body)["error"] == "Refused"
        assert await box.read("a.txt", 10) == b"one\n"

    over_http(tmp_path, monkeypatch, act)


def test_the_body_of_whoever_has_no_token_is_not_read(tmp_path, monkeypatch):
    async def act(session, url, headers, box):
        async def endless():
            for _ in range(1000):
                yield b"x" * 100_000
                await asyncio.sleep(0.01)

        started = asyncio.get_running_loop().time()
        with suppress(aiohttp.ClientError):  # the connection may be closed while it is sent
            assert (await asked(session, "POST", f"{url}/leases", data=endless()))[0] == 401
        assert asyncio.get_running_loop().time() - started < 5

    over_http(tmp_path, monkeypatch, act)


def test_what_needs_no_token_holds_nothing(tmp_path, monkeypatch):
    async def act(session, url, headers, box):
        root = url.removesuffix("/v1")
        for path in ("/", "/fleet.js", "/fleet.css", "/openapi.json", "/health"):
            status, body = await asked(session, "GET", f"{root}{path}")
            assert status == 200 and TOKEN.encode() not in body and box.id.encode() not in body
        async with session.get(root) as reply:
            policy = reply.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy

    over_http(tmp_path, monkeypatch, act)


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o604])
def test_a_token_that_others_may_read_is_refused(tmp_path, mode):
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(mode)
    with pytest.raises(ConfigError, match="others may read") as refused:
        tokens.read_token(str(path))
    assert refused.value.fields["fix"] == f"chmod 600 {path}" and refused.value.exit_code == 2
    path.chmod(0o600)
    assert tokens.read_token(str(path)) == TOKEN


def test_a_missing_token_is_made_for_a_server_and_missed_by_a_client(tmp_path, monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    path = tmp_path / "new/token"
    with pytest.raises(ConfigError, match="cannot be read"):
        build(RemoteConfig(token_file=str(path)), BuildContext(tmp_path))
    made = tokens.read_token(str(path), make=True)
    assert len(made) >= 32 and tokens.read_token(str(path)) == made
    assert path.stat().st_mode & 0o777 == 0o600
    build(RemoteConfig(token_file=str(path)), BuildContext(tmp_path))


@pytest.mark.parametrize("text", ["", "short", "with blanks in between it", "žluťoučký-kůň-úpěl"])
def test_a_token_that_can_be_guessed_or_mistyped_is_refused(monkeypatch, text):
    monkeypatch.setenv(TOKEN_VARIABLE, text or " x ")
    with pytest.raises(ConfigError, match="too easy to guess"):
        tokens.read_token("")


# --- requests -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "id",
    ["..", "../leases", "%2e%2e%2fnode", "..%2f..%2fetc%2fpasswd", "a" * 500, "A_B", "x%00y", "x%0ay", "-", "\u00fc"],
)
def test_ids_are_looked_up_and_lead_nowhere(tmp_path, monkeypatch, id):
    async def act(session, url, headers, box):
        for method, path in (("GET", ""), ("GET", "/file?path=a.txt&limit_bytes=9"), ("POST", "/fork"), ("DELETE", "")):
            given = {**headers, wire.KEY_HEADER: "key-of-this-test"}
            status, _ = await asked(session, method, f"{url}/sandboxes/{id}{path}", headers=given, json={})
            assert status in (404, 405, 410) or (method == "DELETE" and status == 200), (method, path)
        assert await box.read("a.txt", 10) == b"one\n"

    over_http(tmp_path, monkeypatch, act)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/exec", b"no json", 400),
        ("/exec", b"[" * 100_000, 400),
        ("/exec", b"\xff\xfe", 400),
        ("/exec", b'"text"', 400),
        ("/exec", b"{}", 400),
        ("/exec", b'{"argv": "ls"}', 400),
        ("/exec", b'{"argv": ["ls"], "timeout_s": "3"}', 400),
        ("/exec", b'{"argv": ["ls"], "stdin": "not base64!"}', 400),
        ("/exec", b'{"argv": ["ls"], "surprise": 1}', 400),
        ("/fork", b'{"count": 0}', 400),
        ("/fork", b'{"count": 100000}', 400),
        ("/fork", b'{"count": true}', 400),
        ("/fork", b'{"count": 1, "pad": "' + b"x" * 100_000 + b'"}', 413),
    ],
)
def test_bodies_that_do_not_fit_are_refused_and_change_nothing(tmp_path, monkeypatch, path, body, status):
    async def act(session, url, headers, box):
        given = {**headers, wire.KEY_HEADER: "key-of-this-test"}
        found, text = await asked(session, "POST", f"{url}/sandboxes/{box.id}{path}", headers=given, data=body)
        assert found == status, text
        reply = json.loads(text)
        assert reply["error"] in ("ConfigError", "Refused") and len(text) < 2000
        assert len(json.loads((await asked(session, "GET", f"{url}/sandboxes", headers=headers))[1])["sandboxes"]) == 1

    over_http(tmp_path, monkeypatch, act)


def test_a_body_over_the_servers_limit_is_refused_without_holding_it(tmp_path, monkeypatch):
    async def act(session, url, headers, box):
        with pytest.raises(QuotaError):  # the provider's own limit on a file
            await box.write("big", b"x" * (SPEC.file_bytes + 1))

        async def chunks():
            for _ in range(40):
                yield b"x" * (1 << 20)

        address = f"{url}/sandboxes/{box.id}/file"
        given = {"headers": headers, "params": {"path": "big"}}
        status, _ = await asked(session, "PUT", address, data=b"x" * (33 << 20), **given)
        assert status == 413
        with suppress(aiohttp.ClientError):  # the connection may be closed while it is sent
            assert (await asked(session, "PUT", address, data=chunks(), **given))[0] == 413
        assert [entry.name for entry in await box.list("")] == ["a.txt"]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("warnings.warn", lambda *a, **k: None)  # of aiohttp: a large body is sent on purpose
        over_http(tmp_path, monkeypatch, act, server={"body_bytes": 32 << 20})


@pytest.mark.parametrize("key", ["", "short", "has blanks in it", "x" * 65, "path/../x-y-z"])
def test_what_changes_something_needs_a_key(tmp_path, monkeypatch, key):
    async def act(session, url, headers, box):
        given = {**headers, wire.KEY_HEADER: key}
        status, _ = await asked(session, "POST", f"{url}/sandboxes/{box.id}/fork", headers=given, json={})
        assert status == 400

    over_http(tmp_path, monkeypatch, act)


@pytest.mark.parametrize("lease", ["", "guess", "x" * 5000, "\u00fc"])
def test_a_lease_that_is_not_known_finds_nothing(tmp_path, monkeypatch, lease):
    async def act(session, url, headers, box):
        status, text = await asked(session, "GET", f"{url}/sandboxes", headers={**HEADERS, wire.LEASE_HEADER: lease})
        assert (status, json.loads(text)["error"]) == (410, "LeaseGone")

    over_http(tmp_path, monkeypatch, act)


@pytest.mark.parametrize("query", ["", "path=a.txt", "path=a.txt&limit_bytes=-1", "path=a.txt&limit_bytes=1e3"])
def test_a_query_that_is_not_whole_is_refused(tmp_path, monkeypatch, query):
    async def act(session, url, headers, box):
        status, _ = await asked(session, "GET", f"{url}/sandboxes/{box.id}/file?{query}", headers=headers)
        assert status == 400

    over_http(tmp_path, monkeypatch, act)


def test_files_that_are_not_the_workspace_they_are_sent_as_are_refused(tmp_path, monkeypatch):
    async def act(session, url, headers, box):
        body = {"files": [{"path": "a.txt", "data": "b3RoZXI="}]}
        address = f"{url}/workspaces/{TREE.ref.sha256}"
        status, text = await asked(session, "PUT", address, headers=headers, json=body)
        assert status == 422 and b"not that workspace" in text
        body["files"][0]["path"] = "../a.txt"
        assert (await asked(session, "PUT", address, headers=headers, json=body))[0] == 400

    over_http(tmp_path, monkeypatch, act)


def test_words_that_json_can_spell_and_text_cannot_arrive_as_they_are():
    request = ExecRequest(("half\ud800", "nul\0"), stdin=b"\xff\0", env={"A": "b"})
    assert structured(json.loads(wire.encoded(request)), ExecRequest, "test") == request
    result = ExecResult("signaled", None, b"\xff", b"", 1, 0, 0.5, 9)
    assert structured(json.loads(wire.encoded(result)), ExecResult, "test") == result


# --- the document -------------------------------------------------------------------------------------------------


def test_the_document_names_every_route_and_every_class_that_it_refers_to():
    made = json.loads(json.dumps(document("1")))
    told = {(method.upper(), path) for path, methods in made["paths"].items() for method in methods}
    routes = {(one.method, re.sub(r":[^/]*?(\{\d+,\d+\})?\}", "}", f"/v1{one.path}")) for one in api.ROUTES}
    for method, path in routes:
        plain = path.replace("[^/]{1,100}", "").replace("{name:}", "{name}")
        assert any(method == one and plain.split("{")[0] in where for one, where in told), (method, path)
    assert len(told) == len(api.ROUTES) + 1
    assert not [path for _, path in told if ":" in path or "[" in path]
    schemas = made["components"]["schemas"]
    for name in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(made)):
        assert schemas[name]["properties"] is not None
    assert schemas["ExecRequest"]["required"] == ["argv"]
    assert schemas["ExecRequest"]["properties"]["stdin"] == {"type": "string", "contentEncoding": "base64"}
    assert schemas["ExecResult"]["properties"]["exit_code"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    for methods in made["paths"].values():
        for operation in methods.values():
            assert operation["summary"] and "401" in operation["responses"]


# --- settings -----------------------------------------------------------------------------------------------------


@pytest.fixture
def refused(monkeypatch, capsys):
    """What `composer-run envd` says, with exit code 2."""

    def run(*words):
        monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
        with pytest.raises(SystemExit) as ended:
            main(["--plugins", "fakes,local,server", "envd", *words])
        said = capsys.readouterr()
        assert (ended.value.code, said.out) == (2, ""), said.err
        return said.err

    return run


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([], "no provider is chosen"),
        (["sandbox.use=fakes/memroy"], "did you mean 'fakes/memory'?"),
        (["sandbox.use=local/process"], "isolates nothing"),
        (["sandbox.use=local/process", "sandbox.trust=true"], "what local/process is told does not fit"),
        (["sandbox.use=server/remote"], "no other server's"),
        (["sandbox.use=fakes/memory", "server.prot=1"], "server: unknown key 'prot': did you mean 'port'?"),
        (["sandbox.use=fakes/memory", "server.port=x"], "server.port: expected int, found str"),
        (["sandbox.use=fakes/memory", "servers.port=1"], "unknown key 'servers': did you mean 'server'?"),
        (["sandbox.use=fakes/memory", "admission.starts=-1"], "admission: 'starts' must be >= 0"),
        (["sandbox.use=fakes/memory", "server.host=0.0.0.0"], "others could read the token"),
        (["sandbox.use=fakes/memory", "server.port=0", "server.certificate=/missing"], "certificate cannot be used"),
        (["sandbox.use=fakes/memory", "server.node=UP/.."], "small letters and digits"),
    ],
)
def test_a_server_that_cannot_be_as_it_is_asked_says_why_and_how_to_mend_it(refused, tmp_path, settings, said):
    words = [word for text in [*settings, f"server.state={tmp_path}"] for word in ("--set", text)]
    if not settings:
        words = []
    assert said in refused(*words)


def test_a_file_that_cannot_be_read_and_a_port_that_is_taken_are_told(refused, tmp_path):
    assert "cannot be read" in refused(str(tmp_path / "missing.toml"))
    path = tmp_path / "envd.toml"
    path.write_text(
        f'[sandbox]\nuse = "fakes/memory"\n[server]\nstate = "{tmp_path}/state"\nhost = "192.0.2.1"\nplain = true\n'
    )
    assert "server.host is an address of this machine" in refused(str(path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = f"server.port={taken.getsockname()[1]}"
        assert "or take another port" in refused(str(path), "--set", port, "--set", "server.host=127.0.0.1")


def test_https_is_served_with_a_certificate(tmp_path, monkeypatch):
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject]
    subprocess.run([*argv, "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=60)

    async def over_tls():
        tables = {"certificate": str(certificate), "key": str(key)}
        async with served(tmp_path, monkeypatch, server=tables) as running:
            assert running.url.startswith("https://")
            context = ssl.create_default_context(cafile=str(certificate))
            async with aiohttp.ClientSession() as session:
                status, _ = await asked(session, "GET", f"{running.url}/v1/node", headers=HEADERS, ssl=context)
            assert status == 200

    asyncio.run(over_tls())


@pytest.mark.parametrize(
    ("config", "where"),
    [
        (RemoteConfig(urls=()), "sandbox.urls"),
        (RemoteConfig(urls=("127.0.0.1:7077",)), "sandbox.urls"),
        (RemoteConfig(urls=("http://a:1", "http://b:1"), lease="x"), "sandbox.lease"),
    ],
)
def test_a_client_that_cannot_work_is_told_by_check(config, where):
    run = RunView(None, {"sandboxes": (("server/remote", config),)})
    assert [problem.where for problem in composer_check(run)] == [where]
    assert Server().host == "127.0.0.1", "loopback unless something else is said"
