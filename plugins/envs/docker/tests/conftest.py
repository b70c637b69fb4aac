"""One real engine for all tests of this folder; its log is shown when it cannot be started."""

import sys
from pathlib import Path

import pytest

from composer_testing.engines import own_engine

sys.path.insert(0, str(Path(__file__).parent))  # for `containers`, which the tests here share


@pytest.fixture(scope="session", autouse=True)
def engine():
    """Never skipped: without an engine every test here fails with what to install."""
    with own_engine() as address, pytest.MonkeyPatch.context() as changed:
        changed.setenv("DOCKER_HOST", address)
        yield address


@pytest.fixture(scope="module", autouse=True)
def _containers_end(engine):
    """What the acts of a module share ends with it."""
    from containers import close_shared

    yield
    close_shared()
