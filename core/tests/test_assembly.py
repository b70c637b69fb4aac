"""What an assembly owes whatever it built."""

import asyncio
from pathlib import Path

import pytest

from composer_core.assembly import Assembly
from composer_core.config import load
from composer_core.plugins import Plugins, select

FAKES = Path(__file__).resolve().parents[2] / "examples/fakes/run.toml"


def test_a_close_that_fails_does_not_keep_the_others_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(FAKES)
    assembly = Assembly(config, Plugins().load(select(config.plugins)).registry, tmp_path)
    made = [assembly.get(kind) for kind in ("tasks", "trainers", "executors", "stores")]
    closed = []

    async def fails() -> None:
        closed.append("executors")
        raise OSError("stuck")

    async def closes() -> None:
        closed.append("trainers")

    monkeypatch.setattr(type(made[1]), "close", lambda self: closes(), raising=False)
    monkeypatch.setattr(type(made[2]), "close", lambda self: fails(), raising=False)
    with pytest.raises(OSError, match="stuck"):
        asyncio.run(assembly.close())
    assert closed.index("executors") < closed.index("trainers"), "last built, first closed"
    asyncio.run(assembly.close())
    assert closed.count("trainers") == 1, "closing twice closes once"
