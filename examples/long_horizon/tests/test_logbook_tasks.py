"""The task set: its kind's contract, what is read once, and what its demonstrator knows."""

import asyncio
import re
import tomllib

import pytest
from comparison.arms import HERE

from composer_core import Patch, ToolContext, ToolError
from composer_core.errors import PathError
from composer_plugin_hf.renderers.config import XML_TOKENS
from composer_plugin_logbook import summaries
from composer_plugin_logbook.books import KINDS, make
from composer_plugin_logbook.config import SETTINGS, BooksConfig, ReaderConfig
from composer_plugin_logbook.reader import said
from composer_plugin_logbook.tasks import PROMPT, SPLITS, Books
from composer_plugin_logbook.texts import document
from composer_plugin_logbook.tools import answer, path_of, turn
from composer_plugin_logbook.words import WORDS
from composer_testing.contracts.hook_modules import HookModuleContract
from composer_testing.contracts.tasks import TaskContract
from composer_testing.fakes.rooms import folder_rooms

SMALL = BooksConfig(pages=5, page_words=6, train=40, documents=30)
TASKS = Books(SMALL)
BOOK = TASKS.book("held_out-0000")


class TestHookModule(HookModuleContract):
    module = "composer_plugin_logbook.plugin"


class TestBooks(TaskContract):
    unseen = ("dev", "held_out")
    sample = 4

    def build(self):
        return Books(SMALL)


class Pages:
    """A sandbox that holds a book."""

    def __init__(self, book):
        self.files = {path_of(number): page.encode() for number, page in enumerate(book.pages)}

    async def read(self, path):
        if path not in self.files:
            raise PathError(path)
        return self.files[path]

    async def write(self, path, data):
        self.files[path] = data


def read_whole(book):
    """Every page as `turn` shows it, and the sandbox that is left."""
    sandbox = Pages(book)
    context = ToolContext(sandbox, {})
    words = ["", *(due.removeprefix("turn") for due in book.due[:-1])]
    return [asyncio.run(turn(context, word)) for word in words], context


def graded(task_id, patch):
    grading = TASKS.grading(TASKS.task(task_id).grading)

    async def body():
        async with folder_rooms(TASKS.tree(TASKS.task(task_id).view.workspace), grading)() as room:
            await room.apply(patch)
            return (await room.run()).stdout.decode()

    values = dict(re.findall(r"^value (\d+) (.*)$", asyncio.run(body()), re.MULTILINE))
    assert list(values) == ["0"]
    return values["0"] == grading.expected[grading.names[0]]


@pytest.mark.parametrize("split", SPLITS)
def test_gold_is_solved_and_nothing_and_every_exploit_is_not(split):
    task_id = f"{split}-0003"
    assert graded(task_id, TASKS.gold(task_id))
    assert not graded(task_id, Patch())
    assert not [name for name, patch in TASKS.exploits(task_id).items() if graded(task_id, patch)]


def test_a_page_is_shown_once_and_nothing_of_it_is_left():
    pages, context = read_whole(BOOK)
    assert pages == list(BOOK.pages)
    assert set(context.sandbox.files.values()) == {b""}
    with pytest.raises(PathError):
        asyncio.run(turn(context, BOOK.due[-1].split()[1]))


def test_a_page_is_turned_by_its_own_word_alone():
    context = ToolContext(Pages(BOOK), {})
    asyncio.run(turn(context))
    for word in ("", "bad"):
        with pytest.raises(ToolError, match="does not turn"):
            asyncio.run(turn(context, word))
    assert asyncio.run(turn(context, BOOK.due[0].removeprefix("turn"))) == BOOK.pages[1]


def test_an_answer_is_the_only_thing_that_can_be_written_down():
    context = ToolContext(Pages(BOOK), {})
    asyncio.run(answer(context, f" {BOOK.answer} "))
    assert context.sandbox.files["answer.txt"] == f"{BOOK.answer}\n".encode()
    assert f"{BOOK.answer}\n".encode() == TASKS.gold(BOOK.name).writes[0].data


def test_facts_stand_on_the_first_pages_once_and_the_last_page_asks_for_one():
    for number in range(20):
        book = TASKS.book(f"train-{number:04d}")
        text = "".join(book.pages)
        assert all(text.count(fact) == 1 for fact in book.facts)
        assert all(any(fact in page for fact in book.facts) for page in book.pages[: len(book.facts)])
        assert not [fact for fact in book.facts if fact in "".join(book.pages[len(book.facts) :])]
        assert book.pages[-1].endswith(f"answer {book.answer.split()[0]}")


