"""The task set: contract, splits, prompts, texts, and that loading is quick work."""

import ast
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from composer_core.errors import ConfigError, UserError
from composer_core.types import GradingRef
from composer_plugin_drills.catalog import HELD_OUT, functions, siblings
from composer_plugin_drills.config import DrillsConfig
from composer_plugin_drills.drills import Drill, drills, dump, header
from composer_plugin_drills.inroom import run
from composer_plugin_drills.inroom.run import canonical
from composer_plugin_drills.prompts import names_file, prompt
from composer_plugin_drills.tasks import DrillSet
from composer_plugin_drills.workspace import company, grading, workspace
from composer_testing.contracts.tasks import TaskContract

RUNNER = Path(run.__file__)


class TestDrillsContract(TaskContract):
    unseen = ("new_function",)

    def build(self) -> DrillSet:
        return DrillSet(DrillsConfig())


def split(name: str) -> list[Drill]:
    return [drill for drill in drills().values() if drill.split == name]


def test_the_library_has_200_functions_in_20_modules_and_each_has_checks() -> None:
    modules = Counter(function.module for function in functions().values())
    assert len(functions()) >= 200
    assert len(modules) == 20
    assert min(modules.values()) >= 4
    assert all(len(one.visible) >= 2 and len(one.hidden) >= 4 for one in functions().values())


def test_hidden_checks_are_distinct_from_visible_ones() -> None:
    for function in functions().values():
        hidden = [one.expression for one in function.hidden]
        assert len(hidden) == len(set(hidden)), function.path
        assert not set(hidden) & {one.expression for one in function.visible}, function.path


def test_checks_fit_the_formats_they_are_written_in() -> None:
    for function in functions().values():
        for one in (*function.visible, *function.hidden):
            assert not set("\n\t") & set(one.expression)
            assert canonical(ast.literal_eval(one.literal)) == one.value
            assert " == " not in one.literal


def test_workspace_modules_do_not_shadow_the_standard_library() -> None:
    assert not {function.module for function in functions().values()} & set(sys.stdlib_module_names)


def test_splits_are_large_enough() -> None:
    sizes = {name: len(split(name)) for name in DrillSet().splits()}
    assert sizes["train"] >= 1500
    assert sizes["new_bug"] >= 160
    assert sizes["new_bug_dev"] >= 160
    assert sizes["new_function"] >= 100


def test_no_training_task_changes_what_stands_at_a_held_out_site() -> None:
    sites: dict[tuple[str, int], list[tuple[str, tuple[int, int]]]] = defaultdict(list)
    for drill in drills().values():
        sites[drill.path, drill.line].append((drill.split, drill.span))
    for line in sites.values():
        held_out = [(name, span) for name, span in line if name in ("new_bug", "new_bug_dev")]
        for name, (start, stop) in held_out:
            others = [span for other, span in line if other != name]
            assert all(stop <= other_start or other_stop <= start for other_start, other_stop in others)


def test_functions_of_new_bug_are_seen_in_training_and_those_of_new_function_never() -> None:
    seen = {drill.path for drill in split("train")}
    assert {drill.path for drill in [*split("new_bug"), *split("new_bug_dev")]} <= seen
    assert {drill.function.module for drill in split("new_function")} == set(HELD_OUT)
    assert not [drill for drill in drills().values() if drill.split != "new_function" and drill.function.held_out]


def test_new_bug_differs_from_training_in_sites_and_not_in_kinds() -> None:
    train, new = (Counter(drill.operator for drill in split(name)) for name in ("train", "new_bug"))
    for operator in ("arithmetic", "augmented", "compare", "constant", "variable"):
        assert abs(train[operator] / train.total() - new[operator] / new.total()) < 0.08


def test_a_drill_changes_one_line() -> None:
    for drill in drills().values():
        pairs = zip(drill.function.text.split("\n"), drill.buggy.split("\n"), strict=True)
        changed = [number for number, (one, two) in enumerate(pairs, 1) if one != two]
        assert changed == [drill.line]
        start, stop = drill.span
        assert drill.before[:start] == drill.after[:start]
        assert drill.after.endswith(drill.before[stop:])


def test_a_workspace_is_small_and_holds_the_bug_once() -> None:
    for drill in list(drills().values())[::20]:
        tree = workspace(drill)
        files = {file.path: file.data.decode() for file in tree.files}
        assert files[drill.path] == drill.buggy
        assert len(company(drill)) == 3
        assert drill.function not in company(drill)
        assert all(files[one.path] == one.text for one in company(drill))
        assert drill.function.text not in "\n".join(files.values())
        assert max(len(files[path]) for path in files if path != "check.py") < 700


def test_prompts_are_short_and_name_what_they_may() -> None:
    named = 0
    for drill in drills().values():
        text = prompt(drill, 0.15)
        assert len(text.split()) <= 8
        assert (drill.path in text) == names_file(drill, 0.15)
        assert drill.function.module in text
        named += drill.path in text
    assert 0.8 < named / len(drills()) < 0.9
    assert all(drill.path in prompt(drill, 0.0) for drill in split("new_bug"))


def test_training_text_is_whole_files_of_known_modules() -> None:
    documents = list(DrillSet(DrillsConfig(text_variants=1)).texts("train"))
    text = "\n".join(documents)
    for function in functions().values():
        assert text.count(f"{function.path}\n{function.text}") == (0 if function.held_out else 2)
        assert not [one for one in function.hidden if one.expression in text]


def test_vocabulary_text_holds_no_held_out_module() -> None:
    text = "\n".join(DrillSet().texts("vocabulary"))
    assert "read_file" in text and "FAIL " in text and "check.py" in text
    assert not [one for name in HELD_OUT for one in siblings(name) if one.text in text or one.path in text]


def test_sibling_checks_are_graded_too() -> None:
    for drill in split("new_bug")[:20]:
        names = grading(drill).names
        assert len(names) == len(set(names)) == len(drill.function.hidden) + 6


def test_the_index_says_when_the_library_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("composer_plugin_drills.drills.header", lambda: {"library": "another"})
    drills.cache_clear()
    try:
        with pytest.raises(ConfigError, match="older than the library"):
            drills()
    finally:
        monkeypatch.undo()
        drills.cache_clear()
    assert dump(drills().values()).startswith(f'{{"library": "{header()["library"]}')


def test_the_room_gets_questions_and_no_answers() -> None:
    for drill in split("new_bug")[:20]:
        room = grading(drill)
        files = {file.path: file.data.decode() for file in room.hidden.files}
        cases = [line.split("\t")[2] for line in files.pop(".grade/cases.txt").splitlines()]
        assert cases == list(room.names) == list(room.expected)
        assert files == {".grade/run.py": RUNNER.read_text()}


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_outside_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="vague_share"):
        DrillsConfig(vague_share=share)


def test_a_grading_of_another_task_set_is_refused() -> None:
    with pytest.raises(UserError):
        DrillSet().grading(GradingRef("other/tasks", "x"))
