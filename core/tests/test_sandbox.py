"""The framework's Sandbox and Sandboxes, on the in-memory provider."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from attrs import evolve

from composer_core.capabilities import CAPABILITIES
from composer_core.errors import (
    BackendError,
    NoCapacity,
    PathError,
    PluginFault,
    PrepareError,
    SandboxGone,
    Unsupported,
)
from composer_core.protocols import Changes, ExecRequest, ExecResult, Forks, TemplateRef, TemplateSpec
from composer_core.sandbox import TRIES, CallLimits, Sandbox, Sandboxes
from composer_core.trees import File, Patch, Tree, TreeRef
from composer_core.types import TaskView
from composer_testing.fakes.sandbox import MemoryProvider, MemorySandbox

TREE = Tree.of({"a.txt": "one\n", "pkg/b.txt": "two\n"})
VIEW = TaskView("task", "prompt", TREE.ref)


def node(provider: MemoryProvider | None = None) -> tuple[MemoryProvider, Sandboxes]:
    provider = provider or MemoryProvider()
    return provider, Sandboxes(provider, "fakes/memory", lambda ref: TREE)


class Bare:
    """A backend with nothing optional."""

    def __init__(self, inner: MemorySandbox) -> None:
        self.id = inner.id
        self.exec, self.read, self.write = inner.exec, inner.read, inner.write
        self.list, self.destroy = inner.list, inner.destroy


async def bare() -> Sandbox:
    full = await node()[1].create(VIEW)
    assert isinstance(full.backend, MemorySandbox)
    backend = Bare(full.backend)
    assert not isinstance(backend, Forks | Changes)
    return Sandbox(backend, "fakes/bare", TREE, full.limits)


def test_a_patch_by_listing_equals_the_patch_by_changes() -> None:
    async def whole() -> None:
        plain = await bare()
        await plain.write("a.txt", b"changed")
        await plain.write("new/file", b"new")
        await plain.exec(["rm", "-f", "pkg/b.txt"])
        full = Sandbox((await node()[1].create(VIEW)).backend, "fakes/memory", TREE)
        await full.apply(await plain.patch())
        assert await full.patch() == await plain.patch()
        assert [file.path for file in (await plain.patch()).writes] == ["a.txt", "new/file"]

    asyncio.run(whole())


def test_what_an_agent_commits_is_no_part_of_the_patch() -> None:
    async def whole(sandbox: Sandbox) -> None:
        sandbox.limits = CallLimits(patch_file_bytes=1000)
        for path in ("a.txt", ".git/hooks/pre-commit", "pkg/.gitignore"):
            await sandbox.write(path, b"changed")
        await sandbox.write(".git/objects/pack/large", b"x" * 2000)
        patch = await sandbox.patch()
        assert (patch.touched(), patch.skipped) == (["a.txt", "pkg/.gitignore"], ())

    async def both() -> None:
        await whole(await bare())
        await whole(await node()[1].create(VIEW))

    asyncio.run(both())


@pytest.mark.parametrize("command", ["rm", "chmod"])
def test_a_patch_that_a_command_cannot_lay_down_is_an_error(command: str) -> None:
    refuses = {command: lambda files, argv, stdin: ExecResult("exited", 1, stderr=b"not permitted\n")}
    patch = Patch((File("run.sh", b"", executable=True),), deletes=("a.txt",))

    async def whole() -> None:
        sandbox = await node(MemoryProvider(refuses))[1].create(VIEW)
        with pytest.raises(BackendError, match=f"{command} failed") as caught:
            await sandbox.apply(patch)
        assert caught.value.fields["found"] == "not permitted"

    asyncio.run(whole())


def test_a_file_too_large_for_a_patch_is_named_and_is_no_deletion() -> None:
    async def whole(sandbox: Sandbox) -> None:
        await sandbox.write("a.txt", b"x" * 2000)
        sandbox.limits = CallLimits(patch_file_bytes=1000)
        patch = await sandbox.patch()
        assert (patch.writes, patch.deletes, patch.skipped) == ((), (), ("a.txt",))

    async def both() -> None:
        await whole(await bare())
        await whole(await node()[1].create(VIEW))

    asyncio.run(both())


@pytest.mark.parametrize(
    ("call", "capability", "missing"),
    [
        (lambda sandbox: sandbox.fork(1), "sandbox.forks", "snapshot(), fork()"),
        (lambda sandbox: sandbox.snapshot(), "sandbox.snapshots.files", "snapshot(), fork()"),
        (lambda sandbox: sandbox.full_snapshot(), "sandbox.snapshots.full", "full_snapshot()"),
        (lambda sandbox: sandbox.session_exec("main", ["true"]), "sandbox.sessions", "session_exec()"),
        (lambda sandbox: sandbox.pause(), "sandbox.pauses", "pause(), resume()"),
        (lambda sandbox: sandbox.resume(), "sandbox.pauses", "pause(), resume()"),
        (lambda sandbox: sandbox.set_network([]), "sandbox.networks", "set_network()"),
        (lambda sandbox: sandbox.renew(1.0), "sandbox.leases", "renew()"),
    ],
)
def test_what_a_backend_lacks_is_named_with_what_to_write_and_declare(call: Any, capability: str, missing: str) -> None:
    async def whole() -> None:
        with pytest.raises(Unsupported) as caught:
            await call(await bare())
        text = str(caught.value)
        assert f"sandboxes of fakes/bare do not offer '{capability}'" in text
        assert CAPABILITIES[capability] in text
        assert f"a Bare without {missing}" in text
        assert f"declare '{capability}' in the record and in probe()" in text

    asyncio.run(whole())


def test_a_backend_with_half_of_a_protocol_is_told_which_half_is_missing() -> None:
    async def whole() -> None:
        sandbox = await bare()
        sandbox.backend.fork = lambda n: n  # type: ignore[attr-defined]
        with pytest.raises(Unsupported, match=r"a Bare without snapshot\(\)"):
            await sandbox.fork(1)

    asyncio.run(whole())


class Trusting(Bare):
    """Notes what it is asked for, and believes it."""

    def __init__(self) -> None:
        self.id, self.asked = "trusting", list[str]()

    async def exec(self, request: ExecRequest) -> ExecResult:
        self.asked.append(request.cwd)
        return ExecResult("exited", 0)

    async def read(self, path: str, limit_bytes: int) -> bytes:
        self.asked.append(path)
        return b""

    async def write(self, path: str, data: bytes) -> None:
        self.asked.append(path)

    async def list(self, path: str) -> list[Any]:
        self.asked.append(path)
        return []


CALLS: list[Any] = [
    lambda sandbox, path: sandbox.read(path),
    lambda sandbox, path: sandbox.write(path, b""),
    lambda sandbox, path: sandbox.list(path),
    lambda sandbox, path: sandbox.exec(["true"], cwd=path),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/etc/passwd", "relative to the workspace"),
        ("/", "relative to the workspace"),
        ("..", "leads out"),
        ("pkg/../../x", "leads out"),
        ("a\0b", "null"),
        ("half\ud800", "half a character"),
        ("n" * 256, "too long"),
        ("ü" * 128, "too long"),
        ("n/" * 2049, "too long"),
    ],
)
def test_text_that_names_nothing_in_the_workspace_reaches_no_backend(call: Any, path: str, reason: str) -> None:
    async def whole() -> None:
        backend = Trusting()
        with pytest.raises(PathError, match=reason) as caught:
            await call(Sandbox(backend, "fakes/trusting", TREE), path)
        assert not backend.asked
        assert len(str(caught.value)) < 400 and str(caught.value).encode()

    asyncio.run(whole())


@pytest.mark.parametrize("call", CALLS)
def test_backends_are_given_paths_without_detours(call: Any) -> None:
    async def whole() -> list[str]:
        backend = Trusting()
        for path in ("./a//b/", "pkg/../up", "n" * 255, ".../..a", " "):
            await call(Sandbox(backend, "fakes/trusting", TREE), path)
        return backend.asked

    assert asyncio.run(whole()) == ["a/b", "up", "n" * 255, ".../..a", " "]


@pytest.mark.parametrize("path", ["", ".", "pkg/.."])
def test_the_workspace_itself_is_a_folder_and_no_file(path: str) -> None:
    async def whole() -> list[str]:
        backend = Trusting()
        sandbox = Sandbox(backend, "fakes/trusting", TREE)
        for call in (sandbox.read(path), sandbox.write(path, b"x")):
            with pytest.raises(PathError, match="the workspace is a folder"):
                await call
        await sandbox.list(path)
        return backend.asked

    assert asyncio.run(whole()) == [""]


def test_a_backend_that_lacks_a_method_is_named_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(MemorySandbox, "list")
    with pytest.raises(BackendError, match="a sandbox of fakes/memory lacks what every one has") as caught:
        provider, sandboxes = node()
        asyncio.run(sandboxes.create(VIEW))
    assert "a MemorySandbox without list" in str(caught.value)
    assert not provider.live, "nobody would ever hold it"


def test_a_backend_that_ignores_the_cap_is_cut_with_true_totals() -> None:
    async def whole() -> ExecResult:
        sandbox = await bare()
        inner = sandbox.backend.exec

        async def talkative(request: Any) -> ExecResult:
            return evolve(await inner(request), stdout=b"x" * 5000, stdout_bytes=0)

        sandbox.backend.exec = talkative  # type: ignore[method-assign]
        sandbox.limits = CallLimits(output_bytes=100)
        return await sandbox.exec(["true"])

    result = asyncio.run(whole())
    assert (len(result.stdout), result.stdout_bytes) == (100, 5000)


def test_a_plain_exception_is_attributed_once_and_a_typed_one_passes() -> None:
    def broken(files: Any, argv: Any, stdin: bytes) -> ExecResult:
        raise ZeroDivisionError("bug")

    async def whole() -> None:
        sandbox = await node(MemoryProvider({"broken": broken}))[1].create(VIEW)
        with pytest.raises(PluginFault, match="ZeroDivisionError") as found:
            await sandbox.exec(["broken"])
        assert (found.value.kind, found.value.plugin) == ("sandboxes", "fakes/memory")
        with pytest.raises(PathError):
            await sandbox.read("../x")

    asyncio.run(whole())


def test_the_context_destroys_once() -> None:
    async def whole() -> None:
        provider, sandboxes = node()
        async with await sandboxes.create(VIEW) as sandbox:
            assert list(provider.live) == [sandbox.id]
            await sandbox.destroy()
        assert not provider.live
        with pytest.raises(SandboxGone):
            await sandbox.read("a.txt")

    asyncio.run(whole())


def test_a_sandbox_that_could_not_be_destroyed_is_tried_again() -> None:
    async def whole() -> None:
        provider, sandboxes = node()
        sandbox = await sandboxes.create(VIEW)
        destroy = sandbox.backend.destroy

        async def fails() -> None:
            sandbox.backend.destroy = destroy  # type: ignore[method-assign]
            raise BackendError("the engine does not answer")

        sandbox.backend.destroy = fails  # type: ignore[method-assign]
        with pytest.raises(BackendError):
            await sandbox.destroy()
        assert provider.live
        await sandbox.destroy()
        assert not provider.live

    asyncio.run(whole())


@pytest.mark.parametrize("argv", ["ls", (), [], ["sh", 1], b"ls"])
def test_what_is_no_list_of_words_is_no_command_wherever_it_would_run(argv: Any) -> None:
    with pytest.raises(BackendError, match="non-empty list of words"):
        ExecRequest(argv)
    assert ExecRequest(["ls"]).argv == ("ls",)  # type: ignore[arg-type]


def test_a_text_is_no_file_and_a_fork_has_a_child() -> None:
    async def whole() -> None:
        sandbox = await node()[1].create(VIEW)
        with pytest.raises(BackendError, match="bytes") as caught:
            await sandbox.write("a.txt", "text")  # type: ignore[arg-type]
        assert caught.value.fields["fix"] == "text.encode()"
        for wrong in (0, -1):
            with pytest.raises(BackendError, match="at least one child"):
                await sandbox.fork(wrong)

    asyncio.run(whole())


def test_templates_are_prepared_once_for_concurrent_creates() -> None:
    calls: list[TreeRef] = []

    async def whole() -> None:
        provider = MemoryProvider()
        sandboxes = Sandboxes(provider, "fakes/memory", lambda ref: (calls.append(ref), TREE)[1])
        found = await asyncio.gather(*(sandboxes.create(VIEW) for _ in range(16)))
        assert len({sandbox.id for sandbox in found}) == 16
        assert (provider.prepared, len(calls)) == (1, 1)
        await sandboxes.create(VIEW, extra_needs=("rg",))
        assert provider.prepared == 2

    asyncio.run(whole())


def test_a_failed_preparation_is_not_remembered() -> None:
    async def whole() -> None:
        provider, sandboxes = node()
        spec = TemplateSpec(TREE.ref, ("compiler",))
        with pytest.raises(PrepareError):
            await sandboxes.template(spec)
        provider.commands["compiler"] = provider.commands["true"]
        assert (await sandboxes.template(spec)).id

    asyncio.run(whole())


@pytest.mark.parametrize("failures", range(TRIES))
def test_retryable_failures_are_tried_again(failures: int) -> None:
    async def whole() -> None:
        provider, sandboxes = node()
        provider.failures = failures
        await sandboxes.create(VIEW)
        assert (sandboxes.created, sandboxes.failed) == (1, 0)

    asyncio.run(whole())


def test_failures_are_bounded_typed_and_counted() -> None:
    async def whole() -> None:
        provider, sandboxes = node()
        provider.failures = TRIES
        with pytest.raises(NoCapacity, match="a failure that the test asked for"):
            await sandboxes.create(VIEW)
        assert (sandboxes.created, sandboxes.failed, provider.failures) == (0, 1, 0)

    asyncio.run(whole())


def test_a_template_that_the_provider_forgot_is_prepared_again() -> None:
    async def whole() -> None:
        provider, sandboxes = node()
        await sandboxes.create(VIEW)
        provider._states.clear()
        assert await (await sandboxes.create(VIEW)).read("a.txt") == b"one\n"

    asyncio.run(whole())


def test_a_provider_is_closed_also_where_whoever_closes_it_gives_up() -> None:
    class Stubborn(MemoryProvider):
        async def prepare(self, spec, workspace):
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.05)

    async def whole() -> None:
        provider, sandboxes = node(Stubborn())
        preparing = asyncio.ensure_future(sandboxes.create(VIEW))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(sandboxes.close())
        await asyncio.sleep(0.01)
        closing.cancel()
        await asyncio.gather(closing, preparing, return_exceptions=True)
        with pytest.raises(SandboxGone, match="closed"):
            await provider.create(TemplateRef("any"))

    asyncio.run(whole())


def test_stats_name_medians_of_what_was_done() -> None:
    async def whole() -> None:
        sandboxes = node()[1]
        assert set(sandboxes.stats()) == {"sandboxes_created", "sandboxes_failed"}
        sandbox = await sandboxes.create(VIEW)
        await sandbox.exec(["true"])
        await sandbox.fork(2)
        stats = sandboxes.stats()
        assert {"create_p50_ms", "fork_p50_ms", "exec_p50_ms"} < set(stats)
        assert stats["sandboxes_created"] == 1 and all(value >= 0 for value in stats.values())
        await sandboxes.close()
        await sandboxes.close()

    asyncio.run(whole())
