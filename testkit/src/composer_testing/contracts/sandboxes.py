"""What every sandbox provider must do (`protocols.SandboxProvider`). Subclass `SandboxContract`, override `provider`.

What a provider claims by `probe` is tested; what it does not claim must raise `Unsupported` through the framework's
Sandbox. Providers whose commands are real processes subclass `CommandContract`,
those that claim limits `LimitsContract` (both in `sandbox_commands`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from composer_core.errors import (
    PathError,
    PluginFault,
    PrepareError,
    QuotaError,
    SandboxGone,
    TemplateMissing,
    Unsupported,
)
from composer_core.protocols import Created, ExecResult, SandboxProvider, TemplateRef, TemplateSpec
from composer_core.sandbox import CallLimits, Sandbox
from composer_core.trees import Tree

TREE = Tree.of({"a.txt": "one\n", "pkg/b.txt": "two\n", "pkg/deep/c.txt": "three\n"})
SPEC = TemplateSpec(TREE.ref, file_bytes=1 << 20, disk_bytes=8 << 20, memory_bytes=128 << 20, processes=24)
Act = Callable[[Sandbox, SandboxProvider], Awaitable[Any]]


class SandboxContract:
    """Name your subclass `Test...`; each test gets a fresh provider, closed at its end."""

    tested_limits: frozenset[str] = frozenset()

    def provider(self, tmp_path: Path) -> SandboxProvider:
        raise NotImplementedError("return a provider; it is started inside an event loop")

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> Iterator[None]:
        self._tmp_path = tmp_path
        yield

    def act(self, act: Act, limits: CallLimits | None = None) -> Any:
        """Run `act(sandbox, provider)` in one sandbox of `TREE`, and close the provider whatever happens."""

        async def whole() -> Any:
            provider = self.provider(self._tmp_path)
            try:
                return await asyncio.wait_for(act(await new_sandbox(provider, limits), provider), 60)
            finally:
                await provider.close()
                await provider.close()

        return asyncio.run(whole())

    def run(self, *argv: str, **options: Any) -> ExecResult:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> ExecResult:
            return await sandbox.exec(argv, **options)

        result: ExecResult = self.act(act)
        return result

    # --- life cycle ---

    def test_destroy_is_safe_twice_and_a_destroyed_sandbox_is_gone(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            await sandbox.backend.destroy()
            await sandbox.backend.destroy()
            with pytest.raises(SandboxGone):
                await sandbox.read("a.txt")
            with pytest.raises(SandboxGone):
                await sandbox.exec(["true"])
            with pytest.raises(SandboxGone):
                await provider.attach(sandbox.id)

        self.act(act)

    def test_leaving_the_context_destroys_also_after_an_exception_and_a_cancellation(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            for failure in (ValueError, asyncio.CancelledError):
                child = await new_sandbox(provider)
                with pytest.raises(failure):
                    async with child:
                        raise failure
                with pytest.raises(SandboxGone):
                    await provider.attach(child.id)

        self.act(act)

    def test_ids_are_never_reused_and_attach_finds_a_live_one(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            seen = {sandbox.id}
            for _ in range(5):
                child = await new_sandbox(provider)
                await child.destroy()
                assert child.id not in seen
                seen.add(child.id)
            assert await (await provider.attach(sandbox.id)).read("a.txt", 100) == b"one\n"

        self.act(act)

    def test_equal_specs_give_one_template_and_unknown_ones_are_missing(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            first, second = await asyncio.gather(provider.prepare(SPEC, TREE), provider.prepare(SPEC, TREE))
            assert first == second
            with pytest.raises(TemplateMissing):
                await provider.create(TemplateRef("nobody-made-this"))

        self.act(act)

    def test_a_command_that_cannot_be_offered_is_refused_by_prepare(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            with pytest.raises(PrepareError, match="no-such-command"):
                await provider.prepare(TemplateSpec(TREE.ref, ("no-such-command",)), TREE)

        self.act(act)

    def test_siblings_share_no_files(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            children = await provider.create(await provider.prepare(SPEC, TREE), 3)
            backends = [child.backend for child in children if isinstance(child, Created)]
            assert len({backend.id for backend in backends}) == 3
            await backends[0].write("a.txt", b"mine")
            await backends[0].write("new.txt", b"mine")
            assert await backends[1].read("a.txt", 100) == b"one\n"
            assert "new.txt" not in [entry.name for entry in await backends[2].list("")]

        self.act(act)

    # --- commands ---

    @pytest.mark.parametrize("argv, output", [(["echo", "a  b", "*", "$HOME"], b"a  b * $HOME\n"), (["true"], b"")])
    def test_words_of_a_command_reach_it_unexpanded(self, argv: list[str], output: bytes) -> None:
        result = self.run(*argv)
        assert (result.status, result.exit_code, result.stdout, result.signal) == ("exited", 0, output, None)

    def test_an_unknown_command_exits_with_127(self) -> None:
        result = self.run("no-such-command")
        assert (result.status, result.exit_code) == ("exited", 127)
        assert b"no-such-command" in result.stderr

    @pytest.mark.parametrize("data", [b"", b"\xff\0\r\n\xc3", "žluťoučký".encode(), b"x" * 300_000])
    def test_input_and_output_are_bytes(self, data: bytes) -> None:
        assert self.run("cat", stdin=data).stdout == data

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

    @pytest.mark.parametrize(
        "path", ["plain", "new/folders/file", "with space", "-dash", "new\nline", "ünï", "pkg/../up", "./dot//slashes"]
    )
    @pytest.mark.parametrize("data", [b"", b"\0\xff\r\n", b"y" * 500_000], ids=["empty", "binary", "large"])
    def test_what_is_written_is_read_and_listed(self, path: str, data: bytes) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            await sandbox.write(path, b"something longer that is replaced" * 10)
            await sandbox.write(path, data)
            assert await sandbox.read(path) == data
            parent, _, name = path.rpartition("/")
            sizes = {entry.name: (entry.kind, entry.size_bytes) for entry in await sandbox.list(parent)}
            assert sizes[name] == ("file", len(data))

        self.act(act)

    @pytest.mark.parametrize("path", ["/etc/passwd", "../x", "pkg/../../x", "missing", "pkg", "", "a.txt/x", "a\0b"])
    def test_paths_that_name_no_file_of_the_workspace_are_path_errors(self, path: str) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            with pytest.raises(PathError):
                await sandbox.read(path)
            if path != "missing":
                with pytest.raises(PathError):
                    await sandbox.write(path, b"x")
            if path not in ("pkg", ""):
                with pytest.raises(PathError):
                    await sandbox.list(path)

        self.act(act)

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

    # --- forks and snapshots ---

    def test_forks_start_equal_and_diverge(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            if "sandbox.forks" not in await provider.probe():
                with pytest.raises(Unsupported):
                    await sandbox.fork(2)
                return
            await sandbox.write("a.txt", b"parent")
            await sandbox.exec(["rm", "-f", "pkg/b.txt"])
            children = await sandbox.fork(8)
            assert len({child.id for child in children if isinstance(child, Sandbox)}) == 8
            first, second = children[0], children[1]
            assert isinstance(first, Sandbox) and isinstance(second, Sandbox)
            await first.write("a.txt", b"child")
            assert (await second.read("a.txt"), await sandbox.read("a.txt")) == (b"parent", b"parent")
            assert (await first.patch()).deletes == ("pkg/b.txt",)
            with pytest.raises(PathError):
                await second.read("pkg/b.txt")

        self.act(act)

    def test_forks_of_forks_keep_the_whole_history(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            if "sandbox.forks" not in await provider.probe():
                with pytest.raises(Unsupported):
                    await sandbox.fork(1)
                return
            for depth in range(20):
                await sandbox.write(f"at-{depth}", b"x")
                (child,) = await sandbox.fork(1)
                assert isinstance(child, Sandbox)
                await sandbox.destroy()
                sandbox = child
            assert {file.path for file in (await sandbox.patch()).writes} == {f"at-{depth}" for depth in range(20)}

        self.act(act)

    def test_a_snapshot_outlives_its_source_and_is_restored_twice(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            if "sandbox.snapshots.files" not in await provider.probe():
                with pytest.raises(Unsupported):
                    await sandbox.snapshot()
                return
            await sandbox.write("kept", b"1")
            ref = await sandbox.snapshot()
            await sandbox.write("kept", b"2")
            await sandbox.destroy()
            for _ in range(2):
                (child,) = await provider.create(ref)
                assert isinstance(child, Created)
                assert await child.backend.read("kept", 10) == b"1"

        self.act(act)

    @pytest.mark.parametrize(
        "capability, call",
        [
            ("sandbox.snapshots.full", lambda sandbox: sandbox.full_snapshot()),
            ("sandbox.sessions", lambda sandbox: sandbox.session_exec("main", ["true"])),
            ("sandbox.pauses", lambda sandbox: sandbox.pause()),
            ("sandbox.networks", lambda sandbox: sandbox.set_network(["example.org"])),
            ("sandbox.leases", lambda sandbox: sandbox.renew(10)),
        ],
    )
    def test_an_unclaimed_capability_is_refused(self, capability: str, call: Callable[[Sandbox], Any]) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> None:
            if capability in await provider.probe():
                await call(sandbox)
                return
            with pytest.raises(Unsupported):
                await call(sandbox)

        self.act(act)

    def test_claimed_limits_are_put_to_the_test(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> frozenset[str]:
            return await provider.probe()

        claimed = {name for name in self.act(act) if name.startswith("sandbox.limits.")}
        assert claimed <= self.tested_limits, "subclass LimitsContract as well"


async def new_sandbox(provider: SandboxProvider, limits: CallLimits | None = None) -> Sandbox:
    (child,) = await provider.create(await provider.prepare(SPEC, TREE))
    if not isinstance(child, Created):
        raise PluginFault(child.error, kind="sandboxes", plugin="under test")
    return Sandbox(child.backend, "under/test", TREE, limits)
