"""The plugin: its kinds' contracts, what chores are made of, what the worker does, and what the probe counts."""

import asyncio
import json
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from composer_core import BuildContext, Patch
from composer_core.errors import ConfigError
from composer_core.grading import open_room
from composer_core.records import resolve
from composer_core.sandbox import Sandboxes
from composer_core.types import Call, GenerateRequest, GenerateSettings, SlotKey, Stop, ToolResult, Trace, Turn
from composer_plugin_chores.chores import OF_DRILLS, SPLITS, known
from composer_plugin_chores.config import ChoresConfig, WorkerConfig
from composer_plugin_chores.measures import measures
from composer_plugin_chores.tasks import ChoreSet
from composer_plugin_chores.worker import WASTE, WRONG, Worker
from composer_plugin_drills.demonstrator import STUB
from composer_plugin_hidden_tests.reward import hidden_tests
from composer_plugin_local.plugin import composer_sandboxes
from composer_testing.contracts.hook_modules import HookModuleContract
from composer_testing.contracts.tasks import TaskContract

KINDS = ("path-1", "path-2", "path-3", "function-1", "function-2")
SMALL = ChoresConfig(kinds=KINDS, train=60)
TASKS = ChoreSet(SMALL)


class TestHookModule(HookModuleContract):
    module = "composer_plugin_chores.plugin"


class TestChores(TaskContract):
    sample = 5

    def build(self):
        return ChoreSet(SMALL)


def graded(task_id, patches, folder):
    """What each patch is paid, in rooms behind real walls: attempts to cheat are real code."""
    (spec,) = [spec for spec in composer_sandboxes() if spec.name == "namespaces"]
    task = TASKS.task(task_id)

    async def body():
        provider = resolve(spec.factory)(spec.config(), BuildContext(folder))
        sandboxes = Sandboxes(provider, "local/namespaces", TASKS.tree)
        try:
            rooms = partial(open_room, sandboxes, task.view, TASKS.grading(task.grading))
            return [(await hidden_tests(patch, rooms)).value for patch in patches]
        finally:
            await provider.close()

    return asyncio.run(body())


@pytest.mark.parametrize("task_id", ["train-path-1-0001", "held_out-path-3-0002"])
def test_only_the_whole_repair_is_paid(task_id, tmp_path):
    gold, exploits = TASKS.gold(task_id), TASKS.exploits(task_id)
    paid = graded(task_id, [gold, Patch(), *exploits.values()], tmp_path)
    assert dict(zip(["gold", "nothing", *exploits], paid, strict=True)) == {
        "gold": 1.0,
        "nothing": 0.0,
        **dict.fromkeys(exploits, 0.0),
    }


def test_every_bug_of_a_chore_has_to_go(tmp_path):
    task_id = "dev-path-3-0004"
    gold = TASKS.gold(task_id)
    assert len(gold.writes) == 3
    parts = [Patch(tuple(file for file in gold.writes if file is not left)) for left in gold.writes]
    assert graded(task_id, [*parts, gold], tmp_path) == [0.0, 0.0, 0.0, 1.0]


def test_chores_are_of_their_splits_drills_and_of_short_functions():
    short = {function.path for function in known(SMALL.body_chars)}
    for split in SPLITS:
        for task in TASKS.tasks(split):
            chore = TASKS.chore(task.id)
            assert {drill.split for drill in chore.drills} == {OF_DRILLS[split]}
            assert set(chore.paths) <= short
            assert len(set(chore.paths)) == len(chore.drills) == int(task.id.split("-")[2])


def test_no_edit_site_of_a_held_out_chore_is_a_training_chores():
    sites = {split: set() for split in SPLITS}
    for split in SPLITS:
        for task in TASKS.tasks(split):
            sites[split] |= {(drill.path, drill.line, drill.after) for drill in TASKS.chore(task.id).drills}
    assert not sites["held_out"] & (sites["train"] | sites["dev"])
    assert not sites["dev"] & sites["train"]


def test_requests_name_files_or_functions_alone():
    for task in TASKS.tasks("train"):
        chore = TASKS.chore(task.id)
        named = chore.named == "path"
        assert all((path in task.view.prompt) is named for path in chore.paths)
        assert all(drill.function.name in task.view.prompt for drill in chore.drills)


def test_kinds_take_turns():
    counts = Counter("-".join(task.id.split("-")[1:3]) for task in TASKS.tasks("train"))
    assert counts == dict.fromkeys(KINDS, 12)


@pytest.mark.parametrize("kinds", [("path",), ("path-0",), ("path-5",), ("file-1",), (), ("path-1", "path-1")])
def test_a_kind_that_does_not_exist_is_refused(kinds):
    with pytest.raises(ValueError, match="kinds"):
        ChoresConfig(kinds=kinds)


