"""The sandboxes keep their kind's contract on real processes, and no run uses them unless it is told to."""

import pytest

from composer_core import RunView
from composer_plugin_my_name.plugin import MyNameConfig, composer_check, composer_sandboxes
from composer_testing.contracts.hook_modules import HookModuleContract
from composer_testing.contracts.sandbox_commands import CommandContract


class TestHookModule(HookModuleContract):
    module = "composer_plugin_my_name.plugin"


class TestMyName(CommandContract):
    spec = next(iter(composer_sandboxes()))


@pytest.mark.parametrize("trusted", [True, False])
def test_a_run_that_does_not_trust_its_policy_is_refused(trusted):
    chosen = {"sandboxes": (("my-name/my-name", MyNameConfig(trusted)),)}
    assert [problem.where for problem in composer_check(RunView(None, chosen))] == ["sandbox.use"][trusted:]
