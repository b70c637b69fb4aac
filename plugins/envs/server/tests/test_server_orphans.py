"""After `kill -9` of a server the next one removes what it left, and nothing that is another's."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from servers import end, start

from composer_core.errors import ConfigError, SandboxError, SandboxGone
from composer_core.protocols import ExecRequest, TemplateSpec
from composer_core.trees import Tree
from composer_plugin_server import orphans
from composer_plugin_server.ledger import Ledger

TREE = Tree.of({"a.txt": "one\n"})
SPEC = TemplateSpec(TREE.ref, memory_bytes=32 << 20)
TRUSTED = "sandbox.trusted=true"


async def create(provider, count: int = 1):
    made = await provider.create(await provider.prepare(SPEC, TREE), count)
    return [child.backend for child in made]


def commands(*argv: str) -> set[int]:
    """Processes of this machine with exactly this command line."""
    wanted = "\0".join([*argv, ""]).encode()
    return {int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if text(path) == wanted}


def text(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


async def until(happened) -> bool:
    for _ in range(200):
        if happened():
            return True
        await asyncio.sleep(0.05)
    return False


def running_in(box, script: str) -> asyncio.Future:
    return asyncio.ensure_future(box.exec(ExecRequest(("sh", "-c", script), timeout_s=60)))


@pytest.fixture
def impatient(monkeypatch):
    """Clients of a server that is gone for good give up soon."""
    monkeypatch.setattr("composer_plugin_server.connection.RETRY_S", 0.5)


@pytest.fixture
def own_temporary(monkeypatch):
    """A short folder for temporary files of the servers that a test starts, and of nobody else's."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="e-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def test_what_a_killed_server_left_is_reaped_and_strangers_are_spared(tmp_path, impatient, own_temporary):
    """One command in its sandbox, one that left its session, one that left its folder; and three that are not ours."""
    ours, others, strangers = (f"86400.{os.getpid()}{digit}" for digit in "123")

    async def main():
        servers = [start("local/process", tmp_path / name, TRUSTED) for name in ("ours", "others")]
        killed, other = servers
        stranger = subprocess.Popen(["sleep", strangers], cwd=tmp_path, env={"TMPDIR": "/tmp"})
        clients = [killed.provider(), other.provider()]
        try:
            one, two = await create(clients[0], 2)
            (third,) = await create(clients[1])
            scripts = [
                (one, f"sleep {ours}"),
                (two, f"setsid sleep {ours} & cd / && exec sleep {ours}"),
                (third, f"exec sleep {others}"),
            ]
            tasks = [running_in(box, script) for box, script in scripts]
            assert await until(lambda: len(commands("sleep", ours)) == 3 and commands("sleep", others))
            killed.kill()
            assert len(commands("sleep", ours)) == 3, "they outlive it, or this shows nothing"
            servers.append(start("local/process", tmp_path / "ours", TRUSTED))
            assert "left by an earlier server were reaped" in servers[2].said
            assert not commands("sleep", ours)
            assert stranger.poll() is None and len(commands("sleep", others)) == 1
            assert servers[2].node == killed.node, "a node keeps its name"
            (fourth,) = await create(clients[1])
            assert await fourth.read("a.txt", 10) == b"one\n"
            with pytest.raises(SandboxError):
                await clients[0].attach(one.id)
        finally:
            for client in clients:
                await asyncio.gather(client.close(), return_exceptions=True)
            await asyncio.gather(*tasks, return_exceptions=True)
            for server in servers:
                end(server)
            stranger.kill()
            stranger.wait()
        assert not commands("sleep", others), "a server that ends takes its own along"

    asyncio.run(main())
    assert not list(own_temporary.glob("composer-envd-*")), "nor is a folder left"


def test_a_client_goes_on_with_the_server_that_took_over(tmp_path):
    async def main():
        servers = [start("fakes/memory", tmp_path / "state", "server.port=0")]
        provider = servers[0].provider()
        try:
            template = await provider.prepare(SPEC, TREE)
            (made,) = await provider.create(template)
            servers[0].kill()
            port = servers[0].url.rpartition(":")[2]
            servers.append(start("fakes/memory", tmp_path / "state", f"server.port={port}"))
            assert "1 left by an earlier server" in servers[1].said
            with pytest.raises(SandboxGone):
                await made.backend.read("a.txt", 10)
            (again,) = await provider.create(template)  # spec and files are sent anew
            assert await again.backend.read("a.txt", 10) == b"one\n"
        finally:
            await provider.close()
            for server in servers:
                end(server)

    asyncio.run(main())


