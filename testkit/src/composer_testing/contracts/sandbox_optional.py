"""The part of the sandbox contract about what a provider may offer beside: sessions, pauses, networks.

A case is tried where the record declares what it is about (and where `probe` finds it, for what machines may lack).
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

from composer_core.errors import SandboxGone
from composer_core.protocols import ExecResult, Forks, SandboxProvider
from composer_core.sandbox import CallLimits, Sandbox
from composer_testing.contracts.sandboxes import SandboxContract
from composer_testing.sandbox_claims import forked, until
from composer_testing.sandbox_suite import Act

FORGE = """
printf '\\n0123456789abcdef0123456789abcdef 0\\n'
for n in 0 1 3 4 5 6 7 8 9; do eval "printf 'x 0\\n\\n 0\\n' >&$n"; done 2>/dev/null
sh -c 'for n in 0 1 3 4 5 6 7 8 9 10 11 12 255; do printf "x 0\\n" > /proc/$PPID/fd/$n; done' 2>/dev/null </dev/null
sleep 0.3; echo end; (exit 7)
"""
TICKS = "for i in 1 2 3 4 5 6; do date +%s.%N; : > ticking-$0-$i; sleep 0.3; done"
HELD = """
proxy=${http_proxy#http://}; proxy=${proxy%/}; at=${proxy:-$1}
exec 3<>/dev/tcp/${at%:*}/${at##*:}
if [ -n "$proxy" ]; then
  printf 'CONNECT %s HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n' "$1" >&3; read -t 10 -r line <&3; read -t 10 -r line <&3
fi
read -t 10 -r line <&3; echo "$line"; read -t 20 -r line <&3; echo "ended $?"
"""
"""Connects, directly or through a proxy, says what the server says first, and how waiting for more ended."""


class OptionalContract(SandboxContract):
    """`CommandContract` holds these cases too."""

    def act_if(self, claim: str, act: Act, limits: CallLimits | None = None) -> None:
        async def whole(sandbox: Sandbox, provider: SandboxProvider) -> None:
            if claim not in self.may_lack or claim in await provider.probe():
                await act(sandbox, provider)

        if claim in self.spec.capabilities:
            self.act(whole, limits)

    # --- sessions ---

    def test_a_session_keeps_folder_variables_functions_options_and_jobs(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            await said(
                sandbox, "cd pkg; mine=$PWD; export given=3; twice() { echo $1$1; }; umask 77; sleep 60 & job=$!"
            )
            shown = await said(
                sandbox, "twice $given; kill -0 $job && echo runs; umask; test $PWD = $mine && cat b.txt"
            )
            assert shown.stdout.split() == [b"33", b"runs", b"0077", b"two"], shown
            told = await sandbox.session_exec("s", ["printf", "%s|", "a  b", "*", "$given", "'\"\\", ""])
            assert told.stdout == b"a  b|*|$given|'\"\\||", "words reach it as they are"
            assert (await said(sandbox, "cat; exit_code() { return 9; }; exit_code")).exit_code == 9

        self.act_if("sandbox.sessions", act)

    def test_sessions_are_apart_and_forks_have_none_of_them(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            for name in ("one", "two"):
                await said(sandbox, f"me={name}; cd pkg", name=name)
            assert (await said(sandbox, "echo $me", name="one")).stdout == b"one\n"
            assert (await said(sandbox, "pwd; echo $me", name="three")).stdout != b""
            waits = asyncio.ensure_future(said(sandbox, "sleep 3; echo slow", name="one"))
            assert (await said(sandbox, "echo quick", name="two")).stdout == b"quick\n"
            assert not waits.done()
            if isinstance(sandbox.backend, Forks):
                (child,) = await forked(sandbox, 1)
                found = await said(child, "echo $me; cat a.txt", name="one")
                assert (found.stdout, found.restarted) == (b"\none\n", False)
            assert (await waits).stdout == b"slow\n", "a session outlives a fork of its sandbox"
            line = await asyncio.gather(*(said(sandbox, f"n=${{n}}{n}; echo $n", name="line") for n in range(4)))
            assert [one.stdout for one in line] == [b"0\n", b"01\n", b"012\n", b"0123\n"], "one after the other"

        self.act_if("sandbox.sessions", act)

    def test_nothing_that_a_session_prints_is_taken_for_its_end(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            found = await said(sandbox, FORGE)
            assert (found.status, found.exit_code, found.restarted) == ("exited", 7, False), found
            assert found.stdout.endswith(b"end\n")
            assert (await said(sandbox, "echo $?")).stdout == b"0\n", "and what comes next is not answered before"

        self.act_if("sandbox.sessions", act)

    def test_a_session_outlives_mistakes_and_floods(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            await said(sandbox, "kept=3")
            for wrong in ("if", "echo 'open", "export 1=x", ". ./missing", "no-such-command"):
                found = await said(sandbox, wrong)
                assert found.status == "exited" and found.exit_code and not found.restarted, (wrong, found)
            found = await said(sandbox, "head -c 3000000 /dev/zero; head -c 2000000 /dev/zero >&2")
            assert (len(found.stdout), found.stdout_bytes, found.stderr_bytes) == (1000, 3_000_000, 2_000_000)
            found = await said(sandbox, "(while :; do echo y; done) & sleep 0.3; echo $kept >&2")
            assert (found.exit_code, found.stdout[:4], found.stderr) == (0, b"y\ny\n", b"3\n")
            assert len(found.stdout) <= 1000
            found = await said(sandbox, "kill $!; wait 2>/dev/null; echo over >&2")
            assert found.stderr.endswith(b"over\n") and not found.restarted

        self.act_if("sandbox.sessions", act, CallLimits(output_bytes=1000))

    def test_a_session_that_ends_is_told_of_and_opened_anew(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            await said(sandbox, "kept=3")
            found = await said(sandbox, "echo first; sleep 60", timeout_s=2)
            assert (found.status, found.stdout, found.restarted) == ("timeout", b"first\n", True)
            found = await said(sandbox, "echo $kept; kept=4")
            assert (found.stdout, found.restarted) == (b"\n", False), "that was told before"
            found = await said(sandbox, "kill -9 $$")
            assert (found.status, found.signal, found.restarted) == ("signaled", 9, True)
            await said(sandbox, "kept=5; (sleep 0.3; kill -9 $$) &")
            await asyncio.sleep(1.5)
            found = await said(sandbox, "echo $kept")
            assert (found.stdout, found.restarted) == (b"\n", True), "it ended between two commands"
            assert (await sandbox.exec(["echo", "alive"])).stdout == b"alive\n"

        self.act_if("sandbox.sessions", act)

    def test_a_session_whose_command_nobody_waits_for_any_more_ends_with_it(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            await said(sandbox, "kept=3")
            running = asyncio.ensure_future(said(sandbox, "sleep 50", timeout_s=55))
            await asyncio.sleep(0.5)
            running.cancel()
            await asyncio.wait([running])
            found = await said(sandbox, "echo $kept")
            assert (found.stdout, found.restarted) == (b"\n", True), found

        self.act_if("sandbox.sessions", act)

    def test_a_destroyed_sandbox_has_no_session_left(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            running = [asyncio.ensure_future(said(sandbox, "sleep 50", timeout_s=55)) for _ in range(2)]
            await asyncio.sleep(0.5)
            await sandbox.destroy()
            found = await asyncio.gather(*running, return_exceptions=True)
            assert all(isinstance(one, SandboxGone) for one in found), found

        self.act_if("sandbox.sessions", act)

    # --- pauses ---

    def test_nothing_runs_in_a_paused_sandbox_and_its_time_stands_still(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            running = [asyncio.ensure_future(sandbox.exec(["sh", "-c", TICKS, "sh"], timeout_s=40))]
            if "sandbox.sessions" in self.spec.capabilities:
                running.append(asyncio.ensure_future(said(sandbox, f"set -- sh; {TICKS}", timeout_s=40)))

            async def ticking() -> bool:
                return sum(entry.name.startswith("ticking") for entry in await sandbox.list()) > len(running)

            assert await until(ticking)
            for _ in range(2):
                await sandbox.pause()
            read = asyncio.ensure_future(sandbox.read("a.txt"))
            await asyncio.sleep(4)
            for _ in range(2):
                await sandbox.resume()
            for result in await asyncio.gather(*running):
                times = [float(word) for word in result.stdout.split()]
                gaps = sorted(after - before for before, after in pairwise(times))
                assert (result.status, len(times)) == ("exited", 6), result
                assert gaps[-1] > 3.9 > gaps[-2], f"between ticks: {gaps}"
                assert result.wall_s < times[-1] - times[0] - 1, "the time in which it was paused does not count"
            assert await read == b"one\n"

        self.act_if("sandbox.pauses", act)

    def test_a_paused_sandbox_can_be_destroyed(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            running = asyncio.ensure_future(sandbox.exec(["sleep", "50"], timeout_s=55))
            await asyncio.sleep(0.5)
            await sandbox.pause()
            waits = asyncio.ensure_future(sandbox.exec(["true"]))
            await asyncio.sleep(0.1)
            await sandbox.destroy()
            found = await asyncio.gather(running, waits, return_exceptions=True)
            assert all(isinstance(one, SandboxGone) for one in found), found

        self.act_if("sandbox.pauses", act)

    # --- networks ---

    def test_a_connection_ends_when_its_host_is_allowed_no_more(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            open_connections: list[asyncio.StreamWriter] = []

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                open_connections.append(writer)
                writer.write(b"hello\n")
                await reader.read()
                writer.close()

            async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
                at = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
                await sandbox.set_network([at])
                held = asyncio.ensure_future(sandbox.exec(["bash", "-c", HELD, "bash", at], timeout_s=50))
                while not open_connections and not held.done():
                    await asyncio.sleep(0.05)
                await asyncio.sleep(1)
                await sandbox.set_network([at, "example.com"])
                await asyncio.sleep(1)
                assert not held.done(), f"a connection ended whose host is still allowed: {held.result()}"
                await sandbox.set_network(["example.com"])
                result: ExecResult = await held
            assert result.stdout == b"hello\nended 1\n", result

        self.act_if("sandbox.networks", act)

    def test_variables_name_a_proxy_only_while_something_is_allowed(self) -> None:
        """And what is allowed is no exception from it, or no ordinary client would reach it."""

        async def act(sandbox: Sandbox, provider: SandboxProvider) -> Any:
            async def proxies() -> dict[str, str]:
                told = (await sandbox.exec(["sh", "-c", "env | grep -i _proxy"])).stdout.decode()
                return dict(line.split("=", 1) for line in told.splitlines())

            assert await proxies() == {}
            await sandbox.set_network(["127.0.0.1:9"])
            named = await proxies()
            assert not named or {"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"} <= set(named)
            for name in ("no_proxy", "NO_PROXY") if named else ():
                assert set(named[name].split(",")) == {"localhost", "::1"}, "these are the sandbox's own"
            await sandbox.set_network([])
            assert await proxies() == {}

        self.act_if("sandbox.networks", act)

    def test_localhost_is_the_sandbox_itself(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            result = await sandbox.exec(["bash", "-c", ": < /dev/tcp/localhost/9"])
            assert b"refused" in result.stderr, result

        self.act_if("sandbox.networks", act)


async def said(sandbox: Sandbox, text: str, *, name: str = "s", timeout_s: float = 20) -> ExecResult:
    return await sandbox.session_exec(name, ["eval", text], timeout_s=timeout_s)
