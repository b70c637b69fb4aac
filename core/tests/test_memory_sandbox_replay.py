"""The fake plays what takes no command of the scripted episode, and its trace is the recorded one."""

from composer_testing.contracts.sandbox_replay import ReplayContract
from composer_testing.fakes.plugin import composer_sandboxes


class TestMemory(ReplayContract):
    spec = next(spec for spec in composer_sandboxes() if spec.name == "memory")
    commands = False
