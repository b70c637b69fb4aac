"""What suites that do harm where nothing holds stand on: `WalledSuite`, which tries the walls before anything else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import pytest

from composer_core.protocols import SandboxProvider
from composer_testing.sandbox_suite import SandboxSuite
from composer_testing.sandbox_walls import walls_hold


class WalledSuite(SandboxSuite):
    """Refused once, while tests are collected, for a record that claims no walls; nothing of it is run then."""

    _walls_hold: ClassVar[bool] = False

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if missing := self.missing():
            raise pytest.Collector.CollectError(missing)

    def missing(self) -> str:
        """Why nothing of this may be run in these sandboxes; "" if they claim walls."""
        if self.spec.isolation != "none" and "sandbox.isolates" in self.spec.capabilities:
            return ""
        return (
            f"{self.spec.name} does not declare that it isolates: nothing of {type(self).__name__} may be run in it\n"
            f"  expected: a record with isolation and the capability 'sandbox.isolates'\n"
            f"  found:    isolation = {self.spec.isolation!r}\n"
            "  fix:      subclass CommandContract, which is for sandboxes without walls"
        )

    def use(self, act: Callable[[SandboxProvider], Awaitable[Any]], *, fresh: bool = False) -> Any:
        """Once walls have held in this class; they are tried by means that harm nobody."""
        kind = type(self)
        if not kind.__dict__.get("_walls_hold"):
            assert not self.missing(), self.missing()
            super().use(walls_hold)
            kind._walls_hold = True
        return super().use(act, fresh=fresh)
