"""A scripted episode gives the recorded trace in namespaces. Plain processes are exempt, and say so."""

from composer_plugin_local.plugin import composer_sandboxes
from composer_testing.contracts.sandbox_replay import ReplayContract


class TestNamespaces(ReplayContract):
    spec = next(iter(composer_sandboxes()))
