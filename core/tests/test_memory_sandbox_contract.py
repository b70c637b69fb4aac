"""The public fake passes the contract of its kind."""

from pathlib import Path

from composer_core.protocols import SandboxProvider
from composer_testing.contracts.sandboxes import SandboxContract
from composer_testing.fakes.sandbox import MemoryProvider


class TestMemory(SandboxContract):
    def provider(self, tmp_path: Path) -> SandboxProvider:
        return MemoryProvider()
