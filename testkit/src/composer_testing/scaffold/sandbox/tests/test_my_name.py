"""The sandboxes keep their kind's contract on real processes, and leave nothing behind."""

import asyncio
import tempfile
from pathlib import Path

import pytest

from composer_core import BuildContext, RunView
from composer_plugin_my_name.plugin import MyNameConfig, composer_check
from composer_plugin_my_name.sandbox import MyNameProvider
from composer_testing.contracts.hook_modules import HookModuleContract
from composer_testing.contracts.sandbox_commands import CommandContract
from composer_testing.contracts.sandboxes import new_sandbox


def provider():
    return MyNameProvider(MyNameConfig(trusted=True), BuildContext(Path()))


class TestHookModule(HookModuleContract):
    module = "composer_plugin_my_name.plugin"


class TestMyName(CommandContract):
    def provider(self, tmp_path):
        return provider()


def test_closing_ends_its_commands_and_removes_its_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def main():
        sandboxes = provider()
        sandbox = await new_sandbox(sandboxes)
        script = f"(sleep 0.5; touch {tmp_path}/late) & sleep 60"
        running = asyncio.ensure_future(sandbox.exec(["sh", "-c", script], timeout_s=60))
        await asyncio.sleep(0.1)
        await sandboxes.close()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.sleep(0.6)

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("trusted", [True, False])
def test_a_run_that_does_not_trust_its_policy_is_refused(trusted):
    chosen = {"sandboxes": (("my-name/my-name", MyNameConfig(trusted)),)}
    assert [problem.where for problem in composer_check(RunView(None, chosen))] == ["sandbox.use"][trusted:]
