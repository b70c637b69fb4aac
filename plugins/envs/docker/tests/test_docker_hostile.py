"""What a hostile command meets in containers, and whose fault that is: the public suites."""

from composer_plugin_docker.plugin import composer_sandboxes
from composer_testing.contracts.sandbox_verdicts import VerdictContract


class TestDocker(VerdictContract):
    spec = next(iter(composer_sandboxes()))
