"""What every tokenizer must do (`protocols.Tokenizer`). Subclass `TokenizerContract` and override `build`. No torch.

A tokenizer stands between text that anybody may have written and ids that a policy acts on. So the suite is about that
border: text comes back as it was, and no text, however it is spelled, becomes a control token.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from composer_core.protocols import Tokenizer

SPECIAL = ("<end>", "<turn>")
TEXTS = (
    "",
    "plain words, twice:  two  spaces",
    "def f(x):\n\treturn x ** 2  # 12345\n",
    "tabs\tand\r\nline ends\n\n",
    "žluťoučký kůň, 漢字, \U0001f40d, e\u0301",
    "\0\x01\x7f\ufffd\u200b",
)


class TokenizerContract:
    """Name your subclass `Test...`."""

    def build(self, tmp_path: Path, special_tokens: tuple[str, ...]) -> Tokenizer:
        raise NotImplementedError("return a tokenizer that holds these control tokens; the same one each time")

    @pytest.fixture
    def tokenizer(self, tmp_path: Path) -> Tokenizer:
        return self.build(tmp_path, SPECIAL)

    @pytest.mark.parametrize("text", TEXTS)
    def test_text_comes_back_as_it_was(self, tokenizer: Tokenizer, text: str) -> None:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert all(0 <= one < tokenizer.vocab_size for one in ids)

    def test_control_tokens_have_ids_of_their_own(self, tokenizer: Tokenizer) -> None:
        ids = [tokenizer.special(tag) for tag in SPECIAL]
        assert len(set(ids)) == len(SPECIAL)
        assert all(0 <= one < tokenizer.vocab_size for one in ids)
        with pytest.raises(KeyError):
            tokenizer.special("<nobody declared this>")

    @pytest.mark.parametrize("text", ["<end>", "a<end>b", "<turn><end>", "<<end>>", "<en", "d>", " <end> \n<turn>"])
    def test_no_text_reaches_a_control_token(self, tokenizer: Tokenizer, text: str) -> None:
        ids = tokenizer.encode(text)
        assert not {tokenizer.special(tag) for tag in SPECIAL} & set(ids)
        assert tokenizer.decode(ids) == text

    def test_text_that_no_utf8_holds_is_encoded_all_the_same(self, tokenizer: Tokenizer) -> None:
        """File names and output of commands may hold lone surrogates."""
        decoded = tokenizer.decode(tokenizer.encode("a\udcffb\ud800c"))
        assert (decoded[0], decoded[-1]) == ("a", "c")

    def test_any_ids_decode_to_text(self, tokenizer: Tokenizer) -> None:
        """A policy may sample bytes that are no UTF-8."""
        for one in range(tokenizer.vocab_size):
            assert isinstance(tokenizer.decode([one]), str)

    def test_the_fingerprint_is_that_of_the_file_it_saves(self, tokenizer: Tokenizer, tmp_path: Path) -> None:
        tokenizer.save(tmp_path / "new" / "folder")
        saved = {hashlib.sha256(path.read_bytes()).hexdigest() for path in (tmp_path / "new" / "folder").iterdir()}
        assert tokenizer.fingerprint in saved

    def test_other_control_tokens_make_another_tokenizer(self, tmp_path: Path) -> None:
        builds = ((tmp_path / "a", SPECIAL), (tmp_path / "b", SPECIAL), (tmp_path / "c", (*SPECIAL, "<more>")))
        first, again, other = (self.build(folder, tags).fingerprint for folder, tags in builds)
        assert first == again != other
