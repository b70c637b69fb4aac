"""Settings of the rewards, beside `use` and `weight` in the run file. Thin: read by every listing of plugins."""

from __future__ import annotations

import math
from typing import Any

from attrs import field, frozen
from attrs.validators import ge, gt, lt

_POSITIVE: Any = [gt(0), lt(math.inf)]
_NOT_NEGATIVE: Any = [ge(0), lt(math.inf)]
_SHARE: Any = [ge(0), lt(1)]

READS = ("read_file", "list_dir", "glob", "grep", "semantic_search", "read_lints")
APART = ("todo_write", "finish")
TERMINALS = ("run_terminal",)


@frozen
class EffortConfig:
    """Settings of `effort`."""

    k: float = field(default=1e-3, validator=_POSITIVE)
    """How soon the cost bends, per unit of x: at x = 1/k it has half its first slope where q = 1."""
    q: float = field(default=1.0, validator=_NOT_NEGATIVE)
    """How much it bends: 0 is linear, 1 a logarithm, and above 1 the cost is bounded."""
    thinking: float = field(default=1.0, validator=_NOT_NEGATIVE)
    """Of a token of words before calls, of thinking and of summaries."""
    call: float = field(default=1.0, validator=_NOT_NEGATIVE)
    """Of a token inside a call."""
    result: float = field(default=0.1, validator=_NOT_NEGATIVE)
    """Of a token that comes back from calls."""
    message: float = field(default=1.0, validator=_NOT_NEGATIVE)
    """Of a token of the final message."""
    calls: float = field(default=5.0, validator=_NOT_NEGATIVE)
    """Of a call, whatever it says, in tokens."""
    turns: float = field(default=20.0, validator=_POSITIVE)
    """Of a turn, in tokens: what makes reads in parallel worth it."""
    ends: tuple[str, ...] = ("finish",)
    """Tools whose arguments are the final message."""


@frozen
class ParallelismConfig:
    """Settings of `parallelism`."""

    cap: int = field(default=4, validator=gt(1))
    """Independent reads of one turn that are paid; more are worth no more."""
    reads: tuple[str, ...] = READS
    """Tools that read and change nothing."""


@frozen
class BrokenCallsConfig:
    """Settings of `broken_calls`."""

    most: int = field(default=4, validator=gt(0))
    """Broken calls that cost everything."""


@frozen
class EvidenceConfig:
    """Settings of `evidence`."""

    reads: tuple[str, ...] = READS
    """Tools that look: what they were asked and what they showed is known from then on."""
    terminals: tuple[str, ...] = TERMINALS
    """Tools that run the command in their argument `command`: what they print is known too."""


@frozen
class LintsConfig:
    """Settings of `lints`."""

    select: str = "E4,E7,E9,F"
    """Rules of ruff, the workspace's own choice notwithstanding."""
    most: int = field(default=5, validator=gt(0))
    """New diagnostics, less those mended, that cost everything."""
    timeout_s: float = field(default=60.0, validator=_POSITIVE)
    """Time for the files of one side of a patch."""


@frozen
class ClaimsConfig:
    """Settings of `claims`."""

    most: int = field(default=2, validator=gt(0))
    """Claims that nothing backs that cost everything."""
    runs_tests: str = (
        r"\b(pytest|unittest|tox|nox)\b|\b(npm|yarn|pnpm|cargo|go|make) (run )?test|\.tests?\b|\btests?\.(py|sh)\b"
    )
    """First words of commands that run tests, as a regular expression."""
    terminals: tuple[str, ...] = TERMINALS
    """Tools that run the command in their argument `command`."""
    reads: tuple[str, ...] = READS
    """Tools whose arguments and results tell which files were looked at, beside the terminals'."""


@frozen
class DiffConfig:
    """Settings of `diff`."""

    free: float = field(default=2.0, validator=ge(1))
    """Times the group's median of changed lines that cost nothing."""
    most: float = field(default=5.0, validator=gt(1))
    """Times the median that cost everything; above `free`."""
    least_lines: int = field(default=5, validator=gt(0))
    """The median is at least this, so that small repairs may differ."""
    stray: tuple[str, ...] = (
        "*.orig", "*.rej", "*.bak", "*.tmp", "*.log", "*.out", "*.swp", "*~", "*.pyc", "*.pyo", "*.prof",
        "*/__pycache__/*", "*/.pytest_cache/*", "*/.ruff_cache/*", "*/.mypy_cache/*", "*/node_modules/*",
        "*/tmp/*", "*/temp/*", "*/scratch*", "*/debug*", "*/repro*", "*/reproduce*",
    )  # fmt: skip
    """Patterns (fnmatch, case ignored) of new files that nobody asked for; paths begin with a slash here."""
    comments: float = field(default=0.5, validator=_SHARE)
    """Share of the added characters that may be comments and docstrings."""
    least_chars: int = field(default=200, validator=ge(0))
    """Characters of added comments below which their share does not matter."""

    def __attrs_post_init__(self) -> None:
        if self.most <= self.free:
            raise ValueError(f"most must be above free = {self.free:g}, found {self.most:g}")


@frozen
class TerminalOnlyConfig:
    """Settings of `terminal_only`."""

    tools: tuple[str, ...] = TERMINALS
    """Tools that run commands."""
    apart: tuple[str, ...] = APART
    """Tools that neither look nor change, and are not counted."""
    free: float = field(default=0.7, validator=_SHARE)
    """Share of commands that costs nothing."""
    least_calls: int = field(default=4, validator=gt(0))
    """Calls below which the share does not matter."""


@frozen(kw_only=True)
class RubricConfig:
    """Settings of `rubric`; a run may have several, one aspect each."""

    aspect: str
    """The one question that the judge answers, such as "Does the change follow the code around it?"."""
    url: str
    """Base of an OpenAI-compatible server, "/v1" included."""
    model: str
    """The name that the server knows the judge by."""
    key_env: str = ""
    """Environment variable that holds the server's key; none is sent if not set."""
    cache: str = ""
    """Folder that keeps answers by the hash of what was asked; if not set they are kept while the process lives."""
    max_chars: int = field(default=20_000, validator=_POSITIVE)
    """Characters of the diff, and of the final message, that the judge is shown, half from head and half from tail."""
    max_tokens: int = field(default=300, validator=gt(0))
    """Tokens that the judge may answer with."""
    timeout_s: float = field(default=60.0, validator=_POSITIVE)
    """Time for one answer."""
    attempts: int = field(default=3, validator=gt(0))
    """Times that one answer is asked for, and the answer to a control question where none came."""
    at_once: int = field(default=4, validator=gt(0))
    """Questions on their way to the server together."""


@frozen
class MonitorConfig:
    """Settings of the tracker `monitor`."""

    window: int = field(default=10, validator=gt(1))
    """Steps that are compared with as many before them; after a flag so many pass before the same part's next one."""
    deviations: float = field(default=4.0, validator=_POSITIVE)
    """How far a part's mean has to move, in standard errors of its own noise."""
    least: float = field(default=0.005, validator=_NOT_NEGATIVE)
    """And how far at least, as part of the whole reward."""
    outcome: str = "solve_rate"
    """The metric that should move with it."""
    quiet: float = field(default=2.0, validator=_POSITIVE)
    """Standard errors up to which the outcome counts as unmoved."""
