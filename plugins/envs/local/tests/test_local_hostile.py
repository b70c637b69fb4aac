"""What a hostile command meets in namespaces: the public suite."""

from composer_plugin_local.plugin import composer_sandboxes
from composer_testing.contracts.sandbox_security import SecurityContract


class TestNamespaces(SecurityContract):
    spec = next(iter(composer_sandboxes()))
