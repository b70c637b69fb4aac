"""Settings of the tools, each reachable as `context.config`; limits state in the output what they cut.

The episode's `limits.output_chars` applies to every result as well, and is the smaller one by default.
"""

from __future__ import annotations

from attrs import field, frozen, validators

_positive = validators.gt(0)


@frozen
class ListConfig:
    """Settings of list_dir."""

    max_entries: int = field(default=500, validator=_positive)
    """Entries shown of one folder."""


@frozen
class ReadConfig:
    """Settings of read_file."""

    line_numbers: bool = True
    """Begin each line with its number, "12: text"; without, the raw lines are returned."""
    max_lines: int = field(default=2000, validator=_positive)
    """Lines shown of one call."""
    max_line_chars: int = field(default=2000, validator=_positive)
    """Characters shown of one line."""
    max_bytes: int = field(default=50_000, validator=_positive)
    """Bytes of text shown of one call; the line that would exceed it is left for the next."""


@frozen
class GlobConfig:
    """Settings of glob."""

    max_files: int = field(default=100, validator=_positive)
    """Paths shown."""


@frozen
class GrepConfig:
    """Settings of grep."""

    max_matches: int = field(default=100, validator=_positive)
    """Matching lines, or paths, shown; a call may ask for fewer. Lines around a match do not count."""
    max_line_chars: int = field(default=300, validator=_positive)
    """Characters shown of one line."""


@frozen
class TerminalConfig:
    """Settings of run_terminal."""

    shell: str = "sh"
    """Shell that runs the command with `-c`."""
    max_chars: int = field(default=30_000, validator=_positive)
    """Characters shown, half from the head and half from the tail; the episode's own limit applies as well."""
    background_s: int = field(default=3600, validator=_positive)
    """Seconds after which a command in the background is stopped, unless it is given its own."""
    compact: bool = False
    """Leave out escape sequences, trailing spaces, blank lines and repeated lines."""


@frozen
class LintConfig:
    """Settings of read_lints."""

    max_lints: int = field(default=50, validator=_positive)
    """Diagnostics shown."""
    select: str = ""
    """Ruff rules, such as "E9,F"; empty leaves the choice to the workspace's own configuration."""
