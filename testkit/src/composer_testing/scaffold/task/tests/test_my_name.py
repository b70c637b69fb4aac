"""The task set keeps its kind's contract, and grades what it should in a real room."""

import asyncio
import re

import pytest

from composer_core import BuildContext, NoConfig, Patch, Task
from composer_plugin_my_name.tasks import SPLITS, MyNameTasks
from composer_testing.contracts.hook_modules import HookModuleContract
from composer_testing.contracts.tasks import TaskContract
from composer_testing.fakes.rooms import folder_rooms

TASKS = MyNameTasks(NoConfig(), BuildContext(None))
EVERY_TASK = [task for split in SPLITS for task in TASKS.tasks(split)]


class TestHookModule(HookModuleContract):
    module = "composer_plugin_my_name.plugin"


class TestMyName(TaskContract):
    unseen = ("held_out",)

    def build(self):
        return MyNameTasks(NoConfig(), BuildContext(None))


def solved(task: Task, patch: Patch) -> bool:
    """What a reward of hidden tests does: in a fresh room, every question is answered as expected."""
    grading = TASKS.grading(task.grading)

    async def body() -> str:
        async with folder_rooms(TASKS.tree(task.view.workspace), grading)() as room:
            await room.apply(patch)
            return (await room.run()).stdout.decode()

    values = dict(re.findall(r"^value (\d+) (.*)$", asyncio.run(body()), re.MULTILINE))
    return all(values.get(str(at)) == grading.expected[name] for at, name in enumerate(grading.names))


@pytest.mark.parametrize("task", EVERY_TASK, ids=lambda task: task.id)
def test_only_the_repair_is_solved(task):
    assert solved(task, TASKS.gold(task.id))
    assert not solved(task, Patch())
    assert not [name for name, patch in TASKS.exploits(task.id).items() if solved(task, patch)]
