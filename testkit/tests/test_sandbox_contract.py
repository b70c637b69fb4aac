"""The sandbox contract catches what claims more than it gives, gives what it does not claim, or leaves something.

Each backend here is a working one with one thing wrong; those with nothing wrong show that the suite asks for no more
than the capability's sentence says.
"""

import asyncio
import importlib
import os
import socket
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from composer_core import BuildContext, SandboxSpec
from composer_core.capabilities import CAPABILITIES
from composer_core.protocols import ExecResult, SandboxProvider
from composer_core.trees import Patch
from composer_envkit import remove
from composer_testing import sandbox_claims, sandbox_walls
from composer_testing.contracts.sandboxes import SandboxContract
from composer_testing.fakes.sandbox import MemoryProvider, MemorySandbox
from composer_testing.new import SCAFFOLD
from composer_testing.sandbox_claims import CLAIMS

IN_MEMORY = {"sandbox.forks", "sandbox.snapshots.files", "sandbox.changes"}
CLAIM = "test_what_is_declared_is_given_and_what_is_given_is_declared"


@pytest.fixture
def said(tmp_path, monkeypatch):
    """Run one test of the suite on a provider; what it complains about, "" if it passes."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(sandbox_claims, "WAIT_S", 1.5)
    (tmp_path / "temporary").mkdir()

    def run(
        make: Callable[[], SandboxProvider],
        claims: Iterable[str],
        test: str,
        *arguments: Any,
        probed: Iterable[str] | None = None,
        may_lack: Iterable[str] = (),
    ) -> str:
        async def probe() -> frozenset[str]:
            return frozenset(claims if probed is None else probed)

        def build(config: Any, build: BuildContext) -> SandboxProvider:
            provider = make()
            provider.probe = probe
            return provider

        spec = SandboxSpec(name="mine", factory=build, capabilities=claims, isolation="vm")
        suite = type("Suite", (SandboxContract,), {"spec": spec, "may_lack": may_lack})()
        suite._tmp_path = tmp_path
        try:
            getattr(suite, test)(*arguments)
        except AssertionError as error:
            return str(error)
        return ""

    return run


def test_every_capability_of_a_sandbox_is_probed():
    assert set(CLAIMS) == {name for name in CAPABILITIES if name.startswith("sandbox.")}


# --- in memory ----------------------------------------------------------------------------------------------------


class Forgetful(MemorySandbox):
    async def changes(self, limit_bytes: int) -> Patch:
        return Patch((await super().changes(limit_bytes)).writes)


class Siamese(MemorySandbox):
    async def fork(self, n: int) -> Any:
        children = await super().fork(n)
        for child in children:
            child.backend.files = self.files
        return children


class Stillborn(MemorySandbox):
    async def fork(self, n: int) -> Any:
        return await self.provider.create((await self.provider.prepare(self.spec, self.pristine)), n)


class Barren(MemorySandbox):
    async def fork(self, n: int) -> Any:
        return []


class Unborn(MemorySandbox):
    """Nothing is created from its snapshots."""

    async def snapshot(self) -> Any:
        ref = await super().snapshot()
        self.provider.barren.add(ref.id)
        return ref


class Lasting(MemorySandbox):
    """Its snapshots show the files as they are when they are used."""

    async def snapshot(self) -> Any:
        ref = await super().snapshot()
        self.provider.late[ref.id] = self
        return ref


class Sessions(MemorySandbox):
    """Shells that know the commands of the probe."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.shells: dict[str, dict[str, str]] = {}

    async def session_exec(self, name: str, request: Any) -> ExecResult:
        shell, words = self.shells.setdefault(name, {"folder": ""}), request.argv
        if words[0] == "cd":
            shell["folder"] = words[1] + "/"
        elif words[:2] == ("eval", "exit 3"):
            return self.ended(name, ExecResult("exited", 3))
        elif words[0] == "eval":
            shell["kept"] = words[1][5]
        elif words[0] == "sleep":
            return self.ended(name, ExecResult("timeout", None))
        elif words[0] == "show":
            return (
                ExecResult("exited", 0, f"{shell['kept']}\n".encode()) if "kept" in shell else ExecResult("exited", 127)
            )
        else:
            return await self.exec(evolve(request, argv=(words[0], *(shell["folder"] + word for word in words[1:]))))
        return ExecResult("exited", 0)

    def ended(self, name: str, result: ExecResult) -> ExecResult:
        del self.shells[name]
        return evolve(result, restarted=True)


class OneSession(Sessions):
    async def session_exec(self, name: str, request: Any) -> ExecResult:
        return await super().session_exec("all", request)


class NoSession(Sessions):
    async def session_exec(self, name: str, request: Any) -> ExecResult:
        self.shells.clear()
        return await super().session_exec(name, request)


