"""A file is changed only after it was read or met; results of the same turn come too late."""

import pytest

from composer_plugin_behavior.config import EvidenceConfig
from composer_plugin_behavior.evidence import evidence
from composer_plugin_behavior.plugin import composer_rewards
from composer_plugin_behavior.reading import names
from composer_testing.contracts.rewards import RewardContract, Situation
from composer_testing.fakes.traces import attempt, called

CHANGE = {"patch": {"src/a.py": "2", "new.py": "3"}, "originals": {"src/a.py": "1"}}


def edit(path="src/a.py"):
    return called("edit_file", {"path": path, "old": "1", "new": "2"}, data={"written": path})


def shell(command, text=""):
    return [called("run_terminal", {"command": command}, text)]


READ = called("read_file", {"path": "src/a.py"}, "1", data={"read": "src/a.py"})


class TestEvidence(RewardContract):
    def build(self):
        return next(spec for spec in composer_rewards() if spec.name == "evidence")

    def situations(self):
        def of(value, *turns, **fields):
            group = (attempt(*turns, **{**CHANGE, **fields}),)
            return Situation({"group": group, "config": EvidenceConfig()}, value)

        return {
            "read first": of(0.0, [READ], [edit()]),
            "read in the same turn": of(-1.0, [READ, edit()]),
            "never read": of(-1.0, [edit()]),
            "found by a search": of(0.0, [called("grep", {"pattern": "x"}, "src/a.py:3:x = 1")], [edit()]),
            "listed": of(0.0, [called("list_dir", {"path": "src"}, "a.py\nb.py", data={"listed": "src"})], [edit()]),
            "shown by a command": of(0.0, shell("cat ./src/a.py", "1"), [edit()]),
            "a search that failed": of(-1.0, [called("grep", {"pattern": "src/a.py"}, ok=False)], [edit()]),
            "named by the task": of(0.0, [edit()], prompt="mend src/a.py, please"),
            "a new file": of(0.0, [edit("new.py")], patch={"new.py": "3"}, originals={}),
            "its own edit is no evidence": of(-1.0, [edit()], [edit()]),
            "deleted unread": of(-1.0, [called("delete_file", {"path": "src/a.py"}, data={"deleted": "src/a.py"})]),
            "one of several": of(
                -1.0, [called("apply_patch", {"patch": "..."}, data={"written": ["src/a.py", "new.py"]})]
            ),
            "by a command alone": of(-1.0, shell("sed -i s/1/2/ src/a.py")),
            "looked at after the command": of(-1.0, shell("cat > src/a.py"), [READ], shell("git diff src/a.py")),
            "looked at in the same command": of(-1.0, shell("cat src/a.py && sed -i s/1/2/ src/a.py", "1")),
            "by a command, read before": of(0.0, [READ], shell("sed -i s/1/2/ src/a.py")),
            "by a command, shown before": of(0.0, shell("sed -n '1,9p' src/a.py", "1"), shell("echo 2 > src/a.py")),
            "by a command that names nothing": of(-1.0, shell("sed -i s/1/2/ */*"), shell("git diff", "b/src/a.py")),
            "by a command that names nothing, read": of(0.0, [READ], shell("cd src && sed -i s/1/2/ a.py")),
            "named by its own to-do": of(
                -1.0, [called("todo_write", {"items": "mend src/a.py"}, "[ ] 1 src/a.py")], [edit()]
            ),
            "nothing changed": of(0.0, [called("grep")], patch={}, originals={}),
            "not solved": of(-1.0, [READ], [edit()], solved=False),
        }


def test_the_files_that_were_changed_blindly_are_named():
    both = {"patch": {"a.py": "2", "b.py": "2"}, "originals": {"a.py": "1", "b.py": "1"}}
    look = called("read_file", {"path": "a.py"}, data={"read": "a.py"})
    (found,) = evidence([attempt([look], [edit("a.py"), edit("b.py")], **both)], EvidenceConfig())
    assert (found.value, found.note, found.parts) == (-0.5, "b.py", {"changed": 2.0, "blind": 1.0})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a.py:1:x", True), ("see a.py.", True), ("./a.py", True), ('"a.py"', True),
        ("aa.py", False), ("src/a.py", False), ("a.pyc", False), ("a.py/b", False),
    ],
)  # fmt: skip
def test_a_path_is_named_whole_or_not_at_all(text, named):
    assert names(text, "a.py") is named
