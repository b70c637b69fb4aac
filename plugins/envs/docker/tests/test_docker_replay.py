"""A scripted episode gives the same trace in containers as in every other kind of sandbox."""

from composer_plugin_docker.plugin import composer_sandboxes
from composer_testing.contracts.sandbox_replay import ReplayContract


class TestDocker(ReplayContract):
    spec = next(iter(composer_sandboxes()))
