"""The part of the sandbox contract that needs real processes: `sh` and coreutils."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

import pytest

from composer_core.errors import PathError, SandboxGone
from composer_core.protocols import ExecResult, SandboxProvider
from composer_core.sandbox import CallLimits, Sandbox
from composer_testing.contracts.sandbox_optional import OptionalContract
from composer_testing.contracts.sandboxes import new_sandbox
from composer_testing.sandbox_claims import TREE, forked, restored, until


class CommandContract(OptionalContract):
    """For providers whose commands are processes."""

    def test_exit_codes_come_back_as_they_are(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            for code in (0, 1, 2, 126, 127, 129, 137, 255):
                result = await sandbox.exec(["sh", "-c", f"exit {code}"])
                assert (result.status, result.exit_code) == ("exited", code)

        self.act(act)

    def test_a_file_that_is_no_program_exits_with_126(self) -> None:
        assert self.run("./a.txt").exit_code == 126

    def test_death_by_a_signal_is_told_from_an_exit(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            for number in (6, 9, 11, 15):
                result = await sandbox.exec(["sh", "-c", f"kill -{number} $$"])
                assert (result.status, result.exit_code, result.signal) == ("signaled", None, number)

        self.act(act)

    def test_streams_are_kept_apart(self) -> None:
        result = self.run("sh", "-c", "echo out; echo err >&2; printf tail")
        assert (result.stdout, result.stderr) == (b"out\ntail", b"err\n")

    def test_a_timeout_keeps_partial_output_and_the_sandbox_lives_on(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            result = await sandbox.exec(["sh", "-c", "echo first; sleep 60"], timeout_s=1.5)
            assert (result.status, result.exit_code, result.stdout) == ("timeout", None, b"first\n")
            assert (await sandbox.exec(["echo", "again"])).stdout == b"again\n"

        self.act(act)

    def test_scripts_of_many_lines_and_odd_ends_give_their_bytes(self) -> None:
        scripts = {
            "cat <<'END'\n$HOME *\nEND\necho after": b"$HOME *\nafter\n",
            "# nothing but words": b"",
            "": b"",
            "printf 'a\\r\\nb'": b"a\r\nb",
            "printf '\\000\\377'; true": b"\0\xff",
            "echo one; # two\n\n\techo 'three  four'": b"one\nthree  four\n",
        }

        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            for script, output in scripts.items():
                result = await sandbox.exec(["sh", "-c", script])
                assert (result.exit_code, result.stdout) == (0, output), script

        self.act(act)

    def test_a_flood_of_output_is_drained_and_counted_to_its_end(self) -> None:
        result = self.run("sh", "-c", "head -c 20000000 /dev/zero; head -c 3000000 /dev/zero >&2", timeout_s=30)
        assert (result.exit_code, result.stdout_bytes, result.stderr_bytes) == (0, 20_000_000, 3_000_000)
        assert len(result.stdout) == len(result.stderr) == CallLimits().output_bytes

    def test_a_timeout_ends_what_left_its_session_where_commands_are_isolated(self) -> None:
        late = "setsid sh -c 'setsid sh -c \"sleep 1; echo late > late\" & sleep 50' & sleep 50"

        async def act(sandbox: Sandbox, provider: SandboxProvider) -> list[str]:
            if "sandbox.isolates" not in await provider.probe():
                return []
            assert (await sandbox.exec(["sh", "-c", late], timeout_s=0.5)).status == "timeout"
            await asyncio.sleep(1.5)
            return [entry.name for entry in await sandbox.list()]

        assert "late" not in self.act(act)

    def test_a_fork_keeps_modes_links_times_and_deletions(self) -> None:
        """Also of a snapshot whose sandbox is gone."""
        change = (
            "rm -r pkg/deep; ln a.txt twin; ln -s a.txt link; chmod 751 pkg; chmod 600 a.txt; touch -d @1115253912 twin"
        )
        look = "stat -c '%n %a %h %s %F' a.txt twin link pkg; stat -c %Y a.txt; cat link; ls pkg"

        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            if not {"sandbox.forks", "sandbox.snapshots.files"} <= await provider.probe():
                return
            assert (await sandbox.exec(["sh", "-c", change])).exit_code == 0
            mine = (await sandbox.exec(["sh", "-c", look])).stdout
            assert b"1115253912" in mine and b"a.txt 600 2" in mine
            (child,) = await forked(sandbox, 1)
            ref = await sandbox.snapshot()
            await sandbox.destroy()
            again = Sandbox(await restored(provider, ref), "under/test", TREE)
            for one in (child, again):
                assert (await one.exec(["sh", "-c", look])).stdout == mine

        self.act(act)

    def test_a_background_child_that_holds_the_output_does_not_hold_the_result(self) -> None:
        result = self.run("sh", "-c", "sleep 60 & echo done", timeout_s=20)
        assert (result.status, result.stdout) == ("exited", b"done\n")

    def test_a_long_command_delays_no_other(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            other = await new_sandbox(provider)
            slow = asyncio.ensure_future(sandbox.exec(["sleep", "50"], timeout_s=55))
            assert (await other.exec(["echo", "quick"])).stdout == b"quick\n"
            assert not slow.done()
            await sandbox.destroy()
            with pytest.raises(SandboxGone):
                await slow

        self.act(act)

    def test_a_command_that_nobody_waits_for_any_more_ends(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            script = "while :; do echo x >> ticks; sleep 0.1; done"
            running = asyncio.ensure_future(sandbox.exec(["sh", "-c", script], timeout_s=50))

            async def ticks() -> int:
                return next((entry.size_bytes for entry in await sandbox.list() if entry.name == "ticks"), 0)

            async def begun() -> bool:
                return await ticks() > 0

            async def over() -> bool:
                before = await ticks()
                await asyncio.sleep(0.5)
                return await ticks() == before

            assert await until(begun)
            running.cancel()
            await asyncio.wait([running])
            assert await until(over), "it goes on"

        self.act(act)

    def test_environment_is_built_from_empty(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COMPOSER_SECRET", "leaked")

        async def act(sandbox: Sandbox, provider: SandboxProvider) -> ExecResult:
            return await sandbox.exec(["sh", "-c", "env"], env={"GIVEN": "1"})

        result: ExecResult = self.act(act, fresh=True)
        names = {line.partition(b"=")[0] for line in result.stdout.splitlines()}
        assert b"GIVEN" in names and {b"PATH", b"HOME", b"LANG"} <= names
        assert names <= {b"PATH", b"HOME", b"LANG", b"TMPDIR", b"PYTHONDONTWRITEBYTECODE", b"GIVEN", b"PWD", b"SHLVL",
                         b"OLDPWD", b"_"}  # fmt: skip

    def test_folders_that_a_command_nests_beyond_reach_hide_no_other_change_and_go_with_the_sandbox(self) -> None:
        """Else a policy could make an attempt void that would have failed."""
        half = "/".join(["n" * 250] * 15)
        long = f"mkdir -p {half} && cd {half} && mkdir -p {half} && touch {half}/file"

        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            assert (await sandbox.exec(["mkdir", "-p", "d/" * 1500])).exit_code == 0
            assert (await sandbox.exec(["sh", "-c", long])).exit_code == 0
            await sandbox.write("a.txt", b"changed")
            assert [file.path for file in (await sandbox.patch()).writes] == ["a.txt"]
            await sandbox.destroy()

        self.act(act)

    def test_rights_that_a_command_takes_from_the_workspace_are_its_own_loss(self) -> None:
        """Else a policy could make an attempt void by `chmod 0 .`."""

        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            assert (await sandbox.exec(["chmod", "-R", "0", "."])).status == "exited"
            calls: tuple[Awaitable[Any], ...] = (sandbox.read("a.txt"), sandbox.list(), sandbox.write("new", b"x"))
            for call in (sandbox.exec(["true"]), *calls):
                with suppress(PathError):
                    await call
            assert {file.path for file in (await sandbox.patch()).writes} <= {"a.txt", "new"}
            await sandbox.destroy()

        self.act(act)

    def test_working_folder_is_the_workspace_or_below(self) -> None:
        assert self.run("sh", "-c", "cat b.txt", cwd="pkg").stdout == b"two\n"
        for wrong in ("/", "..", "missing", "a.txt"):
            with pytest.raises(PathError):
                self.run("sh", "-c", "pwd", cwd=wrong)

    def test_words_that_no_command_can_be_given_are_a_result_and_no_fault(self) -> None:
        """A policy may write anything; a fault would make its episode void, to be tried again."""

        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            for word in ("a\0b", "half\ud800", "x" * 3_000_000):
                result = await sandbox.exec(["echo", word])
                assert (result.status, result.exit_code) == ("exited", 126), word[:10]

        self.act(act)

    def test_what_a_command_puts_in_the_way_is_a_path_error(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            outside = self._tmp_path / "outside"
            outside.mkdir()
            (outside / "secret").write_text("secret")
            await sandbox.exec(["sh", "-c", f"ln -s circle circle; ln -s {outside} out; mkfifo pipe"])
            for path in ("circle", "out/secret", "pipe", "n" * 300, "half\ud800"):
                with pytest.raises(PathError):
                    await sandbox.read(path)
            for path in ("circle", "out/secret", "out/new", "pipe", "n" * 300, "half\ud800"):
                with pytest.raises(PathError):
                    await sandbox.write(path, b"mine")
            with pytest.raises(PathError):
                await sandbox.list("out")
            assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("secret", "secret")]
            assert not await sandbox.patch()

        self.act(act)

    def test_a_name_that_is_no_text_is_listed_and_no_part_of_the_patch(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            await sandbox.exec(["sh", "-c", r'echo x > "$(printf "odd\377")"; echo y > even'])
            (odd,) = [entry for entry in await sandbox.list() if entry.name.startswith("odd")]
            odd.name.encode()
            assert [file.path for file in (await sandbox.patch()).writes] == ["even"]

        self.act(act)
