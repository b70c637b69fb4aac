"""What every sandbox provider must do (`protocols.SandboxProvider`). Subclass `SandboxContract` and name the record:

class TestMine(SandboxContract):
    spec = next(iter(composer_sandboxes()))

The record declares what the provider *may* offer, `probe` finds what works on this machine, and what it finds is tried
out (`composer_testing.sandbox_claims`). So `probe` returns nothing that is not declared; what is declared and not found
must be named in `may_lack`, or the record promises what nobody has; and what is not declared must raise `Unsupported`
through the framework's Sandbox, limits apart. Whatever the tests do, closing the provider must leave nothing behind.
Providers whose commands are real processes subclass `CommandContract` (in `sandbox_commands`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from composer_core.capabilities import CAPABILITIES
from composer_core.errors import (
    ComposerError,
    PathError,
    QuotaError,
    Unsupported,
)
from composer_core.protocols import (
    ExecResult,
    SandboxProvider,
)
from composer_core.sandbox import CallLimits, Sandbox
from composer_testing.contracts.sandbox_lives import LifeContract
from composer_testing.sandbox_claims import CLAIMS, SPEC, TREE
from composer_testing.sandbox_suite import new_sandbox

__all__ = ["SandboxContract", "new_sandbox"]


PATHS = ("plain", "new/folders/file", "with space", "-dash", "new\nline", "ünï", "pkg/../up", "./dot//slashes")
NO_FILES = ("/etc/passwd", "../x", "pkg/../../x", "missing", "pkg", "", "a.txt/x", "a\0b")


class SandboxContract(LifeContract):
    """Name your subclass `Test...`; its tests share a provider, which is closed after the last of them."""

    def run(self, *argv: str, **options: Any) -> ExecResult:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> ExecResult:
            return await sandbox.exec(argv, **options)

        result: ExecResult = self.act(act)
        return result

    # --- what it claims ---

    def test_what_is_probed_is_declared_and_what_is_not_probed_is_named(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> frozenset[str]:
            return await provider.probe()

        probed, declared = self.act(act), self.spec.capabilities
        more, less = sorted(probed - declared), sorted(declared - probed - set(self.may_lack))
        assert not more, f"probe() returns {more}; found: not in the record; fix: declare it there"
        assert not less, (
            f"the record declares {less}; found: probe() does not return it; fix: leave it out of the record, or name "
            "it in `may_lack` if machines differ in it and this one does not have it"
        )
        walls = self.spec.isolation
        assert walls != "none" or "sandbox.isolates" not in declared, "isolates is declared; found: isolation='none'"

    @pytest.mark.parametrize("claim", CLAIMS)
    def test_what_is_declared_is_given_and_what_is_given_is_declared(self, claim: str) -> None:
        """Shows nothing for a limit that is not declared, since this machine may have limits of its own, and for what
        the record declares and `probe` does not find here.
        """
        not_tried = claim in self.spec.capabilities or claim.startswith("sandbox.limits.")

        async def act(sandbox: Sandbox, provider: SandboxProvider) -> str:
            offered = claim in await provider.probe()
            if not_tried and not offered:
                return ""
            found = await failure(CLAIMS[claim](sandbox, provider))
            if offered:
                return f"probe() offers {claim}; expected: {CAPABILITIES[claim]}; found: {found}" if found else ""
            if isinstance(found, Unsupported) or (claim == "sandbox.isolates" and found):
                return ""
            return (
                f"{claim} is not declared; expected: Unsupported; found: {found or 'it works'}; "
                "fix: declare it in the record and in probe(), or leave out what it takes"
            )

        wrong = self.act(act)
        assert not wrong, wrong

    # --- commands ---

    def test_words_of_a_command_reach_it_unexpanded(self) -> None:
        result = self.run("echo", "a  b", "*", "$HOME")
        found = result.status, result.exit_code, result.stdout, result.signal
        assert found == ("exited", 0, b"a  b * $HOME\n", None)

    def test_an_unknown_command_exits_with_127(self) -> None:
        result = self.run("no-such-command")
        assert (result.status, result.exit_code) == ("exited", 127)
        assert b"no-such-command" in result.stderr

    def test_input_and_output_are_bytes(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            for data in (b"", b"\xff\0\r\n\xc3", "žluťoučký".encode(), b"x" * 300_000):
                assert (await sandbox.exec(["cat"], stdin=data)).stdout == data

        self.act(act)

    def test_an_empty_command_and_a_string_are_refused(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            wrong: Any
            for wrong in ([], "echo hi"):
                with pytest.raises(Exception, match="list of words"):
                    await sandbox.exec(wrong)

        self.act(act)

    def test_output_is_capped_with_its_true_total(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            await sandbox.write("big", b"x" * 50_000)
            result = await sandbox.exec(["cat", "big"])
            assert (len(result.stdout), result.stdout_bytes) == (1000, 50_000)

        self.act(act, CallLimits(output_bytes=1000))

    # --- files ---

    @pytest.mark.parametrize("data", [b"", b"\0\xff\r\n", b"y" * 500_000], ids=["empty", "binary", "large"])
    def test_what_is_written_is_read_and_listed(self, data: bytes) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            for path in PATHS:
                await sandbox.write(path, b"something longer that is replaced" * 10)
                await sandbox.write(path, data)
                assert await sandbox.read(path) == data, path
                parent, _, name = path.rpartition("/")
                sizes = {entry.name: (entry.kind, entry.size_bytes) for entry in await sandbox.list(parent)}
                assert sizes[name] == ("file", len(data)), path

        self.act(act)

    def test_paths_that_name_no_file_of_the_workspace_are_path_errors(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> list[str]:
            found = []
            for path in NO_FILES:
                found += [f"read({path!r})"] * (await failure(sandbox.read(path), (PathError,)) is None)
                if path != "missing":
                    found += [f"write({path!r})"] * (await failure(sandbox.write(path, b"x"), (PathError,)) is None)
                if path not in ("pkg", ""):
                    found += [f"list({path!r})"] * (await failure(sandbox.list(path), (PathError,)) is None)
            return found

        assert not self.act(act), "expected: PathError"

    def test_listing_tells_files_from_folders(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> list[tuple[str, str, int]]:
            return [(entry.name, entry.kind, entry.size_bytes) for entry in await sandbox.list("pkg")]

        assert self.act(act) == [("b.txt", "file", 4), ("deep", "folder", 0)]

    def test_files_over_the_limits_are_quota_errors(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            with pytest.raises(QuotaError):
                await sandbox.write("big", b"x" * (SPEC.file_bytes + 1))
            with pytest.raises(QuotaError):
                await sandbox.read("a.txt")

        self.act(act, CallLimits(read_bytes=3))

    def test_concurrent_writes_all_arrive(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            await asyncio.gather(*(sandbox.write(f"many/{index}", b"%d" % index) for index in range(40)))
            found = await asyncio.gather(*(sandbox.read(f"many/{index}") for index in range(40)))
            assert found == [b"%d" % index for index in range(40)]

        self.act(act)

    def test_the_patch_is_what_changed(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            assert not await sandbox.patch()
            await sandbox.write("a.txt", b"changed")
            await sandbox.write("new/file", b"new")
            await sandbox.exec(["rm", "-f", "pkg/b.txt"])
            patch = await sandbox.patch()
            assert {file.path: file.data for file in patch.writes} == {"a.txt": b"changed", "new/file": b"new"}
            assert patch.deletes == ("pkg/b.txt",)
            assert await sandbox.tree() == patch.apply(TREE)
            await sandbox.write("a.txt", b"one\n")
            assert "a.txt" not in [file.path for file in (await sandbox.patch()).writes]

        self.act(act)


async def failure(
    probe: Awaitable[Any], kinds: tuple[type[Exception], ...] = (AssertionError, ComposerError)
) -> Exception | None:
    """What a probe complains about: an error of `kinds`, by default whatever a probe may raise."""
    try:
        await probe
    except kinds as error:
        return error
    return None
