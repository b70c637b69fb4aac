"""Tests of a folder are imported by path; this one lets them share `machines` and `strict`."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module", autouse=True)
def _machines_end() -> Iterator[None]:
    """What the acts of a module share ends with it."""
    from machines import close_shared

    yield
    close_shared()


@pytest.fixture(scope="session")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Settings of microvm/firecracker that name the strict server, which needs no KVM. Machines are of one size."""
    from strict.programs import programs

    from composer_plugin_microvm import firecracker_driver, provider

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(firecracker_driver, "KVM", "/dev/null")
        patched.setattr(provider, "STEP_BYTES", 1 << 30)
        yield programs(tmp_path_factory.mktemp("strict"))


@pytest.fixture(scope="session")
def booted(strict: object) -> object:
    """The same, with a machine that has booted; a boot takes longer than a test may."""
    from machines import SPEC, TREE, new_provider

    async def boot() -> None:
        provider = new_provider(strict)
        try:
            await provider.prepare(SPEC, TREE)
        finally:
            await provider.close()

    asyncio.run(boot())
    return strict
