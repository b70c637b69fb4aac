"""Walls around commands: how a command ended is known behind them, and walls that fail are nobody's command."""

import asyncio

import pytest

from composer_core.errors import BackendError
from composer_core.protocols import ExecRequest, TemplateSpec
from composer_core.trees import Tree
from composer_envkit import FolderProvider, WalledSandbox

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


def test_a_command_cannot_report_another_end(run):
    forge = "for at in /proc/*/fd/3; do echo 0 > $at; done; echo 0 >&3; exit 3"
    result = run(f"({forge}) 2>/dev/null; exit 3")
    assert (result.status, result.exit_code) == ("exited", 3)


def test_walls_that_cannot_be_put_up_are_the_backends_failure(run):
    class Broken(Walled):
        broken = ("--bind", "/no/such/folder", "/x")

    class Missing(Walled):
        def walls(self):
            return ["no-such-program"]

    with pytest.raises(BackendError, match="/no/such/folder"):
        run("true", walls=Broken)
    with pytest.raises(BackendError, match="no-such-program"):
        run("true", walls=Missing)


def test_variables_reach_the_command_and_not_the_walls(run, tmp_path):
    assert run('printf "%s" "$WORD"', env={"WORD": "a=b c"}).stdout == b"a=b c"
    run("true", env={"LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": f"{tmp_path}/loaded"})
    assert not list(tmp_path.iterdir()), "a linker outside the walls was told what to do"
    home = run('echo "$HOME $TMPDIR $LANG"')
    assert home.stdout == b"/tmp /tmp C.UTF-8\n"
