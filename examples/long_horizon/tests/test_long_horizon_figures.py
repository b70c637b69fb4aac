"""What the page says follows from what was measured: on made-up runs with known answers."""

import json
import math
from xml.etree import ElementTree

import pytest
from attrs import evolve
from comparison.arms import ARMS, HERE, RUNS
from comparison.figures import Measured, Results, errors, pooled, ratio, read
from comparison.page import NOTES, bars, page
from comparison.plot import svg

from composer_core import statistics
from composer_core.config import load
from composer_core.types import Limits, Message, ToolResult
from composer_plugin_hf.renderers.config import XML_TOKENS
from composer_plugin_hf.renderers.xml import XmlRenderer
from composer_plugin_hf.tokenizer import train
from composer_plugin_logbook.config import BooksConfig
from composer_plugin_logbook.summaries import REQUEST, WAYS
from composer_plugin_logbook.tasks import PROMPT, Books
from composer_plugin_summary.check import needs, opens_with
from composer_plugin_summary.config import PromptedConfig, SummaryConfig, TruncateConfig

TASKS = 128
VOCABULARY = load(HERE / "base.toml").model.settings["vocab_size"]
CALL = 10
"""Tokens of a call that turns a page, and of what stands around its result."""
BASE_S = [100.0, 300.0, 200.0]


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 200)


def rows(solved):
    """Every task with four attempts, of which about a share is solved, more of them in some tasks than in others."""
    made = {}
    for number in range(TASKS):
        count = min(4, max(0, round(4 * solved + (number % 3 - 1) * (0 < solved < 1))))
        made[f"t{number}"] = [1] * count + [0] * (4 - count)
    return made


def measured(solved, tokens=0.0, limited=0.0, silent=0.0):
    return Measured(rows(solved), tokens, 10.0 * bool(tokens), 0.9 if tokens else 1.0, 0.0, limited, silent, 200.0)


def arms(ours=0.75, prompted=0.5, unlimited=1.0, tokens=15.0):
    found = {
        "unlimited": measured(unlimited),
        "truncate": measured(0.0),
        "prompted-sft": measured(0.0, 82.0),
        "prompted": measured(prompted, 82.0),
        "self-sft": measured(0.5, 15.0),
        "self": measured(ours, tokens),
    }
    return {name: [one] * 3 for name, one in found.items()}


def told(**changed):
    return paged(arms(**changed))


def paged(found):
    return page(Results(found, BASE_S, "command", "machine"), "a note\n")


def test_errors_are_what_is_lost_against_the_unlimited_window():
    lost = errors({"a": [1, 1], "b": [1, 0], "c": [1]}, {"a": [1, 0], "b": [1, 1]})
    assert lost == {"a": 0.5, "b": -0.5}


def of(unlimited, prompted, ours):
    """The ratio of three seeds that found the same."""
    return ratio(*([rows(share)] * 3 for share in (unlimited, prompted, ours)))


def test_the_ratio_of_two_arms_has_its_interval_around_it():
    found = of(1.0, 0.5, 0.75)
    assert found.value == pytest.approx(0.5, abs=0.02)
    assert found.low < found.value < found.high
    assert found.high - found.low < 0.2
    assert of(1.0, 0.5, 0.5).value == 1.0
    assert of(1.0, 0.5, 1.0).value == 0.0


def test_seeds_that_disagree_widen_the_interval():
    found = ratio([rows(1.0)] * 3, [rows(0.5)] * 3, [rows(share) for share in (1.0, 0.75, 0.5)])
    assert found.value == pytest.approx(of(1.0, 0.5, 0.75).value, abs=0.02)
    assert found.low < 0.2
    assert found.high == 1.0


def test_a_ratio_that_would_mean_nothing_is_not_quoted():
    assert of(0.75, 0.25, 0.5) is None
    assert of(1.0, 1.0, 1.0) is None
    assert "No ratio of errors is quoted" in told(unlimited=0.75)
    assert "aimed at 0.5" not in told(unlimited=0.75)


