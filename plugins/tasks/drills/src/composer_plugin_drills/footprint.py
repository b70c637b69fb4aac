"""What the library and the texts made of it hold, counted from the sizes of its files. Thin."""

from __future__ import annotations

from typing import Any

from composer_core import Footprint, RunView
from composer_plugin_drills.catalog import FOLDER, HELD_OUT, workspace_name
from composer_plugin_drills.config import DrillsConfig

INDEX_BYTES = 6 << 20
"""Functions, checks, drills, tasks and trees as Python objects."""
TEXT_BYTES = 13
"""Of one character of a document, as its share of the tokens that are held as Python numbers; measured."""


def footprint(config: DrillsConfig, run: RunView) -> Footprint:
    """The largest text that a pretrain stage packs is held as lists of ids."""
    held = max((documents(choice.stage, config) for choice in run.config.stages), default=0)
    return Footprint({"library and index": INDEX_BYTES, "texts": held * TEXT_BYTES})


def documents(stage: Any, config: DrillsConfig) -> int:
    """Characters of the documents that a stage reads."""
    if stage.kind != "pretrain" or stage.source != "texts":
        return 0
    paths = [path for path in (FOLDER / "library").glob("*.py") if workspace_name(path.stem) not in HELD_OUT]
    known = sum(p.stat().st_size for p in paths if not config.modules or workspace_name(p.stem) in config.modules)
    return known * (3 * config.restoring_variants if stage.split == "restoring" else 1 + config.text_variants)