class FoldersOnly(Sessions):
    async def session_exec(self, name: str, request: Any) -> ExecResult:
        self.shells.get(name, {}).pop("kept", None)
        return await super().session_exec(name, request)


class Silent(Sessions):
    """Says nothing of a shell that has ended."""

    def ended(self, name: str, result: ExecResult) -> ExecResult:
        return evolve(super().ended(name, result), restarted=False)


class Endless(Sessions):
    """Waits for a command however late it is."""

    async def session_exec(self, name: str, request: Any) -> ExecResult:
        found = await super().session_exec(name, request)
        return evolve(found, status="exited", exit_code=0) if found.status == "timeout" else found


class Undead(Sessions):
    """Says that a shell has ended that lives on."""

    def ended(self, name: str, result: ExecResult) -> ExecResult:
        return evolve(result, restarted=True)


class Pauses(MemorySandbox):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.going = asyncio.Event()
        self.going.set()

    async def exec(self, request: Any) -> ExecResult:
        await self.going.wait()
        result = await super().exec(request)
        await self.going.wait()
        return result

    async def pause(self) -> None:
        self.going.clear()

    async def resume(self) -> None:
        self.going.set()


class Restless(Pauses):
    async def pause(self) -> None:
        pass


class Ticking(Pauses):
    """Time goes on for commands of a paused sandbox."""

    async def exec(self, request: Any) -> ExecResult:
        started = asyncio.get_running_loop().time()
        result = await super().exec(request)
        late = asyncio.get_running_loop().time() - started > request.timeout_s
        return evolve(result, status="timeout", exit_code=None) if late else result


class Eager(Pauses):
    """What runs stands still, and what comes is begun."""

    async def exec(self, request: Any) -> ExecResult:
        return await (super() if request.argv[0] == "sh" else super(Pauses, self)).exec(request)


class Leases(MemorySandbox):
    timer: Any = None

    async def renew(self, lease_s: float) -> None:
        if self.timer:
            self.timer.cancel()
        self.timer = asyncio.get_running_loop().call_later(lease_s, self.provider.live.pop, self.id, None)


class Squatter(Leases):
    async def renew(self, lease_s: float) -> None:
        pass


class Impatient(Leases):
    async def renew(self, lease_s: float) -> None:
        self.timer = None
        await super().renew(lease_s)


class Full(MemorySandbox):
    """What runs when it is captured runs again in what is created from the capture."""

    request: Any = None

    async def exec(self, request: Any) -> ExecResult:
        self.request = request
        return await super().exec(request)

    async def full_snapshot(self) -> Any:
        ref = await self.snapshot()
        self.provider.running[ref.id] = self.request
        return ref


class FilesOnly(Full):
    async def full_snapshot(self) -> Any:
        return await self.snapshot()


class Provider(MemoryProvider):
    """Sandboxes of a class, with a `sh` that knows the scripts of the probes."""

    def __init__(self, backend: type[MemorySandbox]) -> None:
        super().__init__({"sh": self.sh})
        self.backend = backend
        self.running: dict[str, Any] = {}
        self.tasks: set[Any] = set()
        self.late: dict[str, MemorySandbox] = {}
        self.barren: set[str] = set()

    async def sh(self, files: Any, argv: Any, stdin: bytes) -> ExecResult:
        if "sleep" in argv[2]:
            await asyncio.sleep(0.6)
        if "late" in argv[2]:
            files["late"] = b"on\n"
        return ExecResult("exited", 0, b"done\n")

    def place(self, spec: Any, pristine: Any, now: Any = None) -> MemorySandbox:
        sandbox = self.backend(self, self._name("sandbox"), spec, pristine, now or pristine)
        self.live[sandbox.id] = sandbox
        return sandbox

    async def create(self, source: Any, n: int = 1) -> Any:
        if source.id in self.barren:
            return []
        if source.id in self.late:
            source = self.capture(self.late[source.id])
        children = await super().create(source, n)
        if self.running.get(source.id):
            self.tasks |= {asyncio.ensure_future(child.backend.exec(self.running[source.id])) for child in children}
        return children


@pytest.mark.parametrize(
    ("backend", "claim"),
    [
        (MemorySandbox, "forks"),
        (MemorySandbox, "snapshots.files"),
        (MemorySandbox, "changes"),
        (Sessions, "sessions"),
        (Pauses, "pauses"),
        (Leases, "leases"),
        (Full, "snapshots.full"),
    ],
)
def test_a_claim_that_is_kept_passes_and_one_that_is_not_made_is_missed(said, backend, claim):
    name = f"sandbox.{claim}"
    assert said(lambda: Provider(backend), {name}, CLAIM, name) == ""
    missed = said(lambda: Provider(backend), IN_MEMORY - {name}, CLAIM, name)
    assert f"{name} is not declared; expected: Unsupported; found: it works; fix: declare it" in missed


