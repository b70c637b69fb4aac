"""What `check` is told of the texts, without making them."""

from types import SimpleNamespace

import pytest

from composer_core.config import PretrainStage
from composer_plugin_drills.config import DrillsConfig
from composer_plugin_drills.footprint import documents, footprint
from composer_plugin_drills.tasks import DrillSet


@pytest.mark.parametrize("split", ["train", "restoring"])
@pytest.mark.parametrize("modules", [(), ("numbers_", "lists")])
def test_the_length_of_the_texts_is_known_from_the_librarys_files(split, modules):
    config = DrillsConfig(modules=modules, restoring_variants=3)
    made = sum(len(text) for text in DrillSet(config).texts(split))
    assert documents(PretrainStage("text", 1, split=split), config) == pytest.approx(made, rel=0.3)


def test_runs_that_read_no_texts_hold_none():
    copying = SimpleNamespace(stage=PretrainStage("copy", 1, source="copying"))
    run = SimpleNamespace(config=SimpleNamespace(stages=(copying,)))
    assert footprint(DrillsConfig(), run).parts["texts"] == 0
