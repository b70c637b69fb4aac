"""Sessions, the way out, and processes that are stopped: what an agent offers beside commands, with a small agent."""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from composer_core.errors import BackendError
from composer_envkit import Network, Patience
from composer_envkit.agent import processes, relay, sessions
from composer_envkit.agent.files import Refused
from composer_envkit.agent.sessions import Sessions
from composer_envkit.agent.streams import Stream


class Process:
    """A session's shell as an agent keeps it."""

    def __init__(self, words, given):
        self.out, self.err = Stream(0), Stream(0)
        self.deadline, self.late = 0.0, False
        streams = {"stdin": given, "stdout": self.out.theirs, "stderr": self.err.theirs}
        self.run = subprocess.Popen(words, start_new_session=True, env={"PATH": os.environ["PATH"]}, **streams)
        for stream in (self.out, self.err):
            os.close(stream.theirs)

    def kill(self):
        with suppress(ProcessLookupError):
            os.killpg(self.run.pid, signal.SIGKILL)

    def ran_out_of_memory(self):
        return False


class Agent:
    """Runs the sessions of one sandbox until what was asked is answered."""

    def __init__(self, words=sessions.WORDS):
        self.words, self.shells, self.answers, self.number = words, {}, {}, 0
        self.sessions = Sessions(self.begin, lambda number, header, data: self.answers.update({number: (header, data)}))

    def begin(self, shell, request):
        process = Process(self.words, shell.theirs)
        self.shells[shell] = process
        return process

    def ask(self, *argv, name="s", timeout_s=10.0, cap=1000):
        self.number += 1
        request = {"n": self.number, "name": name, "argv": argv, "timeout_s": timeout_s, "output_bytes": cap}
        self.sessions.ask(request)
        return self.number

    def answer(self, number):
        end = time.monotonic() + 15
        while number not in self.answers and time.monotonic() < end:
            self.step()
        return self.answers.pop(number)

    def step(self):
        with selectors.DefaultSelector() as selector:
            for shell, process in self.shells.items():
                for source in (shell.fd, process.out.fd, process.err.fd):
                    selector.register(source, selectors.EVENT_READ)
            selector.select(0.02)
        for shell, process in list(self.shells.items()):
            for stream in (process.out, process.err):
                stream.drain()
            shell.heard()
            if process.deadline <= time.monotonic():
                process.late = True
                process.kill()
            if process.run.poll() is not None:
                del self.shells[shell]
                code = process.run.returncode
                end = {"status": "timeout" if process.late else "signaled" if code < 0 else "exited", "exit_code": code}
                shell.ended({**end, "split": 0}, b"")
                for stream in (process.out, process.err):
                    stream.close()

    def said(self, *argv, **options):
        return self.answer(self.ask(*argv, **options))

    def close(self):
        self.sessions.close()
        for process in self.shells.values():
            process.kill()
        while self.shells:
            self.step()


@pytest.fixture(params=[sessions.WORDS, ("dash",)], ids=["bash", "dash"])
def agent(request):
    made = Agent(request.param)
    yield made
    made.close()


def test_a_shell_of_any_kind_keeps_what_it_is_told_and_reports_how_it_ended(agent):
    agent.said("eval", "kept=3; show() { echo $kept; }; cd /")
    header, data = agent.said("eval", "show; pwd; (exit 9)")
    assert (header["exit_code"], header["restarted"], data) == (9, False, b"3\n/\n")
    assert agent.said("no-such-command")[0]["exit_code"] == 127
    assert agent.said("eval", "if")[0]["exit_code"] == 2, "a mistake does not end it"
    header, _ = agent.said("eval", "exit 4")
    assert (header["exit_code"], header["restarted"]) == (4, True)
    header, data = agent.said("eval", "echo $kept")
    assert (header["restarted"], data) == (False, b"\n")


def test_programs_hold_nothing_to_answer_with_and_cannot_open_it_again(agent):
    look = 'for fd in /proc/$PPID/fd/*; do (printf "\\nx 0\\n" > $fd) 2>/dev/null; done; ls -l /proc/self/fd'
    header, data = agent.said("sh", "-c", look, cap=5000)
    assert b"socket" not in data and b"/dev/null" in data
    assert header["status"] == "exited" and not header["restarted"]


def test_a_shell_that_reads_no_more_is_ended_and_the_agent_waits_for_nobody():
    agent = Agent(("sh", "-c", "sleep 60"))
    started = time.monotonic()
    big = "x" * (sessions.TEXT_BYTES - 200)
    numbers = [agent.ask("echo", big, timeout_s=1) for _ in range(3)]
    assert time.monotonic() - started < 1
    assert [agent.answer(number)[0]["status"] for number in numbers] == ["timeout"] * 3
    agent.close()


