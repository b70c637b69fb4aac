"""The bugs as tasks. Everything here is on the trusted side; an episode receives `Task.view` and the workspace."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from composer_core import BuildContext, File, NoConfig, Patch, Task, TaskView, Tree, TreeRef
from composer_core.errors import ConfigError, did_you_mean
from composer_core.types import Grading, GradingRef
from composer_plugin_my_name.bugs import BUGS, Bug

ID = "my-name/my-name"
SPLITS = {"train": "bugs to learn from", "held_out": "bugs for evaluations alone"}
ROOM = Path(__file__).with_name("room.py")


class MyNameTasks:
    """`protocols.TaskSet`: equal builds give equal tasks in equal order."""

    def __init__(self, config: NoConfig, build: BuildContext) -> None:
        self._bugs = {f"my-name-{bug.name}": bug for bug in BUGS}
        self._trees = {tree.ref: tree for tree in map(_workspace, BUGS)}

    def splits(self) -> Mapping[str, str]:
        """Split -> what it is."""
        return SPLITS

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split."""
        if split not in SPLITS:
            raise ConfigError(f"no split {split!r}", who=ID, fix=did_you_mean(split, SPLITS))
        return [self.task(task_id) for task_id, bug in self._bugs.items() if bug.split == split]

    def task(self, task_id: str) -> Task:
        """What the episode may know is in the view; `GradingRef` names the rest without holding any of it."""
        bug = self._bug(task_id)
        view = TaskView(id=task_id, prompt=bug.prompt, workspace=_workspace(bug).ref, needs=("python3",))
        return Task(view, GradingRef(ID, task_id), bug.split)

    def tree(self, ref: TreeRef) -> Tree:
        """The workspace before the agent touches it."""
        return self._trees[ref]

    def grading(self, ref: GradingRef) -> Grading:
        """What arrives in the fresh fork, and the values that the reward compares on the trusted side."""
        bug = self._bug(ref.key)
        questions = "\n".join([bug.name, *bug.questions])
        return Grading(
            hidden=Tree.of({".grade/room.py": ROOM.read_bytes(), ".grade/questions.txt": questions}),
            argv=("python3", "-ISB", ".grade/room.py"),
            protected=(".grade/*",),
            names=tuple(bug.questions),
            expected=bug.questions,
        )

    def gold(self, task_id: str) -> Patch:
        """The repair; `composer-run validate` shows that it scores 1."""
        return _rewrite(self._bug(task_id), self._bug(task_id).fixed)

    def exploits(self, task_id: str) -> Mapping[str, Patch]:
        """Attempts to be paid without a repair; `composer-run validate` shows that each scores 0."""
        bug = self._bug(task_id)
        forged = "".join(f"print('value {number} 0')\n" for number in range(len(bug.questions)))
        return {
            "stub": _rewrite(bug, f"def {bug.name}(*_):\n    return None\n"),
            "forges the report": _rewrite(bug, f"{forged}import os\nos._exit(0)\n"),
            "replaces the runner": Patch((File(".grade/room.py", forged.encode()),)),
        }

    def texts(self, split: str) -> Iterable[str]:
        """Documents to pre-train on: repaired files of `train`, never of another split."""
        return [bug.fixed for bug in BUGS if bug.split == split == "train"]

    def _bug(self, task_id: str) -> Bug:
        if task_id not in self._bugs:
            raise ConfigError(f"no task {task_id!r}", who=ID, fix=did_you_mean(task_id, self._bugs))
        return self._bugs[task_id]


def _workspace(bug: Bug) -> Tree:
    return Tree.of({f"{bug.name}.py": bug.broken})


def _rewrite(bug: Bug, source: str) -> Patch:
    return Patch((File(f"{bug.name}.py", source.encode()),))
