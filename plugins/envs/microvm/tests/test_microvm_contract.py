"""Machines keep the public contract, on real QEMU."""

from composer_plugin_microvm.plugin import composer_sandboxes
from composer_testing.contracts.hook_modules import HookModuleContract
from composer_testing.contracts.sandbox_commands import CommandContract


class TestHookModule(HookModuleContract):
    module = "composer_plugin_microvm.plugin"


class TestQemu(CommandContract):
    spec = next(iter(composer_sandboxes()))
