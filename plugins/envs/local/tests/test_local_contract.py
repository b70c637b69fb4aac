"""Both tiers pass the public contract, on real processes and real bubblewrap."""

from pathlib import Path

from composer_core.protocols import SandboxProvider
from composer_plugin_local.config import NamespacesConfig
from composer_plugin_local.namespaces import NamespacesProvider
from composer_plugin_local.process import ProcessProvider
from composer_testing.contracts.sandbox_commands import CommandContract, LimitsContract


class TestNamespaces(LimitsContract):
    def provider(self, tmp_path: Path) -> SandboxProvider:
        return NamespacesProvider()


class TestNamespacesWithoutControlGroups(LimitsContract):
    def provider(self, tmp_path: Path) -> SandboxProvider:
        return NamespacesProvider(NamespacesConfig(cgroups=False))


class TestProcess(CommandContract):
    def provider(self, tmp_path: Path) -> SandboxProvider:
        return ProcessProvider()
