"""Makes what results need: the runs of their chains, each finished one read and each interrupted one resumed.

What a run says goes to a log beside its folder. A quick one makes every run in miniature, in a folder of its own: it
shows that all of it works and measures nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from graphlib import TopologicalSorter
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


class FailedRunError(Exception):
    """A run ended with an error; the message has the end of its log."""


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
        """The finished run folders of a run's chain, itself last; raises what `make` does."""
        return [self.make(one, seed) for one in chain(name)]

    def make_all(self, names: Iterable[str], seed: int, jobs: int) -> None:
        """Make the chains of runs, so many runs at a time, each after the one that it goes on from.

        The first that fails ends it: those under way are waited for, no other begins.
        """
        needed = {run for name in names for run in chain(name)}
        order = TopologicalSorter(
            {run: [recipe.after] if recipe.after else [] for run, recipe in RECIPES.items() if run in needed}
        )
        order.prepare()
        running: dict[Future[Path], str] = {}
        pool = ThreadPoolExecutor(jobs)  # each run is a process of its own
        try:
            while order.is_active():
                running |= {pool.submit(self.make, run, seed): run for run in order.get_ready()}
                for one in wait(running, return_when=FIRST_COMPLETED).done:
                    one.result()
                    order.done(running.pop(one))
        finally:
            pool.shutdown(cancel_futures=True)

    def revision(self, name: str, seed: int) -> str:
        """Of the repository when each run of the chain began, those that differ."""
        known = [json.loads(self._note(one, seed).read_text(encoding="utf-8"))["revision"] for one in chain(name)]
        return ", ".join(dict.fromkeys(known))

    def _note(self, name: str, seed: int) -> Path:
        """What a run was made of, beside its folder."""
        return self.folder / f"{name}-{seed}.json"

    def make(self, name: str, seed: int) -> Path:
        """The finished folder of a run, the one before it being finished.

        Raises:
            FailedRunError: it ended with an error.
            OtherRunError: the folder was made of another file, or of other settings.
        """
        folder, recipe = self.folder / f"{name}-{seed}", RECIPES[name]
        before = self.folder / f"{recipe.after}-{seed}" if recipe.after else None
        sets = [f"seed={seed}", *recipe.settings, *(self.settings if name in OF_ARMS else ())]
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
        _train(folder, ["--resume", str(folder)] if (folder / "config.json").exists() else fresh)
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


def _train(folder: Path, words: Sequence[str]) -> None:
    log, began = folder.with_name(f"{folder.name}.log"), time.monotonic()
    print(f"{folder.name}: begins; what it says: {log}", flush=True)
    with log.open("a", encoding="utf-8") as said:
        command = [sys.executable, "-m", "composer_core.cli", "train", *words]
        code = subprocess.run(command, check=False, stdout=said, stderr=subprocess.STDOUT).returncode
    if code:
        last = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])
        raise FailedRunError(f"{folder.name} ended with exit code {code}; the end of {log}:\n{last}")
    print(f"{folder.name}: finished after {(time.monotonic() - began) / 60:.1f} min", flush=True)


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
