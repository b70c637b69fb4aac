"""Which characters of a source file are comments: exactly for Python, by texts and comment signs for others.

Blocks are followed through a whole file, since the lines inside one bear no sign of it. What looks like a comment
inside an ordinary text is none. Regular expressions of JavaScript, apostrophes in YAML and the like may be misread.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter

TEXT = r"\"(?:\\[^\n]|[^\"\\\n])*+\"?|'(?:\\[^\n]|[^'\\\n]){0,80}+'"
"""A text on one line; a single quote may be a lifetime or an apostrophe, so its text is short and closed."""
RAW = r"|`(?:\\.|[^`\\])*+`?"
BLOCK = r"/\*.*?(?:\*/|\Z)"
FAMILIES = {
    rf"{TEXT}|(?P<comment>(?<!\S)#[^\n]*)": (
        *(".py", ".pyi", ".sh", ".rb", ".pl", ".toml", ".yml", ".yaml", ".cfg", ".r", ".jl"),
    ),
    rf"{TEXT}{RAW}|(?P<comment>(?<!:)//[^\n]*|{BLOCK})": (
        *(".js", ".ts", ".jsx", ".tsx", ".c", ".h", ".cc", ".cpp", ".hpp"),
        *(".java", ".go", ".rs", ".kt", ".swift", ".cs"),
    ),
    rf"{TEXT}|(?P<comment>--\[\[.*?(?:\]\]|\Z)|(?<!\S)--[^\n]*)": (".lua",),
    rf"{TEXT}|(?P<comment>(?<!\S)--[^\n]*|{BLOCK})": (".sql",),
    rf"{TEXT}|(?P<comment>(?<!\S)--[^\n]*|\{{-.*?(?:-\}}|\Z))": (".hs",),
}
"""Texts and comments, in one expression, by the ends of files' names."""
SCANS = {ends: re.compile(scan, re.DOTALL) for scan, ends in FAMILIES.items()}


def commented(path: str, text: str) -> dict[str, int]:
    """Line -> its characters of comments, where it has any; empty for files of an unknown kind."""
    found = _python(text) if path.endswith((".py", ".pyi")) else None
    if found is None:
        found = next((_scanned(text, scan) for ends, scan in SCANS.items() if path.endswith(ends)), {})
    lines = text.split("\n")
    return {lines[number]: chars for number, chars in found.items()}


def _python(text: str) -> dict[int, int] | None:
    """Number of a line -> its characters of comments and of texts that stand as statements; None if it is no Python."""
    lines = text.split("\n")
    found: dict[int, int] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                found[token.start[0] - 1] = len(token.string)
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            held = range(node.lineno - 1, min(node.end_lineno or 0, len(lines)))  # a carriage return ends a line here
            found |= {number: len(lines[number].strip()) for number in held}
    return found


def _scanned(text: str, scan: re.Pattern[str]) -> dict[int, int]:
    """The same for a language of which only texts and comments are known."""
    found: Counter[int] = Counter()
    number = at = 0
    for match in scan.finditer(text):
        if match["comment"]:
            number += text.count("\n", at, match.start())
            at = match.start()
            for below, line in enumerate(match["comment"].split("\n")):
                found[number + below] += len(line.strip())
    return found
