"""What goes on of an answer are ids that were sampled."""

from __future__ import annotations

import pytest
from attrs import evolve

from composer_core.edge import Edge
from composer_plugin_summary.carry import carried
from composer_plugin_summary.config import SummaryConfig
from composer_testing.fakes.text import END, ByteTokenizer

CONFIG = SummaryConfig(trigger_tokens=1, summary_tokens=8, think_tokens=100, think_end="#")
CASES = {
    "a thought and a summary": ("hm#facts", True, "facts"),
    "only the first mark ends the thought": ("hm#a#b", True, "a#b"),
    "no thought was ended": ("facts", True, "facts"),
    "a thought alone": ("hm#", True, ""),
    "white space": ("hm# \n", True, ""),
    "nothing at all": ("", True, ""),
    "too long": ("hm#0123456789", True, "01234567"),
    "cut off": ("hm#fac", False, "fac"),
    "cut off in the thought": ("hmm", False, "hmm"),
    "cut off in a long thought": ("hm " * 5, False, "hm hm hm"),
    "cut off before it began": ("", False, ""),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("built", [ByteTokenizer, lambda: Edge(ByteTokenizer(), "models", "fakes/bytes")])
def test_an_answer_becomes(case, built):
    text, ended, expected = CASES[case]
    tokenizer = built()
    found = carried([*tokenizer.encode(text), *([END] if ended else [])], CONFIG, tokenizer, {END})
    assert tokenizer.decode(found) == expected


def test_without_room_to_think_the_mark_is_words():
    tokenizer, config = ByteTokenizer(), evolve(CONFIG, think_tokens=0)
    found = carried([*tokenizer.encode("a#b"), END], config, tokenizer, {END})
    assert tokenizer.decode(found) == "a#b"


def test_a_mark_that_is_a_control_token_is_found_as_one():
    tokenizer = ByteTokenizer(("<end>", "<turn>", "#"))
    mark = tokenizer.special("#")
    found = carried([*tokenizer.encode("a#b"), mark, *tokenizer.encode("c"), END], CONFIG, tokenizer, {END})
    assert tokenizer.decode(found) == "c"


def test_a_token_that_holds_the_marks_end_is_left_out_whole():
    class Pairs(ByteTokenizer):
        """Two bytes a token."""

        def decode(self, ids):
            return "".join(f"{token:02d}" for token in ids)

    assert carried([11, 12, 34, 56, END], evolve(CONFIG, think_end="23"), Pairs(), {END}) == (56,)