def test_a_resample_without_an_error_of_prompted_widens_the_interval():
    hard = {f"t{number}": [0] if number == 0 else [1] for number in range(8)}
    every = {task: [1] for task in hard}
    assert ratio([every], [hard], [hard]).high == math.inf


def test_seeds_are_pooled_by_task():
    assert pooled([measured(1.0), measured(0.0)])["t1"] == [1] * 4 + [0] * 4


def test_the_page_says_what_was_reached_and_what_was_missed():
    assert told(ours=1.0).count(": met.") == 3
    missed = told(ours=0.5, tokens=40.0)
    assert missed.count("MISSED") == 2
    assert "**1.00 (1.00 to 1.00)** of prompted's, in a seed alone 1.00, 1.00, 1.00;" in missed
    assert "It is 0.50 (" in missed
    assert "**0.49** of prompted's tokens" in missed
    table = [line for line in told().splitlines() if line.startswith("| self |")]
    assert "| 0.748 (" in table[0] and "| 15.0 | 10.0 | 0.900 | 200 |" in table[0]


def test_a_ratio_whose_interval_passes_the_aim_does_not_meet_it():
    found = arms(ours=0.8)
    found["self"] = [measured(share) for share in (1.0, 1.0, 0.5)]
    said = next(line for line in paged(found).splitlines() if line.startswith("- Self's error"))
    assert "in a seed alone 0.00, 0.00, 1.00;" in said
    assert said.endswith("MISSED.")


def test_the_longest_arm_counts_with_what_it_begins_with():
    assert "The longest arm took 500 s with what it begins with; at most 3600 s a seed: met." in told()
    found = {**arms(), "truncate": [evolve(measured(0.0), wall_s=3301.0)] * 3}
    assert "took 3601 s with what it begins with; at most 3600 s a seed: MISSED." in paged(found)
    before = [line for line in told().splitlines() if line.startswith("| self, before RL |")]
    assert before[0].endswith("| - |")


def test_the_published_page_is_made_of_what_was_measured(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 2000)
    made = page(Results.read(HERE / "results.json"), NOTES.read_text(encoding="utf-8"))
    assert made == (HERE.parent.parent / "docs/long_horizon.md").read_text(encoding="utf-8")


def test_intervals_that_are_too_wide_are_named():
    found = {name: [Measured({"a": [1], "b": [0]}, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0)] * 3 for name in ARMS}
    assert "wider than 0.05" in paged(found)
    assert "wider than 0.05" not in told()


def test_what_limits_cut_short_is_named():
    found = {**arms(), "truncate": [measured(0.0, limited=0.25, silent=0.5)] * 3}
    said = (
        "truncation: 0.0% of summaries met their limit, 25.0% of episodes theirs, and 50.0% ended with a turn without"
    )
    assert said in paged(found)
    assert "met their limit" not in told()


def test_what_was_measured_is_kept_and_gives_the_same_page(tmp_path):
    results = Results(arms(), BASE_S, "command", "machine")
    results.write(tmp_path / "results.json")
    assert page(Results.read(tmp_path / "results.json"), "a note") == page(results, "a note")


