"""No way around a task is paid in namespaces. Plain processes are exempt: they isolate nothing, and say so."""

from composer_plugin_local.plugin import composer_sandboxes
from composer_testing.contracts.sandbox_honesty import HonestyContract


class TestNamespaces(HonestyContract):
    spec = next(iter(composer_sandboxes()))
