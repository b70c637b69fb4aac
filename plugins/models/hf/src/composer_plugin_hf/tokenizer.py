"""The tokenizer: trained on the run's own text, or loaded from a local Hugging Face folder.

Control tokens have ids, and text never reaches them: the encoder is built from tokenizer.json without its control
tokens, so a control tag inside a file is encoded as ordinary pieces. (`add_special_tokens=False` alone only leaves out
what a template adds; a tag in the text would still become the control token.) `special` is the one door to their ids.

Trained tokenizers are byte-level BPE, cut for code: a line break takes its indentation with it, digits stand alone,
and a word keeps the space before it. Names of the run's tools and of their arguments become single pieces, since a
policy spends its tokens on them in every call. No torch here: workers that only render import this module.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from composer_core import BuildContext
from composer_core.errors import ConfigError
from composer_core.protocols import ToolSchema

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # else every later fork of the process prints a warning

from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

PIECES = r"\n *| ?\p{N}| ?[\p{L}\p{M}_]+| ?[^\s\p{L}\p{M}\p{N}_]+|\s+"
CALL_WORD_WEIGHT = 2000
CACHED_TEXTS = 4096
CACHED_CHARS = 4000
FILE = "tokenizer.json"
LOADER = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
"""tokenizer_config.json of a trained tokenizer, with which plain transformers loads it."""


def build_tokenizer(config: Any, build: BuildContext) -> HfTokenizer:
    """The tokenizer that `config.path` names, or the run's own, trained once and kept below the run's folder.

    Raises:
        ConfigError: no tokenizer.json at `config.path`, or a vocabulary too small for bytes and control tokens.
    """
    if getattr(config, "path", None):
        return HfTokenizer.load(Path(config.path))
    folder = build.run_dir / "tokenizer"
    if not (folder / FILE).exists():
        texts = [*_call_words(build.get("tools").schemas), *build.get("tasks").texts("vocabulary")]
        train(texts, config.vocab_size, build.settings.get("special_tokens", ())).save(folder)
    return HfTokenizer.load(folder)


def _call_words(tools: Sequence[ToolSchema]) -> list[str]:
    """The names that every call is made of, often enough that each becomes one piece: no text spells them so often."""
    names = {name: None for tool in tools for name in (tool.name, *tool.parameters["properties"])}
    return list(names) * CALL_WORD_WEIGHT


def train(texts: Iterable[str], vocab_size: int, special_tokens: Sequence[str]) -> HfTokenizer:
    """Byte-level BPE with the control tokens first; equal texts in equal order give equal bytes."""
    least = 256 + len(special_tokens)
    if vocab_size < least:
        raise ConfigError(
            "the vocabulary is too small", where="vocab_size", expected=f"at least {least}", found=str(vocab_size)
        )
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PIECES), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    library.train_from_iterator(texts, trainer)
    return HfTokenizer(library.to_str(pretty=True).encode(), json.dumps(LOADER, indent=2).encode())


class HfTokenizer:
    """`protocols.Tokenizer` over the bytes of a tokenizer.json; picklable."""

    def __init__(self, data: bytes, loader: bytes = b"{}", chat_template: str | None = None) -> None:
        self._data, self._loader = data, loader
        self.chat_template = chat_template
        """Jinja source of the folder's chat template, None if it has none."""
        self.fingerprint = hashlib.sha256(data).hexdigest()
        self._library = Library.from_str(data.decode())
        self.vocab_size = max(self._library.get_vocab(with_added_tokens=True).values()) + 1
        spec = json.loads(data)
        control = [token for token in spec["added_tokens"] if token["special"] or token["content"].strip()]
        self._control = {token["content"]: int(token["id"]) for token in control}
        spec["added_tokens"] = [token for token in spec["added_tokens"] if token not in control]
        self._encoder = Library.from_str(json.dumps({**spec, "post_processor": None, "truncation": None}))
        self._cached = lru_cache(CACHED_TEXTS)(self._encode)
        self._refuse_reachable()

    @classmethod
    def load(cls, folder: Path) -> HfTokenizer:
        """From a folder that holds tokenizer.json, and perhaps tokenizer_config.json and chat_template.jinja."""
        if not (folder / FILE).is_file():
            raise ConfigError(
                "no tokenizer to load", where=str(folder), expected=FILE, fix="name a local Hugging Face folder"
            )
        config = folder / "tokenizer_config.json"
        loader = config.read_bytes() if config.is_file() else b"{}"
        return cls((folder / FILE).read_bytes(), loader, _chat_template(folder, json.loads(loader)))

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; never a control token's. Lone surrogates, which no UTF-8 can hold, become "?"."""
        return list(self._cached(text) if len(text) <= CACHED_CHARS else self._encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens as their tags; bytes that are no UTF-8 become U+FFFD."""
        return str(self._library.decode(list(ids), skip_special_tokens=False))

    def special(self, token: str) -> int:
        return self._control[token]

    def specials(self) -> dict[str, int]:
        """Every control token and its id."""
        return dict(self._control)

    def save(self, folder: Path) -> None:
        """Write what `load` and plain transformers read; the file appears whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        files = {"tokenizer_config.json": self._loader, FILE: self._data}
        if self.chat_template is not None:
            files["chat_template.jinja"] = self.chat_template.encode()
        for name, data in files.items():
            partial = folder / f".{name}.{os.getpid()}"
            partial.write_bytes(data)
            partial.replace(folder / name)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._data, self._loader, self.chat_template)

    def _encode(self, text: str) -> tuple[int, ...]:
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode(errors="replace").decode()
        return tuple(self._encoder.encode(text, add_special_tokens=False).ids)

    def _refuse_reachable(self) -> None:
        """A vocabulary may hold a control tag as an ordinary piece too; then text could forge it."""
        ids = set(self._control.values())
        reached = [token for token in self._control if not ids.isdisjoint(self._encode(token))]
        if reached:
            raise ConfigError(
                "plain text reaches control tokens of this tokenizer",
                expected="a control tag in a file encodes as ordinary pieces",
                found=", ".join(sorted(reached)),
                fix="rename these tags, or use a byte-level tokenizer",
            )


def _chat_template(folder: Path, loader: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = loader.get("chat_template")
    if isinstance(template, list):  # several named templates
        template = next((entry["template"] for entry in template if entry["name"] == "default"), None)
    return template