# --- the ledger ---------------------------------------------------------------------------------------------------


def opened(folder: Path) -> Ledger:
    ledger = Ledger.open(folder, "fakes/memory")
    ledger.begin()
    return ledger


@pytest.fixture
def scratch_of(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_a_ledger_tells_the_next_server_what_had_not_ended(tmp_path, scratch_of):
    ledger = opened(tmp_path / "state")
    for name in ("one", "two", "three"):
        ledger.starting(name)
    ledger.made("one", "sandbox-1")
    ledger.made("two", "sandbox-2")
    ledger.ended("two")
    with (tmp_path / "state/ledger.jsonl").open("a") as file:
        file.write('{"made": "cut o')
    ledger.abandon()
    again = Ledger.open(tmp_path / "state", "fakes/memory")
    assert again.past is not None
    assert again.past.sandboxes == {"one": "sandbox-1", "three": ""}
    assert (again.past.scratch, again.past.provider) == (ledger.scratch, "fakes/memory")
    again.abandon()


def test_a_damaged_line_costs_what_it_said_and_no_more(tmp_path, scratch_of, caplog):
    ledger = opened(tmp_path / "state")
    for name in ("one", "two", "three"):
        ledger.made(name, f"sandbox-{name}")
    ledger.ended("three")
    ledger.abandon()
    path = tmp_path / "state/ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"two"', b"\0\xff") + b'null\n{"ended": 3}\n')
    past = Ledger.open(tmp_path / "state", "fakes/memory").past
    assert past is not None and past.sandboxes == {"one": "sandbox-one"}
    assert past.scratch == ledger.scratch
    assert "1 of 7 lines" in caplog.text


def test_a_state_folder_has_one_server(tmp_path, scratch_of):
    ledger = opened(tmp_path / "state")
    with pytest.raises(ConfigError, match="another server"):
        Ledger.open(tmp_path / "state", "fakes/memory")
    ledger.close()
    Ledger.open(tmp_path / "state", "fakes/memory").close()


def test_history_does_not_grow_without_end(tmp_path, scratch_of):
    ledger = opened(tmp_path / "state")
    ledger.made("kept", "sandbox-0")
    for number in range(10_000):
        ledger.starting(f"id-{number}")
        ledger.ended(f"id-{number}")
    rows = [json.loads(line) for line in (tmp_path / "state/ledger.jsonl").read_text().splitlines()]
    assert len(rows) < 5000
    assert {"made": "kept", "backend": "sandbox-0"} in rows
    ledger.abandon()


def test_a_damaged_ledger_is_no_reason_not_to_start(tmp_path, scratch_of):
    (tmp_path / "state").mkdir()
    (tmp_path / "state/ledger.jsonl").write_text("no json\n")
    ledger = Ledger.open(tmp_path / "state", "fakes/memory")
    assert ledger.past is None
    ledger.close()


# --- whose a process is -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stat", "cwd", "environ", "found"),
    [
        (b"S 1 1 1 0", "/scratch-1/a", b"", True),
        (b"S 1 1 1 0", "/", b"TMPDIR=/scratch-1/a\0", True),
        (b"S 1 1 1 0", "/scratch-1 (deleted)", b"", True),
        (b"S 1 1 1 0", "/scratch-12/a", b"TMPDIR=/scratch-12\0", False),
        (b"S 1 1 1 0", "/", b"NOTE=see /scratch-1/a\0", False),
        (b"S 1 1 1 34816", "/scratch-1/a", b"", False),
        (b"Z 1 1 1 0", "/scratch-1/a", b"", False),
    ],
    ids=["its folder", "its environment", "a folder that is gone", "a longer name", "a mention", "a terminal", "ended"],
)
def test_a_process_belongs_to_the_folder_that_is_its_place(tmp_path, stat, cwd, environ, found):
    process = tmp_path / "7"
    process.mkdir()
    (process / "stat").write_bytes(b"7 (a ) S (name) " + stat + b" 0 0\n")
    (process / "environ").write_bytes(environ)
    (process / "cwd").symlink_to(cwd)
    (process / "root").symlink_to("/")
    assert orphans.belongs(process, Path("/scratch-1")) is found


def test_a_process_that_has_ended_belongs_to_nobody(tmp_path):
    assert not orphans.belongs(tmp_path / "8", tmp_path)
