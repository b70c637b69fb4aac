"""Arrives in the grading room only: evaluates the questions and reports what it finds, one line `value N TEXT` each.

It holds no answers, they are compared outside: code under test may read this file or write lines of its own, and still
has to know the right value of every question. Usage: python3 -ISB .grade/room.py
"""

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).parent

if __name__ == "__main__":
    sys.path.append(str(HERE.parent))  # last, so that no file of the workspace shadows the standard library
    name, *questions = (HERE / "questions.txt").read_text(encoding="utf-8").splitlines()
    for number, question in enumerate(questions):
        try:
            value = repr(eval(question, vars(importlib.import_module(name)).copy()))
        except BaseException as error:
            value = f"!{type(error).__name__}"
        print(f"\nvalue {number} {value}", flush=True)
