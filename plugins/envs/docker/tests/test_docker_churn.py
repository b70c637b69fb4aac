"""Containers come and go, some killed from outside, and nothing of them stays."""

from containers import things

from composer_plugin_docker.plugin import composer_sandboxes
from composer_testing.contracts.sandbox_churn import ChurnContract


class TestDocker(ChurnContract):
    spec = next(iter(composer_sandboxes()))
    few, many = 21, 500
    slack = 10  # the engine's own connections and threads

    async def crash(self, backend):
        engine = backend._provider.engine
        await engine.call(engine.api.kill, backend._container)

    async def footprint(self, provider):
        found = await super().footprint(provider)
        for kind, there in zip(("containers", "images", "volumes"), things(), strict=True):
            found[kind] = len(there)
        return found
