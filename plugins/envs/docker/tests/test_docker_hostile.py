"""What a hostile command meets in containers: the public suite."""

from composer_plugin_docker.plugin import composer_sandboxes
from composer_testing.contracts.sandbox_security import SecurityContract


class TestDocker(SecurityContract):
    spec = next(iter(composer_sandboxes()))
