"""The fake's sandboxes come and go, and nothing of them stays."""

from composer_testing.contracts.sandbox_churn import ChurnContract
from composer_testing.fakes.plugin import composer_sandboxes


class TestMemory(ChurnContract):
    spec = next(spec for spec in composer_sandboxes() if spec.name == "memory")
    few, many = 1000, 10_000

    async def footprint(self, provider):
        found = await super().footprint(provider)
        found["sandboxes"] = len(provider._provider.live)
        return found
