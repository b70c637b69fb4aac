"""Both tiers pass the public contract, on real processes and real bubblewrap."""

from composer_plugin_local.config import NamespacesConfig
from composer_plugin_local.plugin import composer_sandboxes
from composer_testing.contracts.sandbox_commands import CommandContract

NAMESPACES, PROCESS = composer_sandboxes()


class TestNamespaces(CommandContract):
    spec = NAMESPACES


class TestNamespacesWithoutControlGroups(CommandContract):
    spec = NAMESPACES
    config = NamespacesConfig(cgroups=False)


class TestProcess(CommandContract):
    spec = PROCESS