def test_who_waits_for_a_session_that_ends_goes_on_in_a_new_one(agent):
    first, second = agent.ask("eval", "kill -9 $$"), agent.ask("eval", "echo $kept; kept=1")
    assert agent.answer(first)[0]["restarted"]
    header, data = agent.answer(second)
    assert (header["restarted"], data) == (False, b"\n"), "which the first was told"


def test_a_command_that_nobody_waits_for_any_more_ends_its_shell_and_who_comes_next_is_told(agent):
    agent.said("eval", "kept=3")
    given_up, dropped, next_one = agent.ask("sleep", "60"), agent.ask("eval", "kept=4"), agent.ask("eval", "echo $kept")
    agent.sessions.give_up(dropped)
    agent.sessions.give_up(given_up)
    header, data = agent.answer(next_one)
    assert (header["restarted"], data) == (True, b"\n") and dropped not in agent.answers


def test_what_is_disowned_goes_on_and_answers_nobody_and_a_shell_it_ends_is_told_of(agent):
    agent.said("eval", "kept=3")
    first, second = agent.ask("sleep", "0.2"), agent.ask("eval", "kept=4")
    agent.sessions.disown()
    header, data = agent.said("eval", "echo $kept")
    assert (header["restarted"], data) == (False, b"4\n") and not {first, second} & set(agent.answers)
    agent.ask("eval", "kill -9 $$")
    agent.sessions.disown()
    header, data = agent.said("eval", "echo $kept")
    assert (header["restarted"], data) == (True, b"\n"), "which nobody was told before"


def test_sessions_and_their_commands_are_bounded(agent):
    for number in range(sessions.MOST):
        agent.said("true", name=f"s{number}")
    with pytest.raises(Refused, match="`exit` in one of them makes room") as refused:
        agent.ask("true", name="more")
    assert refused.value.kind == "quota"
    agent.said("exit", name="s1")
    assert agent.said("true", name="more")[0]["exit_code"] == 0
    with pytest.raises(Refused):
        agent.ask("echo", "x" * sessions.TEXT_BYTES, name="s0")
    assert agent.said("echo", "x" * 60_000, name="s0", cap=100)[0]["stdout_bytes"] == 60_001


# --- the way out --------------------------------------------------------------------------------------------------


class Line:
    """An agent with a relay, asked in this process."""

    def __init__(self):
        self.futures, self.number, self.asked = {}, 0, []
        self.relay = relay.Relay(lambda number, header, data: self.futures.pop(number).set_result((header, data)))
        asyncio.get_running_loop().add_reader(self.relay.fileno(), self.relay.step)

    async def ask(self, op, data=b"", **fields):
        if fields["act"] == "listen":
            self.relay.listen()
            return {}, b""
        self.number += 1
        future = self.futures[self.number] = asyncio.get_running_loop().create_future()
        self.relay.ask({"n": self.number, **fields}, data)
        return await future

    def close(self):
        asyncio.get_running_loop().remove_reader(self.relay.fileno())
        self.relay.close()


@pytest.fixture
def port(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        found = free.getsockname()[1]
    for module in ("agent.relay", "networks"):
        monkeypatch.setattr(f"composer_envkit.{module}.PORT", found)
    return found


def test_bytes_reach_an_allowed_host_and_come_back_however_many_there_are(port):
    size = 3_000_000

    async def act():
        async def echo(reader, writer):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
            writer.close()

        line = Line()
        network = Network(line.ask)
        assert network.variables == {}
        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            at = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            await network.allow([at])
            assert network.variables["HTTPS_PROXY"] == f"http://127.0.0.1:{port}"

            async def one():
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(f"CONNECT {at} HTTP/1.1\r\n\r\n".encode())
                assert b" 200 " in await reader.readuntil(b"\r\n\r\n")

                async def send():
                    writer.write(b"y" * size)
                    await writer.drain()
                    writer.write_eof()

                sending = asyncio.ensure_future(send())
                found = await reader.read(-1)
                await sending
                writer.close()
                return len(found)

            assert await asyncio.gather(*(one() for _ in range(5))) == [size] * 5
            while line.relay._peers:  # what is over is closed in the sandbox too
                await asyncio.sleep(0.01)
            await network.allow([])
            assert network.variables == {}
        line.close()
        await network.close()

    asyncio.run(asyncio.wait_for(act(), 40))


def test_more_connections_than_are_served_at_once_wait_their_turn(port, monkeypatch):
    monkeypatch.setattr("composer_envkit.networks.MOST", 2)

    async def act():
        line = Line()
        network = Network(line.ask)
        await network.allow(["example.com"])

        async def refused():
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"CONNECT other.example:1 HTTP/1.1\r\n\r\n")
            said = await reader.read()
            writer.close()
            return said[9:12]

        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        waits = asyncio.ensure_future(refused())
        await asyncio.sleep(0.2)
        assert not waits.done()
        idle[0][1].close()
        assert await waits == b"403"
        idle[1][1].close()
        assert set(await asyncio.gather(*(refused() for _ in range(20)))) == {b"403"}
        line.close()
        await network.close()

    asyncio.run(asyncio.wait_for(act(), 40))


