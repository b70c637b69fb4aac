"""Forks of a machine come and go, some of them killed from outside, and nothing of them stays."""

import os
import signal

from composer_plugin_microvm.plugin import composer_sandboxes
from composer_testing.contracts.sandbox_churn import ChurnContract


class TestQemu(ChurnContract):
    spec = next(iter(composer_sandboxes()))
    few, many = 12, 200
    forks = True

    async def crash(self, backend):
        os.kill(backend.machine.process.pid, signal.SIGKILL)
