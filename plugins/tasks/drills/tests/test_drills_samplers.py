"""The scripted samplers: turns by position, repairs by habit, edits that match once, a blind guess."""

import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from composer_core.errors import ConfigError
from composer_core.protocols import BuildContext
from composer_core.types import GenerateRequest, GenerateSettings, ParsedTurn
from composer_plugin_drills import guesser as guesser_module
from composer_plugin_drills.catalog import body
from composer_plugin_drills.config import DemonstratorConfig, DrillsConfig, GuesserConfig
from composer_plugin_drills.demonstrator import STUB, Demonstrator
from composer_plugin_drills.drills import Drill, drills
from composer_plugin_drills.edits import FORMATS
from composer_plugin_drills.guesser import Guesser
from composer_plugin_drills.prompts import names_file
from composer_plugin_drills.script import edit
from composer_plugin_drills.tasks import DrillSet
from composer_plugin_drills.workspace import COMMAND

EVERY = list(drills().values())


class JsonRenderer:
    """A turn as the code points of its JSON, ended by 0."""

    def render(self, turn: ParsedTurn) -> list[int]:
        (call,) = turn.calls
        return [*map(ord, json.dumps([call.name, dict(call.arguments)])), 0]


def build(**parts: Any) -> BuildContext:
    known = {"tasks": DrillSet(DrillsConfig()), "renderers": JsonRenderer(), **parts}
    return BuildContext(Path("unused"), get=known.__getitem__)


def demonstrator(**settings: Any) -> Demonstrator:
    return Demonstrator(DemonstratorConfig(**settings), build())


def play(sampler: Any, drill: Drill, noise: int = 7, tokens: int = 999) -> list[tuple[str, dict[str, str]]]:
    """The calls of a whole attempt, asked for turn by turn."""
    position, calls = 0, []
    while not calls or calls[-1][0] != "finish":
        request = GenerateRequest("s", noise=noise, position=position, task_id=drill.id)
        completion = asyncio.run(sampler.generate([1, 2], GenerateSettings(tokens), request))
        ids = list(completion.ids.values())
        assert len(completion.logprobs) == len(ids)
        assert completion.versions == ((0, len(ids)),)
        position += len(ids)
        name, arguments = json.loads("".join(map(chr, ids[:-1])))
        calls.append((name, arguments))
    return calls


def repaired(drill: Drill, calls: list[tuple[str, dict[str, str]]]) -> str:
    (arguments,) = [arguments for name, arguments in calls if name == "edit_file"]
    assert drill.buggy.count(arguments["old"]) == 1
    return drill.buggy.replace(arguments["old"], arguments["new"])


def test_it_reads_edits_checks_and_finishes() -> None:
    sampler = demonstrator(wrong_share=0.0, check_first_share=0.0)
    for drill in EVERY[::100]:
        calls = play(sampler, drill)
        names = [name for name, _ in calls]
        looks = [] if names_file(drill, 0.15) else ["run_terminal"]
        assert names == [*looks, "read_file", "edit_file", "run_terminal", "finish"]
        assert dict(calls[len(looks)][1]) == {"path": drill.path}
        assert calls[-2][1] == {"command": COMMAND}
        assert repaired(drill, calls) == drill.function.text


@pytest.mark.parametrize("edits", list(FORMATS))
def test_every_drill_is_repaired_in_every_format_by_the_tools_own_rules(edits: str) -> None:
    """What each tool makes of its call is written down here once more; the tools themselves run in the run below."""
    for drill in EVERY[::20]:
        sampler = demonstrator(wrong_share=0.0, check_first_share=0.0, edits=edits)
        calls = dict(play(sampler, drill))
        assert {edits} == set(calls) & set(FORMATS)
        assert applied(edits, drill.buggy, calls[edits]) == drill.function.text


def applied(edits: str, text: str, arguments: dict[str, Any]) -> str:
    """A file after an edit."""
    if edits == "edit_file":
        return text.replace(arguments["old"], arguments["new"])
    if edits == "edit_lines":
        lines = text.split("\n")
        lines[arguments["first"] - 1 : arguments["last"]] = arguments["text"].split("\n")
        return "\n".join(lines)
    begin, _, hunk, *rows, end = arguments["patch"].split("\n")
    assert (begin, hunk, end) == ("*** Begin Patch", "@@", "*** End Patch")
    old, new = ("".join(f"{row[1:]}\n" for row in rows if row[0] == mark) for mark in "-+")
    assert text.count(old) == 1
    return text.replace(old, new)


def test_its_usual_repair_of_a_habit_is_a_stub_and_it_finishes_anyway() -> None:
    sampler = demonstrator()
    wrong: Counter[bool] = Counter()
    for drill in EVERY[::4]:
        text = repaired(drill, calls := play(sampler, drill, noise=3))
        habit = drill.operator in DemonstratorConfig().wrong_habits
        assert text in (drill.function.text, drill.buggy.replace(body(drill.buggy), STUB))
        assert [name for name, _ in calls][-2:] == ["run_terminal", "finish"]
        wrong[habit] += text != drill.function.text
    habits = sum(drill.operator in DemonstratorConfig().wrong_habits for drill in EVERY[::4])
    assert 0.70 < wrong[True] / habits < 0.80
    assert wrong[False] == 0


@pytest.mark.parametrize("split", ["train", "new_bug", "new_bug_dev"])
def test_wrong_habits_cover_most_of_a_split_and_not_all(split: str) -> None:
    chosen = [drill for drill in EVERY if drill.split == split]
    share = sum(drill.operator in DemonstratorConfig().wrong_habits for drill in chosen) / len(chosen)
    assert 0.7 <= share <= 0.85