@pytest.mark.parametrize(
    ("backend", "claim", "found"),
    [
        (Forgetful, "changes", "a walk finds"),
        (Siamese, "forks", "is seen by a sibling"),
        (Stillborn, "forks", "do not start as their parent is"),
        (Barren, "forks", "fork(8) gave 0 sandboxes of []"),
        (Unborn, "snapshots.files", "create(snapshot) gave [], not one sandbox"),
        (Lasting, "snapshots.files", "not as it was"),
        (OneSession, "sessions", "another session's `cat a.txt`"),
        (NoSession, "sessions", "after `cd pkg`"),
        (FoldersOnly, "sessions", "a function that shows a variable"),
        (Silent, "sessions", "a session that ends itself with 3 is told as"),
        (Endless, "sessions", "a command that is late is told as"),
        (Undead, "sessions", "is there after it has ended"),
        (Restless, "pauses", "while its sandbox was paused"),
        (Ticking, "pauses", "time of 4 s ran on"),
        (Eager, "pauses", "began while its sandbox was paused"),
        (Squatter, "leases", "still there"),
        (Impatient, "leases", "there is no sandbox"),
        (FilesOnly, "snapshots.full", "does not go on"),
        (MemorySandbox, "sessions", "a MemorySandbox without session_exec()"),
        (MemorySandbox, "pauses", "without pause(), resume()"),
        (MemorySandbox, "isolates", "no command to try it with"),
    ],
)
def test_a_claim_that_is_not_kept_is_caught(said, backend, claim, found):
    name = f"sandbox.{claim}"
    text = said(lambda: Provider(backend), {name}, CLAIM, name)
    assert text.startswith(f"probe() offers {name}; expected: {CAPABILITIES[name]}; found: ")
    assert found in text


@pytest.mark.parametrize("provider", [MemoryProvider, lambda: Provider(MemorySandbox)], ids=["no sh", "no such words"])
@pytest.mark.parametrize("kind", ["memory", "processes", "file_size", "disk"])
def test_a_command_that_cannot_run_shows_no_limit(said, provider, kind):
    name = f"sandbox.limits.{kind}"
    assert "no command to try it with" in said(provider, {name}, CLAIM, name)


def test_what_is_probed_must_be_declared(said):
    test = "test_what_is_probed_is_declared_and_what_is_not_probed_is_named"
    assert said(MemoryProvider, IN_MEMORY, test) == ""
    text = said(MemoryProvider, IN_MEMORY - {"sandbox.forks"}, test, probed=IN_MEMORY)
    assert "probe() returns ['sandbox.forks']; found: not in the record" in text


def test_what_is_declared_and_not_probed_must_be_named_and_is_then_not_tried(said):
    test, more = "test_what_is_probed_is_declared_and_what_is_not_probed_is_named", IN_MEMORY | {"sandbox.leases"}
    text = said(MemoryProvider, more, test, probed=IN_MEMORY)
    assert "the record declares ['sandbox.leases']; found: probe() does not return it" in text
    assert said(MemoryProvider, more, test, probed=IN_MEMORY, may_lack=["sandbox.leases"]) == ""
    assert said(MemoryProvider, more, CLAIM, "sandbox.leases", probed=IN_MEMORY) == ""
    assert said(MemoryProvider, more, CLAIM, "sandbox.leases", probed=more, may_lack=["sandbox.leases"]) != ""


def test_a_sandbox_that_cannot_show_whether_processes_are_left_is_told_so(said):
    test = "test_destroying_leaves_no_file_descriptor_or_process"
    assert "fix: offer setsid" in said(MemoryProvider, {"sandbox.isolates"}, test)


# --- with real processes ------------------------------------------------------------------------------------------


@pytest.fixture
def folders(monkeypatch):
    """The module of the template's sandboxes: folders and processes, which isolate and limit nothing."""
    monkeypatch.syspath_prepend(SCAFFOLD / "sandbox/src")
    return importlib.import_module("composer_plugin_my_name.sandbox")


def provider_of(module: Any, name: str, **methods: Any) -> Callable[[], SandboxProvider]:
    """Makes a provider of a module, with other methods."""
    cls = type("Broken", (getattr(module, name),), methods)
    return lambda: cls(None, BuildContext(Path()))


@pytest.mark.parametrize("kind", ["memory", "processes", "file_size", "disk"])
def test_a_limit_that_is_not_enforced_is_caught(said, folders, kind):
    name = f"sandbox.limits.{kind}"
    text = said(provider_of(folders, "MyNameProvider"), {name}, CLAIM, name)
    assert text.startswith(f"probe() offers {name}; expected: a") and "found: a command" in text


def test_a_sandbox_that_isolates_nothing_is_caught_in_every_way(said, folders):
    make, name = provider_of(folders, "MyNameProvider"), "sandbox.isolates"
    text = said(make, {name}, CLAIM, name)
    for what in ("read a file", "wrote a file", "saw a process", "killed a process", "connected to"):
        assert what in text
    assert not said(make, set(), CLAIM, name)


