"""What a grading command reported, read on the trusted side.

Two formats, chosen by the `Grading` itself:

- *values* (`Grading.expected` is not empty): stdout holds lines `value N TEXT`, the answer to test N of
  `Grading.names`. The room knows questions only, so whatever hostile code does there (forge lines, patch the runner,
  read every file and frame), it still has to name the right answer to each question.
- *junit* (`Grading.argv` names `--junitxml=PATH`): pytest judges itself and PATH is read from the room. Protects
  against edited tests, settings and plugins, which do not arrive; it does not protect against code that patches
  pytest from inside, since tests and code under test share an interpreter. Give PATH a fresh random name.

Reports are hostile input: bounded, never evaluated, and XML with a document type is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.etree import ElementTree

from composer_core.types import Grading

VALUE = re.compile(r"value (\d{1,6}) (.*)")
OPTION = "--junitxml="


def junit_path(grading: Grading) -> str | None:
    """Where the command writes its report, relative to the workspace; None if it reports values."""
    return next((word.removeprefix(OPTION) for word in grading.argv if word.startswith(OPTION)), None)


def passed_values(grading: Grading, stdout: bytes) -> dict[str, bool] | None:
    """Test -> passed, from lines of values; None if there is not one such line. The last line for a test counts."""
    matches = [VALUE.fullmatch(line) for line in stdout.decode(errors="replace").split("\n")]
    reported = {int(match[1]): match[2] for match in matches if match}
    if not reported:
        return None
    return {name: reported.get(index) == grading.expected[name] for index, name in enumerate(grading.names)}


def passed_junit(grading: Grading, data: bytes) -> dict[str, bool] | None:
    """Test (pytest node id) -> passed, from a JUnit file; None if it is no such file."""
    if b"<!" in data:
        return None
    try:
        cases = ElementTree.fromstring(data).iter("testcase")
    except ElementTree.ParseError:
        return None
    bad = ("failure", "error", "skipped")
    found: dict[tuple[str, str], bool] = {}
    for case in cases:
        name = case.get("classname", ""), case.get("name", "")
        found[name] = found.get(name, True) and not any(case.find(tag) is not None for tag in bad)
    return {node: found.get(_junit_name(node), False) for node in grading.names}


def _junit_name(node: str) -> tuple[str, str]:
    """`tests/test_a.py::TestB::test_c[1]` is called ("tests.test_a.TestB", "test_c[1]")."""
    node, bracket, parameters = node.partition("[")
    path, *scopes = node.split("::")
    return ".".join([path.removesuffix(".py").replace("/", "."), *scopes[:-1]]), "".join(
        scopes[-1:]
    ) + bracket + parameters


def share(passed: Mapping[str, bool]) -> float:
    """Share of tests passed; 0 of nothing is 0."""
    return sum(passed.values()) / len(passed) if passed else 0.0
