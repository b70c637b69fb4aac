"""What a hostile command meets in namespaces, and whose fault that is: the public suites."""

from composer_plugin_local.plugin import composer_sandboxes
from composer_testing.contracts.sandbox_verdicts import VerdictContract


class TestNamespaces(VerdictContract):
    spec = next(iter(composer_sandboxes()))
