"""The task set `chores/chores`: drills in handfuls, each with its own bug, request and checks.

A workspace is that of every drill laid over the others, broken files last; grading asks what every drill's would. So
a chore is solved when each of its bugs is repaired, and an attempt to cheat at all of its drills at once is one here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from attrs import define, evolve, field

from composer_core import BuildContext, Patch, Task, TaskView, Tree, TreeRef
from composer_core.errors import ConfigError, did_you_mean
from composer_core.noise import key_of, shuffled
from composer_core.types import Grading, GradingRef
from composer_plugin_chores.chores import SPLITS, Chore, known, make
from composer_plugin_chores.config import ChoresConfig
from composer_plugin_drills import restoring, texts
from composer_plugin_drills.tasks import DrillSet
from composer_plugin_drills.workspace import grading, workspace

ID = "chores/chores"
SIZES = {"dev": 64, "held_out": 128}
HANDFUL = 3
VARIANTS = 2
"""How often the functions are repeated in shuffled handfuls in the texts."""
CASES = ".grade/cases.txt"


@define
class ChoreSet:
    """`protocols.TaskSet`; a chore is made when it is asked for."""

    config: ChoresConfig = field(factory=ChoresConfig)
    _chores: dict[str, Chore] = field(factory=dict)
    _tasks: dict[str, Task] = field(factory=dict)
    _trees: dict[TreeRef, Chore] = field(factory=dict)
    _drills: DrillSet = field(factory=DrillSet)

    def splits(self) -> Mapping[str, str]:
        return SPLITS

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split, kinds in turns; ConfigError when there is no such split."""
        return [self.task(chore.id) for chore in self._of(split)]

    def task(self, task_id: str) -> Task:
        """One task by its id; ConfigError when unknown."""
        if task_id not in self._tasks:
            self._tasks[task_id] = self._task(self.chore(task_id))
        return self._tasks[task_id]

    def _task(self, chore: Chore) -> Task:
        workspace = _workspace(chore).ref
        self._trees[workspace] = chore
        view = TaskView(
            id=chore.id,
            prompt=chore.prompt,
            workspace=workspace,
            needs=("python3",),
            labels={
                "bugs": str(len(chore.drills)),
                "named": chore.named,
                "files": "\n".join(chore.paths),
                "least_calls": str(chore.least_calls),
            },
        )
        return Task(view, GradingRef(ID, chore.id), chore.split)

    def chore(self, task_id: str) -> Chore:
        """What the worker may know; ConfigError when there is no such task."""
        if task_id not in self._chores:
            split = task_id.partition("-")[0]
            self._chores |= {chore.id: chore for chore in self._of(split)} if split in SPLITS else {}
        if task_id not in self._chores:
            fix = did_you_mean(task_id, self._chores) if self._chores else ""
            raise ConfigError(f"no task {task_id!r}", who=ID, expected="SPLIT-NAMED-BUGS-NUMBER", fix=fix)
        return self._chores[task_id]

    def tree(self, ref: TreeRef) -> Tree:
        for split in SPLITS if ref not in self._trees else ():
            self.tasks(split)
        if ref not in self._trees:
            raise ConfigError("no task has this workspace", who=ID, found=ref.sha256)
        return _workspace(self._trees[ref])

    def grading(self, ref: GradingRef) -> Grading:
        if ref.tasks != ID:
            raise ConfigError("this grading belongs to another task set", who=ID, found=ref.tasks)
        return _grading(self.chore(ref.key))

    def gold(self, task_id: str) -> Patch:
        return _all(self._drills.gold(drill.id) for drill in self.chore(task_id).drills)

    def exploits(self, task_id: str) -> Mapping[str, Patch]:
        """What drills know, tried at every file, and the repair of all files but the last."""
        chore = self.chore(task_id)
        each = [self._drills.exploits(drill.id) for drill in chore.drills]
        found = {name: _all(one[name] for one in each) for name in each[0]}
        if len(each) > 1:
            found["all-but-one"] = _all(self._drills.gold(drill.id) for drill in chore.drills[:-1])
        return found

    def texts(self, split: str) -> Iterable[str]:
        """`train`, `restoring` or `vocabulary`; edit sites of held-out splits are left alone."""
        functions = known(self.config.body_chars)
        if split == "train":
            return self._documents()
        if split == "restoring":
            return restoring.documents(functions, self.config.restoring_variants)
        if split == "vocabulary":
            return [*texts.vocabulary(functions, 0.0), *(chore.prompt for chore in self._of("train"))]
        raise ConfigError("no texts of this name", who=ID, expected="train, restoring or vocabulary", found=repr(split))

    def _documents(self) -> Iterator[str]:
        functions = known(self.config.body_chars)
        for variant in range(VARIANTS):
            order = shuffled(list(range(len(functions))), key_of("chores", variant))
            for start in range(0, len(order), HANDFUL):
                yield "\n".join(texts.document(functions[place]) for place in order[start : start + HANDFUL])

    def _of(self, split: str) -> list[Chore]:
        if split not in SPLITS:
            raise ConfigError(f"no split {split!r}", who=ID, found=repr(split), fix=did_you_mean(split, SPLITS))
        kinds, size = self.config.kinds, SIZES.get(split, self.config.train)
        return [make(split, kinds[at % len(kinds)], at // len(kinds), self.config.body_chars) for at in range(size)]


def _workspace(chore: Chore) -> Tree:
    files = {file.path: file.data for drill in chore.drills for file in workspace(drill).files}
    return Tree.of(files | {drill.path: drill.buggy.encode() for drill in chore.drills})


def _grading(chore: Chore) -> Grading:
    """That of the first drill, with the cases of all of them, each asked once."""
    found = [grading(drill) for drill in chore.drills]
    cases = {line: None for one in found for line in one.hidden.paths()[CASES].data.decode().splitlines()}
    hidden = {file.path: file.data for file in found[0].hidden.files} | {CASES: "\n".join([*cases, ""]).encode()}
    return evolve(
        found[0],
        hidden=Tree.of(hidden),
        names=tuple(line.split("\t")[2] for line in cases),
        timeout_s=max(one.timeout_s for one in found),
        expected={name: value for one in found for name, value in one.expected.items()},
    )


def _all(patches: Iterable[Patch]) -> Patch:
    """Patches of different drills as one; of files that several write, the last."""
    patches = [*patches]
    writes = {file.path: file for patch in patches for file in patch.writes}
    return Patch(tuple(writes.values()), tuple({path: None for patch in patches for path in patch.deletes}))


def build(config: ChoresConfig, build: BuildContext) -> ChoreSet:
    """Factory of the record."""
    return ChoreSet(config)
