"""What a hostile command meets in machines: the public suite."""

from composer_plugin_microvm.plugin import composer_sandboxes
from composer_testing.contracts.sandbox_security import SecurityContract


class TestQemu(SecurityContract):
    spec = next(iter(composer_sandboxes()))
