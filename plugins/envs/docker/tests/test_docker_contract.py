"""The public contract on a real engine, with the base image made of this machine's programs."""

from composer_plugin_docker.plugin import composer_sandboxes
from composer_testing.contracts.hook_modules import HookModuleContract
from composer_testing.contracts.sandbox_commands import CommandContract


class TestHookModule(HookModuleContract):
    module = "composer_plugin_docker.plugin"


class TestDocker(CommandContract):
    spec = next(iter(composer_sandboxes()))
