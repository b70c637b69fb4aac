"""Answers that a judge has given, kept by the hash of what was asked."""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from functools import cache
from pathlib import Path

from attrs import asdict, frozen

KEPT = 4096
"""Latest answers that are kept in memory."""


@frozen
class Answer:
    """What a judge has said."""

    value: float
    """The grade, between 0 and 1."""
    reason: str


class Answers:
    """By the hash of what was asked; in a folder, or in memory up to a bound."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder) if folder else None
        self._kept: OrderedDict[str, Answer] = OrderedDict()

    def get(self, key: str) -> Answer | None:
        if self._folder is None:
            return self._kept.get(key)
        try:
            return Answer(**json.loads((self._folder / f"{key}.json").read_bytes()))
        except FileNotFoundError:
            return None

    def put(self, key: str, answer: Answer) -> None:
        if self._folder is None:
            self._kept[key] = answer
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        part = self._folder / f".{key}.{os.getpid()}.{threading.get_ident()}"
        part.write_text(json.dumps(asdict(answer)), encoding="utf-8")
        part.replace(self._folder / f"{key}.json")


@cache
def answers(folder: str) -> Answers:
    """The answers of a folder, or of this process."""
    return Answers(folder)
