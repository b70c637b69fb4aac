"""The public fake passes the contract of its kind."""

from composer_testing.contracts.sandboxes import SandboxContract
from composer_testing.fakes.plugin import composer_sandboxes


class TestMemory(SandboxContract):
    spec = next(iter(composer_sandboxes()))
