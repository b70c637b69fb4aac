"""The task set `drills/drills`: views, trees, gradings, repairs, attempts to cheat, and texts, all from the index.

Everything is derived on demand and kept: a split's views are made when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from attrs import define, field

from composer_core.errors import ConfigError, did_you_mean
from composer_core.protocols import BuildContext
from composer_core.trees import File, Patch, Tree, TreeRef
from composer_core.types import Grading, GradingRef, Task, TaskView
from composer_plugin_drills import restoring, texts
from composer_plugin_drills.catalog import Function, functions
from composer_plugin_drills.config import DrillsConfig
from composer_plugin_drills.drills import Drill, drills
from composer_plugin_drills.exploits import exploits
from composer_plugin_drills.prompts import prompt
from composer_plugin_drills.splits import SPLITS
from composer_plugin_drills.workspace import grading, workspace

ID = "drills/drills"


@define
class DrillSet:
    """`protocols.TaskSet` over the index of drills."""

    config: DrillsConfig = field(factory=DrillsConfig)
    _tasks: dict[str, Task] = field(factory=dict)
    _trees: dict[TreeRef, str] = field(factory=dict)

    def splits(self) -> Mapping[str, str]:
        return SPLITS

    def tasks(self, split: str) -> Sequence[Task]:
        """A split's tasks in their fixed order.

        Raises:
            ConfigError: there is no such split.
        """
        if split not in SPLITS:
            raise ConfigError(f"no split {split!r}", who=ID, found=repr(split), fix=did_you_mean(split, SPLITS))
        return [self.task(drill.id) for drill in self.drills() if drill.split == split]

    def drills(self) -> Iterator[Drill]:
        """The drills of the chosen modules, in index order.

        Raises:
            ConfigError: a chosen module does not exist.
        """
        known = {function.module for function in functions().values()}
        for module in self.config.modules:
            if module not in known:
                raise ConfigError(
                    f"no module {module!r}", who=ID, where="tasks.modules", fix=did_you_mean(module, known)
                )
        return (drill for drill in drills().values() if self._chosen(drill.function))

    def _chosen(self, function: Function) -> bool:
        return not self.config.modules or function.held_out or function.module in self.config.modules

    def task(self, task_id: str) -> Task:
        """One task by its id; ConfigError when unknown."""
        if task_id not in self._tasks:
            self._tasks[task_id] = self._make(self.drill(task_id))
        return self._tasks[task_id]

    def drill(self, task_id: str) -> Drill:
        """What the scripted samplers of this plugin know about a task."""
        found = drills().get(task_id)
        if found is None:
            raise ConfigError(f"no task {task_id!r}", who=ID, fix=did_you_mean(task_id, drills()))
        return found

    def tree(self, ref: TreeRef) -> Tree:
        if ref not in self._trees:
            for split in SPLITS:
                self.tasks(split)
        if ref not in self._trees:
            raise ConfigError("no task has this workspace", who=ID, found=ref.sha256)
        return workspace(self.drill(self._trees[ref]))

    def grading(self, ref: GradingRef) -> Grading:
        if ref.tasks != ID:
            raise ConfigError("this grading belongs to another task set", who=ID, found=ref.tasks)
        return grading(self.drill(ref.key))

    def gold(self, task_id: str) -> Patch:
        drill = self.drill(task_id)
        return Patch((File(drill.path, drill.function.text.encode()),))

    def exploits(self, task_id: str) -> Mapping[str, Patch]:
        return exploits(self.drill(task_id))

    def texts(self, split: str) -> Iterable[str]:
        """`train`, `restoring` or `vocabulary`; held-out splits have none."""
        if split == "train":
            return texts.train(self._known(), self.config.text_variants)
        if split == "restoring":
            return restoring.documents(self._known(), self.config.restoring_variants)
        if split == "vocabulary":
            return texts.vocabulary(self._known(), self.config.vague_share)
        raise ConfigError("no texts of this name", who=ID, expected="train, restoring or vocabulary", found=repr(split))

    def _known(self) -> list[Function]:
        """The functions that a policy may read about before it acts."""
        return [one for one in functions().values() if not one.held_out and self._chosen(one)]

    def _make(self, drill: Drill) -> Task:
        ref = workspace(drill).ref
        self._trees[ref] = drill.id
        view = TaskView(
            id=drill.id,
            prompt=prompt(drill, self.config.vague_share),
            workspace=ref,
            needs=("python3",),
            labels={
                "module": drill.function.module,
                "function": drill.function.name,
                "operator": drill.operator,
                "line": str(drill.line),
                "difficulty": drill.difficulty,
            },
        )
        return Task(view, GradingRef(ID, drill.id), drill.split)


def build(config: DrillsConfig, build: BuildContext) -> DrillSet:
    """Factory of the record."""
    return DrillSet(config)
