"""One id a byte, and one for each control token of the run's renderer. No torch here."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from composer_core import BuildContext
from composer_plugin_my_name.plugin import MyNameConfig

BYTES = 256


class MyNameTokenizer:
    """`protocols.Tokenizer`; ids from 256 on are control tokens, which no text encodes to."""

    def __init__(self, config: MyNameConfig, build: BuildContext) -> None:
        self._control = tuple(build.settings.get("special_tokens", ()))
        self._file = json.dumps({"bytes": BYTES, "control": self._control}).encode()
        self.vocab_size = BYTES + len(self._control)
        self.fingerprint = hashlib.sha256(self._file).hexdigest()

    def encode(self, text: str) -> list[int]:
        """UTF-8; lone surrogates, which it cannot hold, become "?"."""
        return list(text.encode(errors="replace"))

    def decode(self, ids: Sequence[int]) -> str:
        """Control tokens as their tags; bytes that are no UTF-8 become U+FFFD."""
        pieces = (bytes([one]) if one < BYTES else self._control[one - BYTES].encode() for one in ids)
        return b"".join(pieces).decode(errors="replace")

    def special(self, token: str) -> int:
        """The id of a control token; KeyError if the renderer declared no such one."""
        if token not in self._control:
            raise KeyError(token)
        return BYTES + self._control.index(token)

    def save(self, folder: Path) -> None:
        """Beside checkpoints, whose ids mean nothing under another tokenizer."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_bytes(self._file)
