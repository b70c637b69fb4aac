"""Makes what results need: the runs of their chains, each finished one read and each interrupted one resumed.

Each run is a process with one core, and what it says goes to a log beside its folder. A quick one makes every run in
miniature, in a folder of its own: it shows that all of it works and measures nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from attrs import field, frozen

from composer_core.cli import Options
from composer_core.commands.common import load_run
from composer_core.errors import ConfigError
from study.findings import FINDINGS
from study.recipes import HERE, RECIPES, chain, content, digest

QUICK = (
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
MEASURES = "chores/measures"
MOVE = "move it away"


def _absolute(folder: Path) -> Path:
    return folder.resolve()


@frozen
class Runs:
    """Where runs lie, and what is set in each."""

    folder: Path = field(converter=_absolute)
    quick: bool = False
    settings: tuple[str, ...] = field(default=(), converter=tuple)
    """For every run that an arm is read from: to try something out. Runs that findings share stay as they are."""

    def make(self, names: Iterable[str], seed: int, jobs: int) -> list[str]:
        """Make the chains of runs, up to `jobs` at a time; returns those that failed, from which no run goes on.

        Raises:
            PluginError: a plugin of a run file is missing or broken; nothing began.
            ConfigError: a run file does not fit what is set in it, or a folder was made of another file, of other
                settings, or after another run; nothing began.
        """
        needed = {one for name in names for one in chain(name)}
        todo = [name for name in RECIPES if name in needed and not self._finished(name, seed)]
        for name in todo:
            config, _ = load_run(HERE / RECIPES[name].file, (f"seed={seed}", *self._sets(name)), Options())
            if config.rewards and MEASURES not in [reward.use for reward in config.rewards]:
                raise ConfigError("what the arm does would not be measured", where=f"rewards of {name}", fix=MEASURES)
        order = TopologicalSorter({name: {*chain(name)[:-1]} & {*todo} for name in todo})
        order.prepare()
        ready: list[str] = []
        running: dict[str, subprocess.Popen[bytes]] = {}
        failed: list[str] = []
        try:
            while (ready := [*ready, *order.get_ready()]) or running:
                while ready and len(running) < jobs:
                    name = ready.pop(0)
                    running[name] = self._begin(name, seed)
                    print(f"{name}-{seed}: begins; what it says: {self._log(name, seed)}", flush=True)
                time.sleep(0.1)
                for name in [name for name, process in running.items() if process.poll() is not None]:
                    if code := running.pop(name).returncode:
                        failed.append(name)
                        last = self._log(name, seed).read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
                        print(f"{name}-{seed}: exit code {code};", "\n".join(last), file=sys.stderr, flush=True)
                    else:
                        order.done(name)
                        print(f"{name}-{seed}: finished", flush=True)
        except BaseException:  # a signal: the runs are in sessions of their own, so it reached nobody else
            for process in running.values():
                process.terminate()
            for process in running.values():
                process.wait()
            raise
        return failed

    def folders(self, name: str, seed: int) -> list[Path]:
        """The run folders of a run's chain, itself last."""
        return [self.folder / f"{one}-{seed}" for one in chain(name)]

    def revision(self, names: Iterable[str], seed: int) -> str:
        """Of the repository when each of these runs began, those that differ."""
        known = [_read(self._note(name, seed))["revision"] for name in names]
        return ", ".join(dict.fromkeys(known))

    def digest(self, names: Iterable[str], seed: int) -> str:
        """Of what these runs were made of (`recipes.digest`), whatever their files say by now."""
        notes = {name: _read(self._note(name, seed)) for name in names}
        return digest((name, note["file"], note["settings"]) for name, note in notes.items())

    def expected(self, names: Iterable[str]) -> str:
        """The digest that they have if they are made now; those of another example are left out."""
        return digest((name, content(name), self._sets(name)) for name in names if name in RECIPES)

    def _note(self, name: str, seed: int) -> Path:
        """What a run was made of, beside its folder."""
        return self.folder / f"{name}-{seed}.json"

    def _log(self, name: str, seed: int) -> Path:
        return self.folder / f"{name}-{seed}.log"

    def _finished(self, name: str, seed: int) -> bool:
        """Whether a run is; raises ConfigError for a folder whose note is another than it would get, or missing."""
        folder, note = self.folder / f"{name}-{seed}", self._note(name, seed)
        if not folder.exists():
            return False
        if not note.exists():
            raise ConfigError("what it was made of is not known", where=str(folder), expected=str(note), fix=MOVE)
        known = _read(note)
        wanted = json.loads(json.dumps(self._made_of(name, seed)))
        differing = [part for part, value in wanted.items() if known.get(part) != value]
        if differing:
            raise ConfigError(f"made of another {' and other '.join(differing)}", where=str(folder), fix=MOVE)
        return (folder / "summary.json").exists()

    def _begin(self, name: str, seed: int) -> subprocess.Popen[bytes]:
        """Start a run, or carry it on; the run before is finished."""
        folder, after, made_of = self.folder / f"{name}-{seed}", RECIPES[name].after, self._made_of(name, seed)
        if not folder.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps({**made_of, "revision": revision()}, indent=1)
            self._note(name, seed).write_text(text, encoding="utf-8")
        sets = [f"seed={seed}", *self._sets(name), "threads=1"]
        sets += [f"model.path={json.dumps(str(self.folder / f'{after}-{seed}/model'))}"] if after else []
        words = ["train", str(HERE / RECIPES[name].file), "--run-dir", str(folder), "--or-resume"]
        words += [word for text in sets for word in ("--set", text)]
        with self._log(name, seed).open("ab") as log:  # why an earlier try ended stands there
            command = [sys.executable, "-m", "composer_core.cli", *words]
            return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def _made_of(self, name: str, seed: int) -> Mapping[str, object]:
        """What makes a run what it is beside its seed: its file, what is set in it, and the same of the run before."""
        after = RECIPES[name].after
        note = self._note(after, seed) if after else None
        return {
            "file": content(name),
            "settings": self._sets(name),
            "run before": _read(note) if note and note.exists() else None,
        }

    def _sets(self, name: str) -> list[str]:
        """Beside the seed."""
        recipe = RECIPES[name]
        sets = [*recipe.settings, *(self.settings if name in OF_ARMS else ())]
        return [*sets, *(_tiny(recipe.file, recipe.settings, first=recipe.after is None) if self.quick else [])]


def _read(note: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(note.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"cannot be read: {error}", where=str(note), fix=f"{MOVE}, and its run folder") from error
    return found


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
