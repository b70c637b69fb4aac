"""Walls around commands: how a command ended is known behind them, and walls that fail are nobody's command."""

import asyncio

import pytest

from composer_core.errors import BackendError
from composer_core.protocols import ExecRequest, TemplateSpec
from composer_core.trees import Tree
from composer_envkit import FolderProvider, WalledSandbox, walls

TREE = Tree.of({"a.txt": "one\n"})


class Walled(WalledSandbox):
    """Processes of its own, the whole file system read-only but for the workspace."""

    broken: tuple[str, ...] = ()

    inside = "/tmp/workspace"

    def walls(self) -> list[object]:
        own = ("--tmpfs", "/tmp", "--bind", self.folder, self.inside, "--proc", "/proc", "--dev", "/dev", *self.broken)
        return ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", *own]


@pytest.fixture
def run():
    """Run `sh -c script`, or words, in a sandbox behind walls."""

    def run(*words, walls=Walled, **fields):
        async def whole():
            folders = FolderProvider(walls)
            try:
                (child,) = await folders.create(await folders.prepare(TemplateSpec(TREE.ref), TREE))
                argv = ("sh", "-c", *words) if len(words) == 1 else words
                return await child.backend.exec(ExecRequest(argv, **fields))
            finally:
                await folders.close()

        return asyncio.run(whole())

    return run


@pytest.mark.parametrize(
    ("words", "status", "code", "signal"),
    [
        (("exit 0",), "exited", 0, None),
        (("exit 137",), "exited", 137, None),
        (("kill -9 $$",), "signaled", None, 9),
        (("no-such-command", ""), "exited", 127, None),
        (("/etc", ""), "exited", 126, None),
        (("echo", "x" * 3_000_000), "exited", 126, None),
        (("kill -9 -1",), "signaled", None, 9),
    ],
)
def test_a_commands_end_is_its_own(run, words, status, code, signal):
    result = run(*words)
    assert (result.status, result.exit_code, result.signal) == (status, code, signal)


FORGE = "for at in /proc/*/fd/*; do case $at in */fd/[012]) ;; *) printf 0 > $at;; esac; done 2>/dev/null"
NO_FILES = "import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_FSIZE, (0, 0))"


def test_a_command_cannot_report_another_end(run):
    """It could, were the runner's descriptors open to it: the pipe is the only one that is tried."""
    for walled in (Walled, Unprivileged):
        result = run(f"{FORGE}; kill -9 -1", walls=walled)
        assert (result.status, result.signal) == ("signaled", 9)


class Unprivileged(Walled):
    def walls(self):
        return [*super().walls(), "--cap-drop", "ALL"]


LOOP = "for capability in range(64):\n    prctl(24, capability, 0, 0, 0)\n"


@pytest.mark.parametrize(("walled", "given_up"), [(Walled, LOOP), (Unprivileged, "prctl(4, 0, 0, 0, 0)\n")])
def test_the_forger_is_stopped_by_what_the_runner_gives_up(run, walled, given_up, monkeypatch):
    """Without that a command is believed: so the test above tells something."""
    assert given_up in walls.RUNNER
    monkeypatch.setattr(walls, "RUNNER", walls.RUNNER.replace(given_up, ""))
    assert run(f"{FORGE}; kill -9 -1", walls=walled).status == "exited"


def test_limits_that_a_command_puts_on_the_runner_make_no_attempt_void(run):
    code = f"python3 -c '{NO_FILES}'; exit 5"
    assert run(code).exit_code == 5


def test_walls_that_cannot_be_put_up_are_the_backends_failure(run):
    class Broken(Walled):
        broken = ("--bind", "/no/such/folder", "/x")

    class Missing(Walled):
        def walls(self):
            return ["no-such-program"]

    class Refused(Walled):
        def walls(self):
            return ["/etc/passwd"]

    class Refusing(Walled):
        def walls(self):
            return ["sh", "-c", "exit 126"]

    with pytest.raises(BackendError, match="/no/such/folder"):
        run("true", walls=Broken)
    with pytest.raises(BackendError, match="no-such-program"):
        run("true", walls=Missing)
    with pytest.raises(BackendError, match="Permission denied"):
        run("true", walls=Refused)
    with pytest.raises(BackendError, match="not run"):
        run("true", walls=Refusing)


def test_variables_reach_the_command_and_not_the_walls(run, tmp_path):
    assert run('printf "%s" "$WORD"', env={"WORD": "a=b c"}).stdout == b"a=b c"
    run("true", env={"LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": f"{tmp_path}/loaded"})
    assert not list(tmp_path.iterdir()), "a linker outside the walls was told what to do"
    home = run('echo "$HOME $TMPDIR $LANG"')
    assert home.stdout == b"/tmp /tmp C.UTF-8\n"
