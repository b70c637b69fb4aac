"""No way around a task is paid in machines."""

from composer_plugin_microvm.plugin import composer_sandboxes
from composer_testing.contracts.sandbox_honesty import HonestyContract


class TestQemu(HonestyContract):
    spec = next(iter(composer_sandboxes()))
    quick = True
