"""What an episode's calls report, for claims to be held against: tests, lints, commands, files.

What counts is what was reported last, and after the last change: a run that passed before says nothing of what is there
now. That a command changed a file is known only if its text names one of the patch (see `commands`).
"""

from __future__ import annotations

from attrs import frozen

from composer_core import Trace
from composer_core.types import Call, ToolResult
from composer_plugin_behavior.commands import changing, judged_by
from composer_plugin_behavior.config import ClaimsConfig
from composer_plugin_behavior.linted import RUFF, covers, linted
from composer_plugin_behavior.reading import Seen, changed, executed, names

MENDS_NOTHING = RUFF + r"(?!.*--fix)"


@frozen
class Log:
    """The episode's calls with their results, in order."""

    trace: Trace
    config: ClaimsConfig
    calls: tuple[tuple[Call, ToolResult], ...]
    touched: frozenset[str]
    """Files of the patch, and those that calls wrote."""

    @classmethod
    def of(cls, trace: Trace, config: ClaimsConfig) -> Log:
        calls = tuple(pair for turn in trace.turns for pair in executed(turn))
        written = (path for _, result in calls for path in changed(result))
        return cls(trace, config, calls, frozenset((*trace.patch.touched(), *written)))

    def tests_pass(self) -> bool:
        """Whether the latest run of the tests ended with 0."""
        program = self.config.runs_tests
        judged = [
            result.exit_code == 0
            for call, result in self.since(program)
            if judged_by(self._command(call), program, self.touched)
        ]
        return judged[-1:] == [True]

    def lints_clean(self) -> bool:
        """Whether the latest lint of every touched file found nothing."""
        runs = []
        for call, result in self.since(RUFF):
            if "lints" in result.data:
                runs.append((result.data["lints"] == 0, result.data.get("linted")))
            elif judged_by(command := self._command(call), RUFF):
                runs.append((result.exit_code == 0, linted(command)))
        python = [file.path for file in self.trace.patch.writes if file.path.endswith((".py", ".pyi"))]
        latest = [[clean for clean, paths in runs if covers(paths, path)][-1:] for path in python]
        return all(found == [True] for found in latest or [[clean for clean, _ in runs][-1:]])

    def since(self, program: str) -> tuple[tuple[Call, ToolResult], ...]:
        """The calls after the last change; a command that changed something and then ran the program is one of them."""
        harmless = (self.config.runs_tests, MENDS_NOTHING)
        last = 0
        for at, (call, result) in enumerate(self.calls):
            command = self._command(call)
            if changed(result) or self._names_one(changing(command, harmless, after=program)):
                last = at + 1
            elif self._names_one(changing(command, harmless)):
                last = at
        return self.calls[last:]

    def _names_one(self, text: str) -> bool:
        """Whether a text names a file of the patch."""
        return any(names(text, path) for path in self.trace.patch.touched())

    def ran(self, command: str) -> bool:
        return any(command in self._command(call) for call, _ in self.calls)

    def changed(self, path: str) -> bool:
        return any(one == path or one.endswith(f"/{path}") for one in self.touched)

    def read(self, path: str) -> bool:
        seen = Seen((*self.config.reads, *self.config.terminals))
        for turn in self.trace.turns:
            seen.add(turn)
        return seen.knows(path) or any(one.endswith(f"/{path}") for one in seen.read) or self.changed(path)

    def _command(self, call: Call) -> str:
        """What a call ran; "" for a call of another tool."""
        return str(call.arguments.get("command", "")) if call.name in self.config.terminals else ""
