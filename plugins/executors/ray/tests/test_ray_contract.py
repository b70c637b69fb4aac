"""`ray/ray` keeps the contract of its kind, on real actors."""

import pytest

from composer_plugin_ray.config import RayConfig
from composer_plugin_ray.executor import RayExecutor
from composer_testing.contracts.executors import ExecutorContract
from composer_testing.contracts.hook_modules import HookModuleContract


class TestHookModule(HookModuleContract):
    module = "composer_plugin_ray.plugin"


@pytest.mark.usefixtures("cluster")
class TestRayExecutor(ExecutorContract):
    def build(self, context):
        return RayExecutor(RayConfig(workers=1, episodes_per_worker=16), context)