def test_every_setting_is_asked_for_and_stands_on_every_first_page():
    books = [TASKS.book(f"train-{number:04d}") for number in range(40)]
    assert {book.answer.split()[0] for book in books} == set(SETTINGS[: SMALL.facts])
    assert len({book.order for book in books}) == 2


def test_no_setting_of_one_kind_of_book_is_told_by_another():
    kinds = [{fact for number in range(400) for fact in make(f"{kind}-{number}", SMALL).facts} for kind in KINDS]
    assert not [fact for at, lines in enumerate(kinds) for others in kinds[:at] for fact in lines & others]
    assert min(map(len, kinds)) > 700
    text = "".join(TASKS.texts("train"))
    assert sum(fact in text for fact in kinds[0]) > 40


def test_a_book_of_no_kind_is_refused():
    with pytest.raises(ValueError, match="not in tuple"):
        make("other-1", SMALL)


def test_words_are_of_one_sort():
    words = [word for sort in WORDS.values() for word in sort]
    assert len(set(words)) == len(words)
    assert not set(words) & {*SETTINGS, *summaries.REQUEST.split(), *PROMPT.split()}


def test_the_demonstrator_knows_what_its_window_shows_and_no_more():
    config = ReaderConfig(kept=1.0)
    assert said(BOOK, PROMPT, config, 0).calls[0].arguments == {}
    first = said(BOOK, PROMPT + BOOK.pages[0], config, 0)
    assert first.calls[0].arguments == {"word": BOOK.due[0].removeprefix("turn")}
    whole = said(BOOK, "".join(BOOK.pages), config, 0)
    assert whole.calls[0].arguments == {"text": f" {BOOK.answer}"}
    late = said(BOOK, BOOK.pages[-1], config, 0)
    assert late.calls[0].arguments == {"text": f" {BOOK.answer.split()[0]} unknown"}


@pytest.mark.parametrize("way", summaries.WAYS)
def test_a_summary_is_enough_to_go_on_from(way):
    config = ReaderConfig(summary=way, kept=1.0)
    text = said(BOOK, "".join(BOOK.pages[:2]) + summaries.REQUEST, config, 0).text
    assert said(BOOK, text, config, 0).calls[0].arguments == {"word": BOOK.due[1].removeprefix("turn")}
    assert said(BOOK, text + BOOK.pages[-1], config, 0).calls[0].arguments == {"text": f" {BOOK.answer}"}
    assert said(BOOK, text + summaries.REQUEST, config, 0).text == text


def test_both_ways_of_summing_up_forget_the_same():
    window = "".join(BOOK.pages[:2]) + summaries.REQUEST
    for key in range(40):
        kept = [
            [fact in said(BOOK, window, ReaderConfig(summary=way, kept=0.5), key).text for fact in BOOK.facts]
            for way in summaries.WAYS
        ]
        assert kept[0] == kept[1]
    shares = [said(BOOK, window, ReaderConfig(kept=0.9), key).text.count(BOOK.facts[0]) for key in range(2000)]
    assert abs(sum(shares) / 2000 - 0.9) < 0.03


def test_a_record_has_a_dozen_sections_and_five_times_the_words():
    assert len(summaries.SECTIONS) == 12
    words = [len(way(BOOK.facts, BOOK.due[0]).split()) for way in summaries.WAYS.values()]
    assert words[1] >= 5 * words[0]


def test_the_run_file_and_the_arms_ask_for_summaries_by_the_demonstrators_word():
    config = tomllib.loads((HERE / "run.toml").read_text())
    assert ReaderConfig().request_word in config["context"]["request"]
    assert ReaderConfig().request_word in summaries.REQUEST
    others = [*XML_TOKENS, PROMPT, *BOOK.pages, summaries.sections(BOOK.facts, BOOK.due[0])]
    assert ReaderConfig().request_word not in "".join(others)


def test_a_document_tells_after_each_page_what_was_told_so_far_then_what_is_asked_for():
    first, *_ = (BOOK.facts[at] for at in BOOK.order)
    name = first.split()[0]
    text = document(BOOK)
    assert text.startswith(
        f"{BOOK.pages[0]} {first} answer {name} {first}{BOOK.pages[1]} {BOOK.facts[0]} {BOOK.facts[1]}"
    )
    assert text.endswith(f"{BOOK.due[-1]} {BOOK.answer}")


@pytest.mark.parametrize("facts", [0, 5, 7])
def test_more_settings_than_pages_for_them_are_refused(facts):
    with pytest.raises(ValueError, match="one a page"):
        make("x", BooksConfig(pages=5, facts=facts))
