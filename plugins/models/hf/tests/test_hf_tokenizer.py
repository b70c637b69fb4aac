"""The tokenizer: exact text, no control token out of text, one file that decides everything."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st

import composer_plugin_hf
from composer_core import BuildContext
from composer_core.errors import ConfigError
from composer_core.protocols import ToolSchema
from composer_plugin_hf.renderers.config import HERMES_TOKENS, XML_TOKENS
from composer_plugin_hf.tokenizer import HfTokenizer, build_tokenizer, train
from composer_testing.contracts.tokenizers import TokenizerContract

TAGS = XML_TOKENS + HERMES_TOKENS


@frozen
class Config:
    vocab_size: int = 600
    path: str | None = None


def corpus() -> list[str]:
    return [file.read_text() for file in sorted(Path(composer_plugin_hf.__file__).parent.rglob("renderers/*.py"))]


@cache
def trained() -> HfTokenizer:
    return train(corpus(), 600, TAGS)


class TestTrained(TokenizerContract):
    def build(self, tmp_path: Path, special_tokens: tuple[str, ...]) -> HfTokenizer:
        return train(corpus(), 400, special_tokens)


def context(run_dir: Path) -> BuildContext:
    tasks = SimpleNamespace(texts=lambda split: {"vocabulary": corpus()}[split])
    tools = SimpleNamespace(schemas=[ToolSchema("run_terminal", "", {"properties": {"command": {}}})])
    parts = {"tasks": tasks, "tools": tools}
    return BuildContext(run_dir, get=parts.__getitem__, settings={"special_tokens": TAGS})


def test_the_vocabulary_has_the_size_asked_for_and_its_control_tokens_come_first():
    assert trained().vocab_size == 600
    assert [trained().special(tag) for tag in TAGS] == list(range(len(TAGS)))
    with pytest.raises(KeyError):
        trained().special("<|none|>")


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_survives_encoding(text: str):
    assert trained().decode(trained().encode(text)) == text


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(TAGS) | st.text(max_size=3), max_size=6).map("".join))
def test_text_never_reaches_a_control_token(text: str):
    assert min(trained().encode(text), default=len(TAGS)) >= len(TAGS)


@pytest.mark.parametrize("tag", TAGS)
def test_each_control_tag_in_text_is_ordinary_pieces(tag: str):
    ids = trained().encode(f"a {tag} b")
    assert trained().special(tag) not in ids
    assert trained().decode(ids) == f"a {tag} b"
    assert trained().decode([trained().special(tag)]) == tag


def test_a_control_tag_that_fills_the_corpus_is_still_out_of_reach():
    found = train(["<call> <call>" * 500, "<|end|>" * 500], 400, TAGS)
    assert found.special("<call>") not in found.encode("<call>")


def test_code_is_cut_at_indentation_words_and_digits():
    encode, decode = trained().encode, trained().decode
    pieces = [decode([token]) for token in encode("def f():\n        return 120")]
    assert "\n        " in pieces
    assert [piece.strip() for piece in pieces[-3:]] == ["1", "2", "0"]
    assert encode("\n    return x")[-len(encode("return x")) :] == encode("return x")


def test_lone_surrogates_become_question_marks():
    assert trained().decode(trained().encode("a\ud800b")) == "a?b"


def test_bytes_that_are_no_text_decode_to_the_replacement_character():
    assert trained().decode(trained().encode("\U0001f600")[:1]) == "\ufffd"


def test_long_texts_encode_like_short_ones():
    text = "x = [1, 2]\n" * 2000
    assert trained().decode(trained().encode(text)) == text
    first = trained().encode("mutable")
    first.append(0)
    assert trained().encode("mutable") != first


def test_training_gives_the_same_bytes_in_another_process(tmp_path: Path):
    script = (
        "import sys; from pathlib import Path; from composer_plugin_hf.tokenizer import train\n"
        "texts = [file.read_text() for file in sorted(Path(sys.argv[1]).rglob('renderers/*.py'))]\n"
        "print(train(texts, 600, sys.argv[2:]).fingerprint)\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    folder = str(Path(composer_plugin_hf.__file__).parent)
    argv = [sys.executable, "-c", script, folder, *TAGS]
    found = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == trained().fingerprint


def test_a_run_trains_once_and_loads_afterwards(tmp_path: Path):
    first = build_tokenizer(Config(), context(tmp_path))
    file = tmp_path / "tokenizer" / "tokenizer.json"
    assert file.exists() and not list(file.parent.glob(".*"))
    second = build_tokenizer(Config(vocab_size=500), context(tmp_path))
    assert first.fingerprint == second.fingerprint


def test_names_of_tools_and_arguments_are_single_pieces(tmp_path: Path):
    found = build_tokenizer(Config(), context(tmp_path))
    assert len(found.encode("run_terminal")) == len(found.encode("command")) == 1
    assert len(trained().encode("run_terminal")) > 1


def test_saved_files_load_here_and_in_plain_transformers(tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    trained().save(tmp_path)
    assert HfTokenizer.load(tmp_path).fingerprint == trained().fingerprint
    plain = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    text = "def f(x):\n    return x + 12\n"
    assert plain.encode(text, add_special_tokens=False) == trained().encode(text)
    assert plain.convert_tokens_to_ids("<call>") == trained().special("<call>")


def test_a_local_folder_is_loaded_with_its_template(tmp_path: Path):
    trained().save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    found = build_tokenizer(Config(path=str(tmp_path)), context(tmp_path / "run"))
    assert found.chat_template == "{{ messages }}"
    (tmp_path / "chat_template.jinja").write_text("other")
    assert HfTokenizer.load(tmp_path).chat_template == "other"
    found.save(tmp_path / "copy")
    assert HfTokenizer.load(tmp_path / "copy").chat_template == "{{ messages }}"


def test_white_space_tokens_of_a_loaded_tokenizer_stay_in_use_and_post_processing_does_not(tmp_path: Path):
    spec = edited()
    spec["added_tokens"].append(token(600, " " * 7, special=False))
    spec["added_tokens"].append(token(601, "<think>", special=False))
    spec["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<call>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<call>": {"id": "<call>", "ids": [5], "tokens": ["<call>"]}},
    }
    found = HfTokenizer(json.dumps(spec).encode())
    assert 600 in found.encode("a" + " " * 7 + "b")
    assert found.special("<think>") == 601 and 601 not in found.encode("<think>")
    assert 5 not in found.encode("x") and found.decode([601]) == "<think>"


def test_a_vocabulary_in_which_text_spells_a_control_token_is_refused():
    spec = edited()
    spec["added_tokens"].append(token(trained().encode("def")[0], "def", special=True))
    assert len(trained().encode("def")) == 1
    with pytest.raises(ConfigError, match="def"):
        HfTokenizer(json.dumps(spec).encode())


def test_it_pickles():
    copy = pickle.loads(pickle.dumps(trained()))
    assert copy.fingerprint == trained().fingerprint and copy.encode("a b") == trained().encode("a b")


def test_what_cannot_be_built_says_why(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        build_tokenizer(Config(path=str(tmp_path)), context(tmp_path))
    with pytest.raises(ConfigError, match="too small"):
        train([], 256, TAGS)


def edited() -> dict[str, Any]:
    folder_file = trained()._library.to_str()
    spec: dict[str, Any] = json.loads(folder_file)
    return spec


def token(number: int, content: str, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content, "special": special, **flags}
