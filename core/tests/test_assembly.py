"""What an assembly owes whatever it built."""

import asyncio
from pathlib import Path

import pytest

from composer_core.assembly import Assembly
from composer_core.config import load
from composer_core.errors import PluginFault
from composer_core.executor import InProcessExecutor
from composer_core.plugins import Plugins, select
from composer_core.tracking import JsonlTracker
from composer_testing.fakes.trainer import SimulatedTrainer

FAKES = Path(__file__).resolve().parents[2] / "examples/fakes/run.toml"


@pytest.fixture
def assembly(tmp_path: Path) -> Assembly:
    config = load(FAKES)
    return Assembly(config, Plugins().load(select(config.plugins)).registry, tmp_path)


def test_a_close_that_fails_does_not_keep_the_others_open(assembly: Assembly, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    async def fails() -> None:
        closed.append("executors")
        raise OSError("stuck")

    async def closes() -> None:
        closed.append("trainers")

    for kind in ("tasks", "trainers", "executors", "stores"):
        assembly.get(kind)
    monkeypatch.setattr(SimulatedTrainer, "close", lambda self: closes())
    monkeypatch.setattr(InProcessExecutor, "close", lambda self: fails())
    with pytest.raises(PluginFault, match=r"core/inprocess .* raised OSError: stuck"):
        asyncio.run(assembly.close())
    assert closed.index("executors") < closed.index("trainers"), "last built, first closed"
    asyncio.run(assembly.close())
    assert closed.count("trainers") == 1, "closing twice closes once"


def test_a_tracker_that_cannot_be_built_leaves_no_other_open(
    assembly: Assembly, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    monkeypatch.setattr("composer_core.console.ConsoleTracker", lambda config, build: 1 / 0)
    monkeypatch.setattr(JsonlTracker, "close", lambda self: (self._file.close(), closed.append(self)))
    with pytest.raises(PluginFault, match="core/console"):
        assembly.trackers()
    assert len(closed) == 1


def test_a_component_is_one_object_and_shows_what_is_no_method_as_it_is(assembly: Assembly) -> None:
    tokenizer = assembly.get("tokenizer")
    assert assembly.get("tokenizer") is tokenizer
    assert isinstance(tokenizer.vocab_size, int)
    assert tokenizer.decode(tokenizer.encode("text")) == "text"
    assert not hasattr(tokenizer, "no_such_method")
    assert repr(assembly.get("tasks")) == "<fakes/sums (tasks)>"