def test_a_port_that_a_command_holds_is_an_error_and_nothing_is_allowed(port):
    async def act():
        line = Line()
        network = Network(line.ask)
        with socket.create_server(("127.0.0.1", port)), pytest.raises(OSError, match="port"):
            await network.allow(["example.com"])
        assert network.variables == {}
        with pytest.raises(BackendError):
            await network.allow(["http://example.com"])
        await network.allow(["example.com"])
        line.close()
        await network.close()

    asyncio.run(act())


def test_a_port_is_asked_for_once_whoever_comes_meanwhile_or_gives_up(port):
    async def act():
        line = Line()
        waits, listens = asyncio.Event(), []

        async def ask(op, data=b"", **fields):
            if fields["act"] == "listen":
                listens.append(fields)
                await waits.wait()
            return await line.ask(op, data, **fields)

        network = Network(ask)
        gives_up, other = (asyncio.ensure_future(network.allow([name])) for name in ("one.example", "two.example"))
        await asyncio.sleep(0)
        gives_up.cancel()
        await asyncio.wait([gives_up])
        waits.set()
        await other
        assert [rule.host for rule in network.proxy.rules] == ["two.example"] and len(listens) == 1
        await network.allow(["one.example"])
        assert len(listens) == 1
        line.close()
        await network.close()

    asyncio.run(asyncio.wait_for(act(), 20))


@pytest.mark.parametrize(
    ("allow", "own"),
    [
        (["example.com"], "localhost,127.0.0.1,::1"),
        (["127.0.0.1:8080"], "localhost,::1"),
        (["localhost", "127.0.0.1", "[::1]:1"], ""),
    ],
)
def test_no_name_that_is_allowed_is_an_exception_from_the_proxy(allow, own):
    network = Network(lambda *_, **__: None)
    network.proxy.allow(allow)
    assert network.variables["no_proxy"] == network.variables["NO_PROXY"] == own


# --- standing still -----------------------------------------------------------------------------------------------


def test_a_tree_of_processes_is_stopped_whole_and_who_was_stopped_before_stays_so(tmp_path):
    grow = "sleep 60 & kill -STOP $!; while :; do (echo x >> ticks; sleep 0.01); done"
    with subprocess.Popen(["sh", "-c", grow], cwd=tmp_path, start_new_session=True) as run:
        try:
            time.sleep(0.3)
            stop = processes.Stop([run.pid])
            while not stop.step():
                time.sleep(0.001)
            before = (tmp_path / "ticks").read_bytes()
            assert set(processes.descendants(run.pid).values()) == {"T"}
            time.sleep(0.3)
            assert (tmp_path / "ticks").read_bytes() == before
            stop.go_on()
            time.sleep(0.3)
            assert len((tmp_path / "ticks").read_bytes()) > len(before)
            states = processes.descendants(run.pid)
            assert "T" in states.values(), "the job that the command itself had stopped"
        finally:
            os.killpg(run.pid, signal.SIGKILL)


def test_what_does_not_stop_in_time_is_an_error_and_one_that_is_spared_runs_on(monkeypatch):
    with subprocess.Popen(["sh", "-c", "sleep 60 & wait"], start_new_session=True) as run:
        try:
            monkeypatch.setattr(processes, "STOP_S", 0.0)
            monkeypatch.setattr(processes, "descendants", lambda root: {run.pid: "D"})
            stop = processes.Stop([run.pid])
            with pytest.raises(OSError, match="do not stop"):
                stop.step()
            stop.spare(run.pid)
            assert Path(f"/proc/{run.pid}/stat").read_text().split()[2] != "T"
            assert not stop.stopped and stop.step() is True
        finally:
            os.killpg(run.pid, signal.SIGKILL)


def test_patience_does_not_run_out_while_a_sandbox_is_paused():
    async def act():
        patience = Patience()
        loop = asyncio.get_running_loop()
        started = loop.time()
        waiting = asyncio.ensure_future(_wait(patience, 0.3))
        await asyncio.sleep(0.1)
        for _ in range(2):
            patience.pause()
        going = asyncio.ensure_future(patience.going())
        await asyncio.sleep(0.6)
        assert not waiting.done() and not going.done() and patience.paused
        assert patience.time() - started < 0.5, "its clock stands still too"
        for _ in range(2):
            patience.resume()
        await going
        with pytest.raises(TimeoutError):
            await waiting
        assert 0.85 < loop.time() - started < 1.5
        assert loop.time() - patience.time() > 0.55
        async with patience.within(5):
            patience.pause()
        patience.resume()

    asyncio.run(act())


async def _wait(patience, seconds):
    async with patience.within(seconds):
        await asyncio.sleep(60)
