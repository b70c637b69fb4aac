"""What is released while machines are being made of it; without a machine."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from composer_core.errors import BackendError, TemplateMissing
from composer_core.protocols import Failed, SnapshotRef
from composer_plugin_microvm.config import QemuConfig
from composer_plugin_microvm.provider import MachineProvider

REF = SnapshotRef("snapshot-1")


@pytest.mark.parametrize("given_up", [False, True])
def test_a_release_waits_for_what_is_made_of_it_and_ends_nobodys_creation(given_up: bool) -> None:
    async def main() -> None:
        told, closed = asyncio.Event(), []

        async def clone(capture: Any) -> Any:
            await told.wait()
            raise BackendError("closed before" if closed else "made to the end")

        provider = MachineProvider(QemuConfig(), SimpleNamespace(clone=clone, close=lambda: None))
        provider._sources[REF.id] = SimpleNamespace(size_bytes=0, close=lambda: closed.append(True))
        creating = asyncio.ensure_future(provider.create(REF))
        await asyncio.sleep(0.01)
        releasing = asyncio.ensure_future(provider.release(REF))
        await asyncio.sleep(0.01)
        with pytest.raises(TemplateMissing):
            await provider.create(REF)
        if given_up:
            releasing.cancel()
            await asyncio.gather(releasing, return_exceptions=True)
        told.set()
        assert await creating == [Failed("made to the end")]
        await provider.close()
        assert closed == [True]

    asyncio.run(main())
