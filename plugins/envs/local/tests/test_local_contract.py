"""Both tiers pass the public contract, on real processes and real bubblewrap."""

from composer_core.protocols import SandboxProvider
from composer_core.sandbox import Sandbox
from composer_plugin_local.config import NamespacesConfig
from composer_plugin_local.plugin import composer_sandboxes
from composer_testing.contracts.sandbox_commands import CommandContract

NAMESPACES, PROCESS = composer_sandboxes()


class TestNamespaces(CommandContract):
    spec = NAMESPACES


class TestNamespacesWithoutControlGroups(CommandContract):
    spec = NAMESPACES
    config = NamespacesConfig(cgroups=False)
    may_lack = ("sandbox.limits.memory",)

    def test_that_memory_is_not_limited_as_a_whole_is_said(self) -> None:
        async def act(sandbox: Sandbox, provider: SandboxProvider) -> frozenset[str]:
            return await provider.probe()

        probed = self.act(act)
        assert "sandbox.limits.memory" not in probed and "sandbox.limits.processes" in probed


class TestProcess(CommandContract):
    spec = PROCESS
