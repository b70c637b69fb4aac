"""Sandboxes of both tiers come and go, and nothing of them stays."""

from composer_plugin_local.plugin import composer_sandboxes
from composer_testing.contracts.sandbox_churn import ChurnContract

NAMESPACES, PROCESS = composer_sandboxes()


class TestNamespaces(ChurnContract):
    spec = NAMESPACES
    few, many = 120, 10_000


class TestProcess(ChurnContract):
    spec = PROCESS
    few, many = 60, 1_000