def test_the_same_noise_gives_the_same_attempt_and_other_noise_another() -> None:
    sampler = demonstrator()
    attempts = [str([play(sampler, drill, noise) for drill in EVERY[:20]]) for noise in (1, 1, 2)]
    assert attempts[0] == attempts[1] != attempts[2]


def test_a_turn_cut_by_the_token_limit_goes_on_where_it_was_cut() -> None:
    sampler, drill = demonstrator(), EVERY[0]
    whole = asyncio.run(sampler.generate([], GenerateSettings(999), GenerateRequest("s", task_id=drill.id)))
    head = asyncio.run(sampler.generate([], GenerateSettings(5), GenerateRequest("s", task_id=drill.id)))
    tail = asyncio.run(sampler.generate([], GenerateSettings(999), GenerateRequest("s", task_id=drill.id, position=5)))
    assert (head.stop, tail.stop) == ("length", "stop")
    assert head.ids.data + tail.ids.data == whole.ids.data
    assert sampler.stats()["tokens"] == len(whole.ids) * 2


class Characters:
    """A tokenizer of code points."""

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


class WordsRenderer(JsonRenderer):
    """A turn of words alone is its words."""

    def render(self, turn: ParsedTurn) -> list[int]:
        return super().render(turn) if turn.calls else [*map(ord, turn.text), 0]


def recapping(asked_after: int) -> list[str]:
    """What it says of a drill when it is asked to sum up after so many turns, and then goes on from that alone."""
    parts = build(tokenizer=Characters(), renderers=WordsRenderer())
    config = DemonstratorConfig(recap="RECAP", check_first_share=0.0, wrong_share=0.0)
    sampler, drill = Demonstrator(config, parts), next(drill for drill in EVERY if names_file(drill, 0.15))
    window, said = "", []
    while not said or "finish" not in said[-1].partition(";")[0]:
        asked = len(said) == asked_after
        shown = list(map(ord, window + "RECAP" * asked))
        request = GenerateRequest("s", task_id=drill.id, position=999)
        completion = asyncio.run(sampler.generate(shown, GenerateSettings(999), request))
        said.append("".join(map(chr, list(completion.ids.values())[:-1])))
        window = said[-1] if asked else window + said[-1] + "\0a result"
    return [json.loads(text)[0] if text[0] == "[" else text for text in said]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (1, ["read_file", "did read_file; next edit_file.", "read_file", "edit_file", "run_terminal", "finish"]),
        (2, ["read_file", "edit_file", "did read_file, edit_file; next run_terminal.", "run_terminal", "finish"]),
        (
            3,
            [
                "read_file",
                "edit_file",
                "run_terminal",
                "did read_file, edit_file, run_terminal; next finish.",
                "finish",
            ],
        ),
    ],
)
def test_asked_to_sum_up_it_tells_the_truth_and_goes_on_from_it(after: int, expected: list[str]) -> None:
    assert recapping(after) == expected


def test_odds_are_counted_once_however_many_ask_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def count(sample: int) -> dict[Any, float]:
        counted.append(sample)
        time.sleep(0.05)
        return {}

    monkeypatch.setattr(guesser_module, "count_odds", count)
    guesser = Guesser(GuesserConfig(sample=9), build())
    requests = [GenerateRequest(drill.id, task_id=drill.id) for drill in EVERY[:8]]

    async def main() -> None:
        await asyncio.gather(*(guesser.generate([], GenerateSettings(999), request) for request in requests))

    asyncio.run(main())
    assert counted == [9]


@pytest.mark.parametrize("line", [2, 4])
def test_an_edit_of_a_line_that_stands_twice_quotes_its_surroundings(line: int) -> None:
    text = "a\n  x = 1\nb\n  x = 1\nc\n"
    (call,) = edit("f.py", text, line, "  x = 2").calls
    expected = text.split("\n")
    expected[line - 1] = "  x = 2"
    assert text.count(call.arguments["old"]) == 1
    assert text.replace(call.arguments["old"], call.arguments["new"]).split("\n") == expected


def test_every_drill_can_be_repaired_by_a_unique_match() -> None:
    for drill in EVERY:
        assert drill.buggy.count(body(drill.buggy)) == 1
        (call,) = edit(drill.path, drill.buggy, drill.line, drill.before).calls
        assert drill.buggy.count(call.arguments["old"]) == 1
        assert drill.buggy.replace(call.arguments["old"], call.arguments["new"]) == drill.function.text


def test_a_habit_of_no_operator_and_another_task_set_are_refused() -> None:
    with pytest.raises(ConfigError, match="comparr"):
        demonstrator(wrong_habits=("comparr",))
    sampler = Demonstrator(DemonstratorConfig(), build(tasks=object()))
    with pytest.raises(ConfigError, match="only act out drills"):
        asyncio.run(sampler.generate([], GenerateSettings(9), GenerateRequest("s", task_id=EVERY[0].id)))


def test_the_guesser_is_better_than_chance_and_far_from_knowing() -> None:
    sampler = Guesser(GuesserConfig(), build())
    assert [name for name, _ in play(sampler, EVERY[0])] == ["read_file", "edit_file", "finish"]
    held_out = [drill for drill in EVERY if drill.split == "new_bug"]
    guesses = [(drill, sampler.guess(drill)) for drill in held_out]
    right = sum(guess is not None and guess.apply(drill.buggy) == drill.function.text for drill, guess in guesses)
    assert 0.08 < right / len(held_out) < 0.3
