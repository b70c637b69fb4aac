"""`lints`: a change leaves no new diagnostics behind, and silences none.

Ruff runs on the trusted side, over the files of the patch and over their originals. It only parses them, and neither
the workspace's settings nor its suppressions are looked at: what an agent could write to be left alone, it could write
instead of mending anything.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from composer_core import Trace
from composer_core.errors import GradingError
from composer_core.trees import File
from composer_core.types import Score
from composer_plugin_behavior.config import LintsConfig
from composer_plugin_behavior.gate import gated, score

MOST_FILES, MOST_BYTES = 200, 1 << 20
"""Files of one side of a patch that are looked at, and how large one may be."""
SUPPRESSION = re.compile(
    r"#\s*(?:(?:ruff|flake8):\s*noqa|noqa|type:\s*ignore|pyright:|mypy:|pylint:\s*disable)", re.IGNORECASE
)
CONTROL = File("control.py", b"")
Diagnostics = Counter[tuple[str, str, str]]
"""How often each (path, rule, message) was found; lines move, so they are no part of it."""


def lints(group: Sequence[Trace], config: LintsConfig) -> list[Score]:
    """-clip((new - mended + suppressions) / most, 0, 1) over the Python files that the patch touches.

    new counts diagnostics of the files as they are now that no touched file had before, mended those that files which
    still exist have lost; deleting a file mends nothing, and moving one makes nothing new. A comment that suppresses
    diagnostics counts as a new one. Mended ones make up for new ones and are worth nothing more, or an agent would be
    paid for repairs that nobody asked for. A patch over which ruff breaks costs everything. Files whose originals were
    not kept, since the patch touches too much, count for nothing.

    Source: the difference of diagnostics instead of their number follows SWE-agent's edits behind a linter (Yang et al.
    2024, arXiv 2405.15793); the count of suppressions is ours.

    Raises:
        GradingError: ruff does not run here.
    """
    return [gated(trace, _of(trace, config)) for trace in group]


def _of(trace: Trace, config: LintsConfig) -> Score:
    known = {file.path for file in trace.originals}
    writes = [file for file in trace.patch.writes if trace.originals_whole or file.path in known]
    before, after = tuple(_python(trace.originals)), tuple(_python(writes))
    had = diagnosed(before, config)
    try:
        has = diagnosed(after, config)
    except GradingError as error:
        diagnosed((CONTROL,), config)  # raises where the patch is not to blame
        return score(-1.0, {}, str(error))
    kept = {file.path for file in after}
    new = _unplaced(has) - _unplaced(had)
    mended = _unplaced(Counter({key: count for key, count in had.items() if key[0] in kept})) - _unplaced(has)
    silenced = max(0, suppressions(after) - suppressions(before))
    net = new.total() - mended.total() + silenced
    parts = {"new": new.total(), "mended": mended.total(), "suppressions": silenced}
    told = ", ".join(sorted({rule for rule, _ in new}))
    return score(-min(1.0, max(0, net) / config.most), {name: float(value) for name, value in parts.items()}, told)


def _unplaced(found: Diagnostics) -> Counter[tuple[str, str]]:
    """Counted by rule and message alone."""
    counts: Counter[tuple[str, str]] = Counter()
    for (_, rule, message), count in found.items():
        counts[rule, message] += count
    return counts


def suppressions(files: Iterable[File]) -> int:
    """Comments that tell a linter or a type checker to look away."""
    return sum(len(SUPPRESSION.findall(file.data.decode(errors="replace"))) for file in files)


def diagnosed(files: Sequence[File], config: LintsConfig) -> Diagnostics:
    """What ruff finds.

    Raises:
        GradingError: it did not run to its end.
    """
    with TemporaryDirectory(prefix="composer-lints-") as name:
        folder = Path(name).resolve()
        for file in files:
            with suppress(OSError, ValueError):  # a name that this machine's files cannot have
                path = folder / file.path
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(file.data)
        rows = _ruff(folder, config) if files else []
        return Counter(
            (str(Path(row["filename"]).relative_to(folder)), row["code"] or "syntax", row["message"]) for row in rows
        )


def _ruff(folder: Path, config: LintsConfig) -> list[dict[str, str]]:
    from ruff.__main__ import find_ruff_bin  # type: ignore[import-untyped]

    argv = [find_ruff_bin(), "check", "--quiet", "--isolated", "--no-cache", "--no-fix", "--exit-zero", "--ignore-noqa"]
    argv += ["--no-respect-gitignore", "--config", "exclude = []", "--select", config.select]
    argv += ["--output-format=json", "."]
    try:
        done = subprocess.run(argv, cwd=folder, capture_output=True, timeout=config.timeout_s, check=True)
        rows: list[dict[str, str]] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        told = (getattr(error, "stderr", b"") or b"").decode(errors="replace")
        raise GradingError("ruff cannot judge the files", who="behavior/lints", found=f"{error} {told}") from error
    return rows


def _python(files: Iterable[File]) -> Iterator[File]:
    chosen = [file for file in files if file.path.endswith((".py", ".pyi")) and len(file.data) <= MOST_BYTES]
    yield from chosen[:MOST_FILES]
