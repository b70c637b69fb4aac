"""Independent reads of one turn are paid; asking again, and changing things in between, is told apart."""

from composer_plugin_behavior.config import ParallelismConfig
from composer_plugin_behavior.parallelism import parallelism, widths
from composer_plugin_behavior.plugin import composer_rewards
from composer_testing.contracts.rewards import RewardContract, Situation
from composer_testing.fakes.traces import attempt, called

PLAIN = ParallelismConfig(cap=3)


def read(path, **fields):
    return called("read_file", {"path": path}, f"{path} = 1", **fields)


EDIT = called("edit_file", {"path": "a"}, data={"written": "a"})


class TestParallelism(RewardContract):
    def build(self):
        return next(spec for spec in composer_rewards() if spec.name == "parallelism")

    def situations(self):
        def of(value, *turns, solved=True):
            return Situation({"group": (attempt(*turns, solved=solved),), "config": PLAIN}, value)

        return {
            "one by one": of(0.0, [read("a")], [read("b")]),
            "two at once": of(0.5, [read("a"), read("b")]),
            "as many as are paid": of(1.0, [read("a"), read("b"), read("c")]),
            "more": of(1.0, [read(name) for name in "abcdef"]),
            "mean over the turns that read": of(0.25, [read("a"), read("b")], [read("c")], [EDIT]),
            "no reads": of(0.0, [EDIT]),
            "not solved": of(0.0, [read("a"), read("b"), read("c")], solved=False),
        }


def test_asking_again_costs_what_it_would_have_gained():
    padded = attempt([read("a"), read("b"), read("a"), read("a")])
    assert widths(padded, PLAIN.reads) == [(2, 2)]
    assert parallelism([padded], PLAIN)[0].value == 0.0


def test_what_was_asked_before_may_be_asked_again_once_something_has_changed():
    trace = attempt([read("a")], [read("a")], [EDIT], [read("a")])
    assert widths(trace, PLAIN.reads) == [(1, 0), (0, 1), (1, 0)]


def test_only_a_changed_file_renews_a_question():
    idle = [called("todo_write"), called("run_terminal", {"command": "true"}), called("edit_file", ok=False)]
    assert widths(attempt([read("a")], *[[one] for one in idle], [read("a")]), PLAIN.reads) == [(1, 0), (0, 1)]


def test_slices_of_one_file_are_one_question_in_a_turn_and_several_in_several():
    slices = [called("read_file", {"path": "a", "offset": at}, f"{at}", data={"read": "a"}) for at in (1, 11, 21)]
    assert widths(attempt(slices), PLAIN.reads) == [(1, 2)]
    assert widths(attempt(*[[one] for one in slices]), PLAIN.reads) == [(1, 0)] * 3


def test_reads_that_fail_or_could_not_be_executed_are_no_reads():
    trace = attempt([read("a", ok=False), read("b", problem="bad_arguments"), read("c")])
    assert widths(trace, PLAIN.reads) == [(1, 0)]


def listed(path):
    return called("list_dir", {"path": path}, "a.py", data={"listed": ""})


def matched(pattern, text, **arguments):
    return called("grep", {"pattern": pattern, **arguments}, text, data={"searched": ""})


def test_a_question_that_is_spelled_in_other_ways_is_one():
    folders = [listed(path) for path in ("", ".", "./", "pkg/..")]
    assert widths(attempt(folders), PLAIN.reads) == [(1, 3)]
    limits = [matched("x", f"{limit} lines", limit=limit, path="." * (limit % 2)) for limit in (1, 2, 3, 4)]
    assert widths(attempt(limits), PLAIN.reads) == [(1, 3)]
    modes = [matched("x", "a:1:x", mode="lines"), matched("x", "a:1", mode="counts"), matched("y", "b:1:y")]
    assert widths(attempt(modes), PLAIN.reads) == [(3, 0)]


def test_a_file_that_is_named_in_another_way_in_a_later_turn_is_the_same():
    plain, dotted = (read(path, data={"read": "a.py"}) for path in ("a.py", "./a.py"))
    assert widths(attempt([plain], [dotted]), PLAIN.reads) == [(1, 0), (0, 1)]


def test_an_answer_that_the_turn_has_already_is_nothing_new():
    spelled = [matched(pattern, "a:1:x") for pattern in ("x", "(x)", "x{1}")]
    assert widths(attempt(spelled), PLAIN.reads) == [(1, 0)]
    assert widths(attempt([*spelled, matched("y", "a:2:y")]), PLAIN.reads) == [(2, 0)]


def test_the_order_of_arguments_makes_no_other_question():
    one, other = ({"pattern": "x", "path": "."}, {"path": ".", "pattern": "x"})
    assert widths(attempt([called("grep", one), called("grep", other)]), PLAIN.reads) == [(1, 1)]
