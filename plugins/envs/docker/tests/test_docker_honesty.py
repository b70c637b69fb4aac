"""No way around a task is paid in containers."""

from composer_plugin_docker.plugin import composer_sandboxes
from composer_testing.contracts.sandbox_honesty import HonestyContract


class TestDocker(HonestyContract):
    spec = next(iter(composer_sandboxes()))
    quick = True
