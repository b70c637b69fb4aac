"""Write the sum of two numbers into answer.txt; `cmp` compares it with a hidden file, in memory as in any sandbox."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from composer_core.protocols import BuildContext, ExecResult
from composer_core.trees import File, Patch, Tree, TreeRef
from composer_core.types import Grading, GradingRef, Task, TaskView, Trace
from composer_testing.fakes.config import TasksConfig
from composer_testing.fakes.sandbox import MemoryProvider

SPLITS = {"train": "sums below 1,000", "held_out": "sums above 1,000"}


class Sums:
    """`protocols.TaskSet`: task `sum-a-b` asks for a + b."""

    def __init__(self, config: TasksConfig, build: BuildContext | None = None) -> None:
        self._count = config.count
        self._tree = Tree.of({"answer.txt": "?"})

    def splits(self) -> Mapping[str, str]:
        return SPLITS

    def tasks(self, split: str) -> Sequence[Task]:
        base = {"train": 0, "held_out": 1000}[split]
        return [self._task(base + number, number * 7 % 11, split) for number in range(self._count)]

    def task(self, task_id: str) -> Task:
        return next(task for split in SPLITS for task in self.tasks(split) if task.id == task_id)

    def _task(self, a: int, b: int, split: str) -> Task:
        name = f"sum-{a}-{b}"
        view = TaskView(id=name, prompt=f"write {a} plus {b} into answer.txt", workspace=self._tree.ref)
        return Task(view, GradingRef("fakes/sums", name), split)

    def tree(self, ref: TreeRef) -> Tree:
        return self._tree

    def grading(self, ref: GradingRef) -> Grading:
        want = Tree.of({"hidden/want.txt": str(answer(ref.key))})
        return Grading(hidden=want, argv=("cmp", "answer.txt", "hidden/want.txt"), protected=("hidden/*",))

    def gold(self, task_id: str) -> Patch:
        return Patch((File("answer.txt", str(answer(task_id)).encode()),))

    def exploits(self, task_id: str) -> Mapping[str, Patch]:
        return {
            "writes the hidden file": Patch((File("hidden/want.txt", b"?"),)),
            "deletes the answer": Patch(deletes=("answer.txt",)),
        }

    def texts(self, split: str) -> Iterable[str]:
        return [task.view.prompt for task in self.tasks("train")]


def answer(task_id: str) -> int:
    """The sum that a task's id names."""
    _, a, b = task_id.split("-")
    return int(a) + int(b)


def cmp(files: dict[str, bytes], argv: Sequence[str], stdin: bytes) -> ExecResult:
    """The command of that name: exit 0 if two files are equal, 2 if one is missing."""
    ours, theirs = (files.get(path) for path in argv[1:])
    return ExecResult("exited", 2 if ours is None or theirs is None else int(ours != theirs))


def sandboxes(config: Any, build: BuildContext) -> MemoryProvider:
    return MemoryProvider(commands={"cmp": cmp})


async def checked(patch: Patch, grading: Any) -> float:
    """Outcome: the grading command exits with 0 in a fresh fork."""
    async with grading() as room:
        await room.apply(patch)
        result = await room.run()
    return float(result.exit_code == 0)


def every_other(trace: Trace) -> float:
    """1 for attempts of odd number, 0 for the others, whatever was done."""
    return float(trace.key.attempt % 2)