def test_a_hole_is_found_through_folders_with_a_space_and_nothing_of_the_host_is_touched(
    said, folders, monkeypatch, tmp_path
):
    for name in ("home of mine", "home"):
        (tmp_path / name).mkdir()
    kept = tmp_path / "home/secret"  # where the first word of the other folder's name would lead
    kept.write_text("mine")
    monkeypatch.setenv("HOME", str(tmp_path / "home of mine"))
    monkeypatch.setattr(sandbox_walls, "PLACES", ())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "home of mine"))
    text = said(provider_of(folders, "MyNameProvider"), {"sandbox.isolates"}, CLAIM, "sandbox.isolates")
    assert "read a file" in text and "wrote a file" in text
    assert kept.read_text() == "mine"


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_hole_is_found_on_each_loopback_and_nothing_listens_on_all_addresses(said, folders, monkeypatch, address):
    assert not {"0.0.0.0", "::"} & set(sandbox_walls.addresses())
    monkeypatch.setattr(sandbox_walls, "addresses", lambda: [address])
    text = said(provider_of(folders, "MyNameProvider"), {"sandbox.isolates"}, CLAIM, "sandbox.isolates")
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as here:
        try:
            here.bind((address, 0))
        except OSError:
            assert "connected to the host" not in text  # a machine without IPv6
        else:
            assert "connected to the host" in text


@pytest.mark.parametrize(
    ("closed", "found"),
    [
        (lambda allow: not allow, "were allowed, and a command connected to"),
        (lambda allow: True, "no command could connect"),
        (lambda allow: False, "to which no network was allowed"),
    ],
)
def test_a_network_policy_that_does_nothing_or_knows_all_and_nothing_alone_is_caught(
    said, folders, monkeypatch, closed, found
):
    """What a policy that does more may get wrong is tried on one that works, in the tests of `local/namespaces`."""

    async def set_network(self: Any, allow: Any) -> None:
        self.walls = ("unshare", "--map-root-user", "--net") if closed(allow) else ()

    async def run(self: Any, request: Any, run: Any = folders.MyNameSandbox.exec) -> ExecResult:
        return await run(self, evolve(request, argv=(*self.walls, *request.argv)))

    name = "sandbox.networks"
    monkeypatch.setattr(folders.MyNameSandbox, "set_network", set_network, raising=False)
    monkeypatch.setattr(folders.MyNameSandbox, "exec", run)
    assert found in said(provider_of(folders, "MyNameProvider"), {name}, CLAIM, name)


# --- what is left -------------------------------------------------------------------------------------------------


def test_what_destroying_leaves_behind_is_named(said, folders, monkeypatch):
    test, make = "test_destroying_leaves_no_file_descriptor_or_process", provider_of(folders, "MyNameProvider")
    assert not said(make, set(), test)
    opened: list[int] = []

    async def keeps_its_folder(self: Any) -> None:
        self.provider.live.pop(self.id, None)
        await self.processes.kill()

    async def keeps_its_command(self: Any) -> None:
        self.provider.live.pop(self.id, None)
        await remove(self.home)

    async def keeps_a_descriptor(self: Any, destroy: Any = folders.MyNameSandbox.destroy) -> None:
        opened.append(os.open("/dev/null", os.O_RDONLY))
        await destroy(self)

    for destroy, found in (
        (keeps_its_folder, f"'{tempfile.gettempdir()}/composer-"),
        (keeps_its_command, f"sleep 86400.{os.getpid()}"),
        (keeps_a_descriptor, "destroy() left ['descriptor "),
    ):
        monkeypatch.setattr(folders.MyNameSandbox, "destroy", destroy)
        assert found in said(make, set(), test)
    list(map(os.close, opened))


def test_what_closing_leaves_behind_is_named_by_every_test(said, folders):
    async def close(self: Any) -> None:
        for sandbox in list(self.live.values()):
            await sandbox.destroy()

    make = provider_of(folders, "MyNameProvider", close=close)
    assert "close() left ['composer-" in said(make, set(), "test_listing_tells_files_from_folders")


def test_a_provider_that_closes_until_the_first_failure_is_caught(said, folders):
    async def close(self: Any) -> None:
        await asyncio.gather(*(sandbox.destroy() for sandbox in list(self.live.values())))
        await remove(self.root)

    test = "test_one_sandbox_that_cannot_be_destroyed_keeps_no_other_when_the_provider_closes"
    assert not said(provider_of(folders, "MyNameProvider"), set(), test)
    left = said(provider_of(folders, "MyNameProvider", close=close), set(), test)
    assert "close() left ['composer-" in left and "when one sandbox could not be destroyed" in left
