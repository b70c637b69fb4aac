"""The tool contract asks for what the model is told, and names what to write where it is missing."""

import pytest

from composer_core import ToolSpec
from composer_testing.contracts.tools import ToolContract


def told(path: str, depth: int = 1) -> str:
    """List a folder.

    Args:
        path: the folder
        depth: levels to show
    """
    return f"{path} {depth}"


def half_told(path: str, depth: int = 1) -> str:
    """List a folder.

    Args:
        path: the folder
    """
    return f"{path} {depth}"


def untold(path: str) -> str:
    return path


def said(function) -> str:
    """What the contract complains about, "" if it passes."""
    suite = ToolContract()
    suite.spec = ToolSpec.of(function, summary="a summary is for listings, not for the model")
    try:
        suite.test_the_model_is_told_what_it_does_and_what_each_argument_is()
    except AssertionError as error:
        return str(error)
    return ""


def test_a_tool_that_tells_everything_passes():
    assert not said(told)


def test_a_tool_without_a_docstring_is_caught_whatever_its_summary():
    assert "the function of the tool 'untold' has no docstring; fix: say there what it does" in said(untold)


def test_a_parameter_that_is_not_described_is_named_with_the_lines_to_add():
    text = said(half_told)
    assert "does not tell what depth is; fix: in its docstring" in text
    assert "Args:" in text and "depth: what it is" in text


@pytest.mark.parametrize("name", ["read", "write", "done"])
def test_the_fakes_keep_it(name):
    from composer_testing.fakes import tools

    assert not said(getattr(tools, name))
