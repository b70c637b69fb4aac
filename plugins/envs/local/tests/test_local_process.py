"""The tier without walls: what it adds to the folders of `composer_envkit`."""

import asyncio

from composer_core.protocols import ExecRequest, TemplateSpec
from composer_core.trees import Tree
from composer_plugin_local.config import ProcessConfig
from composer_plugin_local.process import ProcessProvider

TREE = Tree.of({"a.txt": "one\n"})
SPEC = TemplateSpec(TREE.ref, env={"LANG": "C"})


def act(action, **settings):
    async def whole():
        provider = ProcessProvider(ProcessConfig(trusted=True, **settings))
        try:
            made = await provider.create(await provider.prepare(SPEC, TREE), 2)
            return await action(*(child.backend for child in made))
        finally:
            await provider.close()

    return asyncio.run(whole())


def sh(script):
    return ExecRequest(("sh", "-c", script), timeout_s=20, env={"GIVEN": "1"})


def test_home_is_a_folder_of_the_sandbox_and_no_part_of_its_workspace():
    async def action(one, other):
        result = await one.exec(sh('echo kept > "$HOME/mine"; cat "$TMPDIR/mine"; echo $LANG $GIVEN; ls -A'))
        assert result.stdout == b"kept\nC 1\na.txt\n"
        assert (await other.exec(sh('ls -A "$HOME"'))).stdout == b""

    act(action)


def test_commands_of_two_sandboxes_run_at_once_up_to_the_limit():
    """Each waits for the other to have started, so one after the other cannot end."""

    async def action(one, other):
        ends = f"{one.folder}/here {other.folder}/here"
        wait = f"touch here; for i in $(seq 100); do ls {ends} >/dev/null 2>&1 && exit 0; sleep 0.02; done; exit 1"
        return [result.exit_code for result in await asyncio.gather(*(each.exec(sh(wait)) for each in (one, other)))]

    assert act(action, commands=2) == [0, 0]
    assert sorted(act(action, commands=1)) == [0, 1]