def test_bodies_that_no_function_has_are_refused():
    with pytest.raises(ConfigError, match=r"tasks\.body_chars"):
        ChoreSet(ChoresConfig(body_chars=1)).tasks("train")


def test_texts_hold_the_functions_and_no_broken_file():
    text = "\n".join([*TASKS.texts("train"), *TASKS.texts("vocabulary")])
    assert not [function.path for function in known(SMALL.body_chars) if function.text not in text]
    for split in SPLITS:
        for task in TASKS.tasks(split):
            assert not [drill.id for drill in TASKS.chore(task.id).drills if drill.buggy in text]


class JsonRenderer:
    """A turn as the code points of its JSON, ended by 0."""

    def render(self, turn):
        return [*map(ord, json.dumps([[call.name, dict(call.arguments)] for call in turn.calls])), 0]


def played(task_id, noise, **habits):
    """Turns of calls of a whole attempt, asked for turn by turn."""
    parts = {"tasks": TASKS, "renderers": JsonRenderer()}
    worker = Worker(WorkerConfig(**habits), BuildContext(Path("unused"), get=parts.__getitem__))
    position, turns = 0, []
    while not turns or turns[-1][-1][0] != "finish":
        request = GenerateRequest("s", noise=noise, position=position, task_id=task_id)
        ids = asyncio.run(worker.generate([1], GenerateSettings(9999), request)).ids.values()
        position += len(ids)
        turns.append([tuple(call) for call in json.loads("".join(map(chr, ids[:-1])))])
    return turns


def repaired(task_id, turns):
    """The patch that a worker's edits and whole files make."""
    tree = {file.path: file.data.decode() for file in TASKS.tree(TASKS.task(task_id).view.workspace).files}
    before = dict(tree)
    for name, given in (call for turn in turns for call in turn):
        if name == "edit_file":
            assert tree[given["path"]].count(given["old"]) == 1
            tree[given["path"]] = tree[given["path"]].replace(given["old"], given["new"])
        elif name == "write_file":
            tree[given["path"]] = given["content"]
    return {path: text for path, text in tree.items() if before[path] != text}


@pytest.mark.parametrize("task_id", ["train-path-1-0003", "train-path-3-0003", "train-function-2-0003"])
def test_without_habits_it_wastes_no_call_and_repairs(task_id):
    turns = played(task_id, 5)
    chore = TASKS.chore(task_id)
    searches = len(chore.drills) if chore.named == "function" else 0
    assert [len(turn) for turn in turns] == [1] * (chore.least_calls + searches)
    assert repaired(task_id, turns) == {drill.path: drill.function.text for drill in chore.drills}


def test_waste_is_drawn_one_by_one_and_as_much_in_long_tasks_as_in_short():
    for task_id in ("train-path-1-0002", "train-path-3-0002"):
        least = TASKS.chore(task_id).least_calls
        assert len(played(task_id, 1, waste_share=1.0)) == least + len(WASTE)
        extra = [len(played(task_id, noise, waste_share=0.5)) - least for noise in range(200)]
        assert set(extra) == {0, 1, 2, 3, 4}
        assert abs(sum(extra) / 200 - 2.0) < 0.25


def test_at_once_all_files_are_read_in_one_turn_and_edited_in_one():
    turns = played("train-path-3-0001", 1, parallel_share=1.0)
    assert [[name for name, _ in turn] for turn in turns] == [["read_file"] * 3, ["edit_file"] * 3, ["finish"]]
    wide = [len(played("train-path-3-0001", noise, parallel_share=0.2)) == 3 for noise in range(500)]
    assert abs(sum(wide) / 500 - 0.2) < 0.06
    assert len(played("train-path-1-0001", 1, parallel_share=1.0)) == 3


def test_blind_it_writes_whole_files_from_memory_where_no_file_is_named():
    task_id = "train-function-2-0001"
    chore = TASKS.chore(task_id)
    turns = played(task_id, 1, blind_share=1.0, spare_share=0.0)
    assert [[name for name, _ in turn] for turn in turns] == [["write_file"], ["write_file"], ["finish"]]
    assert repaired(task_id, turns) == {drill.path: drill.function.text for drill in chore.drills}
    spared = played(task_id, 1, blind_share=1.0, spare_share=1.0)
    assert len(spared) == 4
    spare = spared[2][0][1]
    assert spare["path"] not in chore.paths
    assert {"path": spare["path"], "content": spare["content"]} in [
        {"path": one.path, "content": one.text} for one in known(TASKS.config.body_chars)
    ]
    assert spared[:2] + spared[3:] == turns
    assert played("train-path-2-0001", 1, blind_share=1.0) == played("train-path-2-0001", 1)


