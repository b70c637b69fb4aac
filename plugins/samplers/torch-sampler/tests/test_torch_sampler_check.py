"""`check` compares the sampler's window with that of the run."""

from types import SimpleNamespace

import pytest

from composer_core import RunView
from composer_plugin_torch_sampler.config import ContinuousConfig
from composer_plugin_torch_sampler.plugin import composer_check
from composer_testing.contracts.hook_modules import HookModuleContract


class TestHookModule(HookModuleContract):
    module = "composer_plugin_torch_sampler.plugin"


@pytest.mark.parametrize(("promised", "has", "told"), [(513, 512, True), (512, 512, False), (None, 512, False)])
def test_the_run_may_not_promise_a_longer_window_than_the_sampler_has(promised, has, told):
    limits = {} if promised is None else {"context_tokens": promised}
    chosen = {"samplers": (("other/sampler", None), ("torch-sampler/continuous", ContinuousConfig(context_tokens=has)))}
    found = list(composer_check(RunView(SimpleNamespace(limits=limits), chosen)))
    assert bool(found) is told
    assert all("512 tokens, while limits.context_tokens promises 513" in problem.message for problem in found)
