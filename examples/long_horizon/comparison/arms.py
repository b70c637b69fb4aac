"""The arms of the comparison: what each sets of run.toml, and how a run of one is made or found.

All arms of a seed begin with one checkpoint (base.toml) and have the same stages, steps, rewards and tasks. They differ
in the window and in what happens when it is full. With summaries, each page is followed by one, however long it is:
who writes more is not asked more often. "..., before RL" is another evaluation of the same run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import frozen

from composer_plugin_logbook.summaries import REQUEST

HERE = Path(__file__).resolve().parent.parent
BOOK_TOKENS = 1280
"""A window that a whole book fits into."""
UNTRAINED = 'context.untrained_in=["rl"]'
AFTER_ALONE = 'evaluations.main.when=["after"]'


@frozen
class Arm:
    """One line of the table."""

    title: str
    run: str
    """The run that it is read from, a key of RUNS."""
    moment: str = "after"
    """before or after RL."""


RUNS: Mapping[str, Sequence[str]] = {
    "unlimited": (
        'context={use="core/plain"}',
        f"limits.context_tokens={BOOK_TOKENS}",
        f"sampler.context_tokens={BOOK_TOKENS}",
        AFTER_ALONE,
    ),
    "truncate": (
        'context={use="summary/truncate",trigger_tokens=140,keep_turns=1,tokens_per_char=0.21,frame_tokens=3,state=[]}',
        AFTER_ALONE,
    ),
    "prompted": (
        "context.use=summary/prompted",
        f'context.request="{REQUEST}"',
        "context.summary_tokens=64",
        UNTRAINED,
        "samplers.reader.summary=sections",
    ),
    "self": (),
}
"""Name -> what it sets of run.toml."""

ARMS: Mapping[str, Arm] = {
    "unlimited": Arm("unlimited window", "unlimited"),
    "truncate": Arm("truncation", "truncate"),
    "prompted-sft": Arm("prompted, before RL", "prompted", "before"),
    "prompted": Arm("prompted, a dozen sections", "prompted"),
    "self-sft": Arm("self, before RL", "self", "before"),
    "self": Arm("self", "self"),
}


def train(file: Path, folder: Path, settings: Sequence[str]) -> Path:
    """The finished run folder; an interrupted run is resumed, a finished one is read as it is."""
    if (folder / "summary.json").exists():
        return folder
    sets = [word for text in settings for word in ("--set", text)]
    command = ["train", str(file), "--run-dir", str(folder), "--or-resume", *sets]
    subprocess.run([sys.executable, "-m", "composer_core.cli", *command], check=True)
    return folder


def base(seed: int, runs: Path) -> Path:
    """What the arms of a seed begin with."""
    return train(HERE / "base.toml", runs / f"base-{seed}", [f"seed={seed}"])


def run(name: str, seed: int, runs: Path, extra: Sequence[str] = ()) -> Path:
    """The finished run of an arm; its seed's base is finished already."""
    model = json.dumps(str(runs / f"base-{seed}/model"))
    settings = [f"seed={seed}", f"model.path={model}", *RUNS[name], *extra]
    return train(HERE / "run.toml", runs / f"{name}-{seed}", settings)
