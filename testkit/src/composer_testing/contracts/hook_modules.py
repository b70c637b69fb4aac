"""What every hook module must do. Subclass `HookModuleContract` and name the module.

class TestHookModule(HookModuleContract):
    module = "my_package.plugin"

The suites of the kinds test what a record builds; this one tests that the record arrives: through the framework's own
registration, which refuses a misspelt hook, a missing mark, another API, and a record of the wrong kind.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from typing import ClassVar

from composer_core.plugins import Candidate, Plugins

HEAVY = ("torch", "transformers", "numpy", "tokenizers", "ray", "docker", "triton")


class HookModuleContract:
    """Name your subclass `Test...`."""

    module: ClassVar[str]
    """Dotted name of the module that the entry point names."""

    def test_it_registers_and_offers_something(self) -> None:
        candidate = Candidate("under-test", self.module, "under-test", "0")
        plugins = Plugins()
        plugins.register(candidate, import_module(self.module))
        assert plugins.loaded[0].components, "no hook of the module yields a record"

    def test_importing_it_loads_nothing_heavy(self) -> None:
        """Every listing of plugins imports it; so does `check`."""
        script = f"import sys, {self.module}; print([name for name in {HEAVY!r} if name in sys.modules])"
        found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert found.stdout.strip() == "[]"
