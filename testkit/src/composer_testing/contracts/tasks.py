"""What every task set must do (`protocols.TaskSet`). Subclass `TaskContract` and override `build`."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from fnmatch import fnmatchcase

import pytest

from composer_core.errors import UserError
from composer_core.protocols import TaskSet
from composer_core.trees import Patch, Tree
from composer_core.types import EpisodeRequest, SlotKey, Task
from composer_testing.scrub import leaks


class TaskContract:
    """Name your subclass `Test...`; `build` must give equal task sets each time."""

    sample = 24
    """Tasks of each split that are looked at closely."""
    not_leaks: tuple[str, ...] = ()
    """Paths that look as if they told an answer and do not: a file `fix.patch` that belongs to the task, say."""
    unseen: tuple[str, ...] = ()
    """Splits none of whose repaired files may stand in `texts("train")`."""

    def build(self) -> TaskSet:
        raise NotImplementedError("return a task set")

    @pytest.fixture
    def tasks(self) -> TaskSet:
        return self.build()

    def some(self, tasks: TaskSet) -> Iterator[Task]:
        for split in tasks.splits():
            chosen = tasks.tasks(split)
            yield from chosen[:: max(1, len(chosen) // self.sample)]

    def test_splits_are_described_filled_and_disjoint(self, tasks: TaskSet) -> None:
        ids = {split: [task.id for task in tasks.tasks(split)] for split in tasks.splits()}
        everything = [one for members in ids.values() for one in members]
        assert all(tasks.splits().values())
        assert all(ids.values())
        assert len(everything) == len(set(everything))

    def test_two_builds_give_equal_tasks_in_equal_order(self, tasks: TaskSet) -> None:
        again = self.build()
        assert again.splits() == tasks.splits()
        for split in tasks.splits():
            assert list(again.tasks(split)) == list(tasks.tasks(split))

    def test_a_task_is_found_by_its_id(self, tasks: TaskSet) -> None:
        for split in tasks.splits():
            assert all(tasks.task(task.id) == task and task.split == split for task in tasks.tasks(split))

    def test_what_does_not_exist_is_a_user_error(self, tasks: TaskSet) -> None:
        with pytest.raises(UserError):
            tasks.task("no such task")
        with pytest.raises(UserError):
            tasks.tasks("no such split")

    def test_workspaces_are_what_their_reference_says(self, tasks: TaskSet) -> None:
        for task in self.some(tasks):
            assert tasks.tree(task.view.workspace).ref == task.view.workspace

    def test_workspaces_hold_no_history_caches_or_leftovers_that_may_tell_the_answer(self, tasks: TaskSet) -> None:
        for task in self.some(tasks):
            tree, gold = tasks.tree(task.view.workspace), tasks.gold(task.id)
            told = [found for found in leaks(tree) if found.partition(" is ")[0] not in self.not_leaks]
            assert not told, (
                f"the workspace of {task.id}: {'; '.join(told)}; fix: leave it out, or name it in `not_leaks`"
            )
            repaired = {file.data for file in gold.writes if file.data}
            assert not [file.path for file in tree.files if file.data in repaired], f"{task.id} holds its own repair"

    def test_an_episode_receives_no_hidden_byte(self, tasks: TaskSet) -> None:
        for task in self.some(tasks):
            request = EpisodeRequest(SlotKey(task.id, 0), "g", task.view, task.grading)
            received = pickle.dumps(request) + _bytes(tasks.tree(task.view.workspace))
            grading = tasks.grading(task.grading)
            assert grading.names
            assert not [name for name in grading.names if name.encode() in received]
            assert not [file.path for file in grading.hidden.files if file.data and file.data in received]

    def test_expected_values_belong_to_named_tests(self, tasks: TaskSet) -> None:
        for task in self.some(tasks):
            grading = tasks.grading(task.grading)
            assert grading.argv
            assert set(grading.expected) <= set(grading.names)

    def test_the_repair_is_a_change_that_reaches_the_room(self, tasks: TaskSet) -> None:
        for task in self.some(tasks):
            tree, gold = tasks.tree(task.view.workspace), tasks.gold(task.id)
            protected = tasks.grading(task.grading).protected
            assert gold.apply(tree) != tree
            assert unprotected(gold, protected) == gold

    def test_attempts_to_cheat_are_named_and_are_not_the_repair(self, tasks: TaskSet) -> None:
        for task in self.some(tasks):
            tree, gold = tasks.tree(task.view.workspace), tasks.gold(task.id)
            attempts = tasks.exploits(task.id)
            assert attempts
            assert all(patch and patch.apply(tree) != gold.apply(tree) for patch in attempts.values())

    def test_training_text_holds_nothing_of_unseen_splits(self, tasks: TaskSet) -> None:
        text = "\n".join(tasks.texts("train"))
        assert text
        for split in self.unseen:
            for task in tasks.tasks(split):
                assert not [file.path for file in tasks.gold(task.id).writes if file.data.decode().strip() in text]


def unprotected(patch: Patch, patterns: tuple[str, ...]) -> Patch:
    """The part of a patch that a grading room would apply."""
    return patch.only(lambda path: not any(fnmatchcase(path, pattern) for pattern in patterns))


def _bytes(tree: Tree) -> bytes:
    return b"\n".join(file.path.encode() + b"\n" + file.data for file in tree.files)