def test_a_wrong_repair_is_a_stub_of_the_commonest_bugs_alone():
    operators = set()
    for number in range(12):
        chore = TASKS.chore(f"train-path-2-{number:04d}")
        stubs = {given["path"]: given["new"] == STUB for given in _edits(played(chore.id, 1, wrong_share=1.0))}
        assert stubs == {drill.path: drill.operator in WRONG for drill in chore.drills}
        operators |= {drill.operator in WRONG for drill in chore.drills}
        assert all(given["new"] != STUB for given in _edits(played(chore.id, 1, wrong_share=0.0)))
    assert operators == {True, False}


def _edits(turns):
    return [given for turn in turns for name, given in turn if name == "edit_file"]


def test_an_attempt_made_again_is_the_same_and_other_attempts_are_not():
    habits = {"waste_share": 0.5, "wrong_share": 0.5, "parallel_share": 0.5}
    assert played("train-path-3-0000", 9, **habits) == played("train-path-3-0000", 9, **habits)
    assert len({str(played("train-path-3-0000", noise, **habits)) for noise in range(20)}) > 5


def test_it_refuses_tasks_of_another_set():
    worker = Worker(WorkerConfig(), BuildContext(Path("unused"), get={"tasks": object()}.__getitem__))
    with pytest.raises(ConfigError, match="chores"):
        worker.script(GenerateRequest("s", task_id="train-path-1-0000"))


# --- the probe ---


def traced(*turns):
    """A trace of turns of (name, arguments, result's text, facts)."""
    made = []
    for index, calls in enumerate(turns):
        ids = [str(place) for place in range(len(calls))]
        made.append(
            Turn(
                index=index,
                branch=0,
                start=0,
                stop=1,
                text="",
                calls=tuple(Call(id, name, given) for id, (name, given, _, _) in zip(ids, calls, strict=True)),
                results=tuple(
                    ToolResult(id, name, text, data=data, wall_s=0.5)
                    for id, (name, _, text, data) in zip(ids, calls, strict=True)
                ),
            )
        )
    return Trace(SlotKey("t", 0), "g", (), (), tuple(made), Stop.FINISHED)


def read(path):
    return "read_file", {"path": path}, "text", {"read": path}


def write(path):
    return "write_file", {"path": path, "content": ""}, "", {"written": path}


def search(found):
    return "grep", {"pattern": "def"}, f"{found}:1:def", {}


VIEW = TASKS.task("train-path-2-0005").view
A, B = VIEW.labels["files"].split("\n")
END = [("finish", {}, "", {})]


def counted(*turns):
    return measures(traced(*turns), VIEW).parts


def test_the_probe_weighs_nothing_and_counts_a_proper_attempt():
    found = counted([read(A)], [write(A)], [read(B)], [write(B)], END)
    assert measures(traced(END), VIEW).value == 0.0
    assert (found["excess"], found["looks"], found["reads"], found["needless"], found["blind"]) == (0, 1, 2, 0, 0)
    assert (found["reading_turns"], found["writing_turns"], found["writes"], found["bugs"]) == (2, 2, 2, 2)


def test_what_is_read_in_the_turn_of_the_edit_comes_too_late():
    assert counted([read(A), write(A)], END)["blind"] == 1
    assert counted([read(A), write(A)], END)["looks"] == 0
    assert counted([search(A)], [write(A)], END)["blind"] == 0
    assert counted([search(B)], [write(A)], END)["blind"] == 1


def test_a_look_at_the_same_file_or_for_the_same_pattern_counts_once():
    found = counted([read(A)], [search(A)], [read(A), search(B)], [write(A)], [read(B)], END)
    assert (found["looks"], found["reads"]) == (2, 3)


def test_edits_of_what_is_not_broken_and_second_edits_are_needless():
    found = counted([write(A)], [write("other.py")], [write(A)], END)
    assert (found["needless"], found["writes"], found["blind"]) == (2, 3, 2)


def test_failed_calls_are_calls_and_nothing_else():
    broken = traced([read(A)], END)
    results = tuple(ToolResult("0", "read_file", "no file", ok=False) for _ in range(1))
    turns = (Turn(0, 0, 0, 1, "", broken.turns[0].calls, results), broken.turns[1])
    found = measures(Trace(broken.key, "g", (), (), turns, Stop.FINISHED), VIEW).parts
    assert (found["reads"], found["looks"], found["excess"]) == (0, 0, 2 - 5)
