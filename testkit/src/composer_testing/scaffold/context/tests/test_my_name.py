"""The context keeps its kind's contract, and carries over what it promises."""

from attrs import evolve

from composer_core import BuildContext
from composer_core.protocols import ContextView, Continue, NewBranch
from composer_core.types import Limits, SlotKey
from composer_plugin_my_name.context import MyNameContext
from composer_plugin_my_name.plugin import MyNameConfig
from composer_testing.contracts.contexts import ContextContract, view
from composer_testing.contracts.hook_modules import HookModuleContract
from composer_testing.fakes.runs import make_trace

TRACE = make_trace(SlotKey("task", 0), solved=True)  # reads and searches, edits, runs the tests, finishes


def context(tmp_path, **settings) -> MyNameContext:
    return MyNameContext(MyNameConfig(**settings), BuildContext(tmp_path))


def episode(tokens: int) -> ContextView:
    """An episode of four turns with so many tokens in a window of 1,000."""
    return evolve(view(tokens, limits=Limits(context_tokens=1000)), trace=lambda: TRACE)


class TestHookModule(HookModuleContract):
    module = "composer_plugin_my_name.plugin"


class TestMyName(ContextContract):
    def build(self):
        return MyNameContext(MyNameConfig(), BuildContext(None))


def test_a_full_window_is_left_for_the_opening_and_the_latest_turns(tmp_path):
    decision = context(tmp_path, full=0.5, keep_turns=2).next(episode(500))
    assert isinstance(decision, NewBranch)
    *opening, told = decision.messages
    assert tuple(opening) == TRACE.opening
    assert told.role == "summary"
    assert 'run_terminal {"command": "python -m pkg.tests"}\n6 passed' in told.text
    assert "read_file" not in told.text


def test_a_window_with_room_is_kept(tmp_path):
    assert context(tmp_path, full=0.5).next(episode(499)) == Continue()
