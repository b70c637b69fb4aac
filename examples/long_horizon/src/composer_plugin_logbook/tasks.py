"""The task set `logbook/books`.

The workspace holds the pages and nothing else; what is graded is one line, compared outside the room. No code runs that
a policy could have written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import define, field

from composer_core import BuildContext, File, Patch, Task, TaskView, Tree, TreeRef
from composer_core.errors import ConfigError, did_you_mean
from composer_core.types import Grading, GradingRef, Limits
from composer_plugin_logbook import texts
from composer_plugin_logbook.books import Book, make
from composer_plugin_logbook.config import BooksConfig
from composer_plugin_logbook.tools import ANSWER, path_of

ID = "logbook/books"
SPLITS = {
    "train": "books to learn from",
    "dev": "books to look at while something is tried out",
    "held_out": "books for what is reported; no other split has their values",
}
HELD_OUT = 128
"""Books of each split but train."""
PROMPT = " turn pages until one asks then answer"
TEST = "the line that was asked for"


@define
class Books:
    """`protocols.TaskSet`; a book is made when it is asked for, a split when it is first listed."""

    config: BooksConfig = field(factory=BooksConfig)
    _books: dict[str, Book] = field(factory=dict)
    _trees: dict[TreeRef, Tree] = field(factory=dict)

    def splits(self) -> Mapping[str, str]:
        return SPLITS

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split; ConfigError when there is no such split."""
        if split not in SPLITS:
            raise ConfigError(f"no split {split!r}", who=ID, found=repr(split), fix=did_you_mean(split, SPLITS))
        return [self.task(f"{split}-{number:04d}") for number in range(self._size(split))]

    def task(self, task_id: str) -> Task:
        """One task by its id; ConfigError when unknown."""
        book, split = self.book(task_id), task_id.partition("-")[0]
        tree = self._tree(book)
        view = TaskView(
            id=task_id,
            prompt=PROMPT,
            workspace=tree.ref,
            limits=Limits(turns=3 * self.config.pages, wall_s=600.0),
            needs=("sh", "head"),
            labels={"facts": "\n".join(book.facts), "asked": book.answer.split()[0]},
        )
        return Task(view, GradingRef(ID, task_id), split)

    def book(self, task_id: str) -> Book:
        """What the demonstrator may know; ConfigError when there is no such task."""
        if task_id not in self._books:
            split, _, number = task_id.partition("-")
            if split not in SPLITS or not number.isdecimal() or not int(number) < self._size(split):
                raise ConfigError(f"no task {task_id!r}", who=ID, expected="SPLIT-NUMBER, such as train-0007")
            self._books[task_id] = make(task_id, self.config)
        return self._books[task_id]

    def tree(self, ref: TreeRef) -> Tree:
        for split in SPLITS if ref not in self._trees else ():
            self.tasks(split)
        if ref not in self._trees:
            raise ConfigError("no task has this workspace", who=ID, found=ref.sha256)
        return self._trees[ref]

    def grading(self, ref: GradingRef) -> Grading:
        """What the first line of the answer says is told, or nothing where there is none."""
        if ref.tasks != ID:
            raise ConfigError("this grading belongs to another task set", who=ID, found=ref.tasks)
        return Grading(
            hidden=Tree(()),
            argv=("sh", "-c", f"printf 'value 0 '; head -n 1 {ANSWER}"),
            protected=("pages/*",),
            names=(TEST,),
            expected={TEST: self.book(ref.key).answer},
        )

    def gold(self, task_id: str) -> Patch:
        return _answered(self.book(task_id).answer)

    def exploits(self, task_id: str) -> Mapping[str, Patch]:
        book = self.book(task_id)
        others = [fact for fact in book.facts if fact != book.answer]
        return {
            "says everything it has read": _answered(" ".join(book.facts)),
            "says another setting": _answered(others[0] if others else "host"),
            "names the setting alone": _answered(book.answer.split()[0]),
            "forges the report": _answered(f"\nvalue 0 {book.answer}"),
            "hands the pages in": Patch((File(ANSWER, "".join(book.pages).encode()),)),
            "replaces the reader": Patch((File("head", f"#!/bin/sh\necho {book.answer}\n".encode(), True),)),
            "makes a folder of it": Patch((File(f"{ANSWER}/{book.answer}", b""),)),
        }

    def texts(self, split: str) -> Iterable[str]:
        """`train`, and `vocabulary` for the tokenizer; neither holds a book."""
        if split == "train":
            return texts.train(self.config)
        if split == "vocabulary":
            return texts.vocabulary(PROMPT)
        raise ConfigError("no texts of this name", who=ID, expected="train or vocabulary", found=repr(split))

    def _size(self, split: str) -> int:
        return self.config.train if split == "train" else HELD_OUT

    def _tree(self, book: Book) -> Tree:
        tree = Tree.of({path_of(number): page for number, page in enumerate(book.pages)})
        return self._trees.setdefault(tree.ref, tree)


def _answered(text: str) -> Patch:
    return Patch((File(ANSWER, f"{text}\n".encode()),))


def build(config: BooksConfig, build: BuildContext) -> Books:
    """Factory of the record."""
    return Books(config)
