"""Makes what a result needs: the runs of its chain, each finished one read and each interrupted one resumed.

A quick one makes every run in miniature, in a folder of its own. It shows that all of it works and measures nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import field, frozen

from study.findings import FINDINGS
from study.recipes import HERE, RECIPES, chain

QUICK = (
    "threads=1",
    'trackers=["core/jsonl"]',
    "tasks.restoring_variants=2",
    "tasks.train=16",
    "checkpoints.keep=1",
)
TINY_MODEL = "model={use='hf/tiny-moe',vocab_size=832,width=32,expert_count=2,expert_width=32}"
TINY_STAGES = {
    "copy": ("steps=1",),
    "pretrain": ("steps=1",),
    "restoring": ("steps=1",),
    "sft": ("episodes=4", "steps=1", "batch_episodes=4"),
    "rl": ("steps=1", "groups_per_step=1", "group_size=2"),
}

OF_ARMS = {run for finding in FINDINGS.values() for runs in finding.arms.values() for run in runs}
"""The runs that findings are read from."""


class OtherRunError(Exception):
    """A run folder is not what would be made now."""


@frozen
class Runs:
    """Where runs lie, and what is set in each."""

    folder: Path
    quick: bool = False
    settings: tuple[str, ...] = field(default=(), converter=tuple)
    """For every run that an arm is read from: to try something out. Runs that findings share stay as they are."""
    everywhere: tuple[str, ...] = field(default=(), converter=tuple)
    """For every run, and no part of what it is made of: how many cores it may use."""

    def folders(self, name: str, seed: int) -> list[Path]:
        """The finished run folders of a run's chain, itself last.

        Raises:
            CalledProcessError: a run failed; it has said why.
            OtherRunError: a folder was made of another file, or of other settings.
        """
        found: list[Path] = []
        for one in chain(name):
            extra = self.settings if one in OF_ARMS else ()
            found.append(self._train(one, seed, found[-1] if found else None, extra))
        return found

    def revision(self, name: str, seed: int) -> str:
        """Of the repository when each run of the chain began, those that differ."""
        known = [json.loads(self._note(one, seed).read_text(encoding="utf-8"))["revision"] for one in chain(name)]
        return ", ".join(dict.fromkeys(known))

    def _note(self, name: str, seed: int) -> Path:
        """What a run was made of, beside its folder."""
        return self.folder / f"{name}-{seed}.json"

    def _train(self, name: str, seed: int, before: Path | None, extra: Sequence[str]) -> Path:
        folder, recipe = self.folder / f"{name}-{seed}", RECIPES[name]
        sets = [f"seed={seed}", *recipe.settings, *extra]
        sets += _tiny(recipe.file, recipe.settings, first=before is None) if self.quick else []
        after = json.loads(self._note(recipe.after, seed).read_text(encoding="utf-8")) if recipe.after else None
        made_of = {"file": (HERE / recipe.file).read_text(encoding="utf-8"), "settings": sets, "run before": after}
        self._remember(name, seed, made_of)
        if (folder / "summary.json").exists():
            return folder
        sets += [f"model.path={json.dumps(str(before / 'model'))}"] if before else []
        sets += self.everywhere
        # Not --or-resume: that an interrupted run goes on with another number of threads changes nothing of it.
        fresh = [
            str(HERE / recipe.file),
            "--run-dir",
            str(folder),
            *(word for text in sets for word in ("--set", text)),
        ]
        where = ["--resume", str(folder)] if (folder / "config.json").exists() else fresh
        subprocess.run([sys.executable, "-m", "composer_core.cli", "train", *where], check=True)
        return folder

    def _remember(self, name: str, seed: int, made_of: Mapping[str, object]) -> None:
        """Note what a new run is made of; a folder that has another note, or none, is not taken for it."""
        note = self._note(name, seed)
        if not (self.folder / f"{name}-{seed}").exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            note.write_text(json.dumps({**made_of, "revision": revision()}, indent=1), encoding="utf-8")
            return
        known = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
        differing = [part for part, value in made_of.items() if known.get(part) != value]
        if differing:
            folder = self.folder / f"{name}-{seed}"
            raise OtherRunError(f"{folder} was made of another {' and other '.join(differing)}; fix: move it away")


def revision() -> str:
    """The repository's commit."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    found = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def _tiny(file: str, settings: Sequence[str], *, first: bool) -> list[str]:
    """What makes a run one of seconds."""
    text = (HERE / file).read_text(encoding="utf-8")
    found = [*QUICK, *([TINY_MODEL] if first else [])]
    if "stages=[]" not in settings:
        for stage, values in TINY_STAGES.items():
            found += [f"stages.{stage}.{value}" for value in values if f'name = "{stage}"' in text]
    if "[[evaluations]]" in text:
        found += ["evaluations.main.tasks=2", "evaluations.main.attempts=1"]
    return found