def test_the_figure_is_well_formed_and_has_every_arm():
    tree = ElementTree.fromstring(svg(bars(arms())))
    texts = [node.text for node in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert {arm.title for arm in ARMS.values()} <= set(texts)
    assert len(list(tree.iter("{http://www.w3.org/2000/svg}circle"))) == 3 * len(ARMS)


def test_figures_are_read_from_a_run_folder(tmp_path):
    (tmp_path / "evaluations").mkdir()
    (tmp_path / "evaluations/after-main.json").write_text(json.dumps({"rows": {"a": [1, 0]}}))
    (tmp_path / "summary.json").write_text(json.dumps({"wall_s": 12.5}))
    events = [ended("after/main", 0, 3, 10.0), ended("after/main", 1, 1, 30.0), ended("rl", 0, 9, 99.0)]
    events += [ended("after/main", 2, 0, 0.0), ended("after/main", 3, 0, 0.0)]
    events.insert(0, ended("after/main", 0, 7, 70.0))  # made again after an interruption: the later one counts
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    assert read(tmp_path, "after") == Measured({"a": [1, 0]}, 15.0, 1.0, 0.5, 0.25, 0.25, 0.5, 12.5)


STOPS = ["finished", "turns", "no_call", "no_call"]
"""Of attempts 0 to 3."""


def ended(purpose, attempt, segments, tokens):
    parts = {"segments": segments, "summary_tokens": tokens, "cut_share": float(segments == 1)}
    scores = [{"reward": "summary/kept", "value": 0.5, "parts": parts}, {"reward": "other", "value": 1.0, "parts": {}}]
    result = {"key": {"task_id": "a", "attempt": attempt}, "scores": scores, "stop": STOPS[attempt]}
    return {"event": "EpisodeEnded", "purpose": purpose, "result": result}


@pytest.mark.parametrize("name", ["truncate", "prompted", "self"])
def test_whatever_a_turn_brings_fits_into_the_window(name):
    config = load(HERE / "run.toml", RUNS[name])
    kind = {"self": SummaryConfig, "prompted": PromptedConfig, "truncate": TruncateConfig}[name]
    context, limits = kind(**{**config.context.settings, "state": ()}), Limits(**config.limits)
    assert sum(needs(context, limits).values()) <= limits.context_tokens == config.sampler.settings["context_tokens"]
    assert opens_with(context, limits) < context.trigger_tokens


def test_no_message_has_more_around_it_than_is_promised():
    tokenizer = train(["turn", "answer", "word", "text"] * 2000, VOCABULARY, XML_TOKENS)
    renderer = XmlRenderer(tokenizer, "none")
    asked = renderer.request(Message("user", REQUEST), ended=False)
    shown = renderer.results([ToolResult("c0", "turn", "a page")], ended=False)
    around = max(len(asked) - len(tokenizer.encode(REQUEST)), len(shown) - len(tokenizer.encode("a page")))
    for settings in RUNS.values():
        context = load(HERE / "run.toml", settings).context.settings
        assert context.get("frame_tokens", around) == around


def test_what_is_promised_of_tokens_holds_and_a_book_is_four_windows():
    config = load(HERE / "run.toml")
    tasks = Books(BooksConfig(**config.tasks.settings))
    tokenizer = train([*["turn", "answer", "word", "text"] * 2000, *tasks.texts("vocabulary")], VOCABULARY, XML_TOKENS)
    for number in range(8):
        book = tasks.book(f"dev-{number:04d}")
        for shown in book.pages:
            tokens = len(tokenizer.encode(shown))
            assert len(shown) <= config.limits["output_chars"]
            assert tokens <= len(shown) * config.context.settings["tokens_per_char"]
        whole = len(tokenizer.encode(PROMPT)) + sum(len(tokenizer.encode(page)) + CALL for page in book.pages)
        assert whole == pytest.approx(4 * config.limits["context_tokens"], rel=0.03)
        told = [len(tokenizer.encode(way(book.facts, book.due[0]))) for way in WAYS.values()]
        assert told[0] < config.context.settings["summary_tokens"]
        assert 5 * told[0] < told[1] < load(HERE / "run.toml", RUNS["prompted"]).context.settings["summary_tokens"]
    assert len(tokenizer.encode(REQUEST)) <= len(REQUEST) * config.context.settings["tokens_per_char"]


def test_arms_have_the_same_stages_tasks_and_window_and_the_demonstrator_forgets_alike():
    configs = {name: load(HERE / "run.toml", settings) for name, settings in RUNS.items()}
    ours = configs["self"]
    for name, config in configs.items():
        assert config.stages == ours.stages
        assert (config.tasks, config.rewards, config.model, config.seed) == (
            ours.tasks,
            ours.rewards,
            ours.model,
            ours.seed,
        )
        reader = {**config.samplers["reader"].settings, "summary": "short"}
        assert reader == {**ours.samplers["reader"].settings, "summary": "short"}
        if name != "unlimited":
            assert config.limits == ours.limits
            assert config.context.settings["state"] == []
    assert configs["prompted"].context.settings["untrained_in"] == ["rl"]
    assert configs["prompted"].context.settings["trigger_tokens"] == ours.context.settings["trigger_tokens"]
