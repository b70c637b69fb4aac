"""read_lints: ruff's findings and compile errors, both computed inside the sandbox.

Nothing of the workspace is imported or run: the compiler only parses, in an isolated interpreter that reads neither
site-packages nor the workspace's modules. Ruff finds most; the compiler adds what only it refuses.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from attrs import frozen

from composer_core import ToolContext, ToolError, ToolOutput
from composer_core.protocols import ExecResult
from composer_plugin_code.config import LintConfig
from composer_plugin_code.paths import clean, instead
from composer_plugin_code.room import Line, fitted, left_of

COMPILE = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
files, found = [], []
for path in sys.argv[1:]:
    if os.path.isdir(path):
        for folder, names, here in os.walk(path):
            names[:] = sorted(name for name in names if not name.startswith("."))
            files += [os.path.join(folder, name) for name in sorted(here) if name.endswith(".py")]
    elif os.path.exists(path):
        files += [path] if path.endswith(".py") else []
    else:
        found.append([path, 0, 0, "missing", "no such file or folder"])
for path in files:
    try:
        with open(path, "rb") as file:
            compile(file.read(), path, "exec", dont_inherit=True)
    except SyntaxError as error:
        found.append([path, error.lineno or 1, error.offset or 1, "syntax", error.msg])
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        found.append([path, 1, 1, "syntax", type(error).__name__])
print(json.dumps({"root": os.getcwd(), "found": found}))
"""
COMPILER = ("python3", "-I", "-S", "-B", "-c", COMPILE)
RUFF = ("ruff", "check", "--quiet", "--no-cache", "--exit-zero", "--no-fix", "--output-format=json")


@frozen(order=True)
class Lint:
    """One finding."""

    path: str
    line: int
    column: int
    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column} {self.code} {self.message}"


async def read_lints(context: ToolContext, paths: list[str] | None = None) -> ToolOutput:
    """Show lints and syntax errors as path:line:column.

    Args:
        paths: files or folders, relative to the workspace; all of it if left out
    """
    config: LintConfig = context.config or LintConfig()
    wanted = [f"./{clean(path)}" for path in paths or [""]]
    compiled = await _run(context, [*COMPILER, *wanted])
    errors = [Lint(path.removeprefix("./"), *rest) for path, *rest in compiled["found"]]
    missing = [lint.path for lint in errors if lint.code == "missing"]
    if missing:
        raise ToolError("\n".join([await instead(context, path, "file or folder") for path in missing]))
    select = ["--select", config.select] if config.select else []
    found = _ruff(await _run(context, [*RUFF, *select, "--", *wanted]), compiled["root"])
    broken = {lint.path for lint in errors}
    lints = sorted({*errors, *(lint for lint in found if lint.path not in broken)})
    shown = [str(lint) for lint in lints[: config.max_lints]]
    rows = [Line(text, len(text)) for text in shown]
    text, _ = fitted(rows, context.limits.output_chars, left_of(len(lints)))
    data = {"lints": len(lints), "errors": len(errors), "linted": [path.removeprefix("./") for path in wanted]}
    return ToolOutput(text or "no lints", data=data)


async def _run(context: ToolContext, argv: Sequence[str]) -> Any:
    result = await context.sandbox.exec(argv, timeout_s=context.limits.command_s)
    if result.status != "exited" or result.exit_code != 0:
        raise ToolError(f"{argv[0]} failed: {_why(result)}")
    try:
        return json.loads(result.stdout)
    except ValueError:
        raise ToolError(f"{argv[0]} reported too much; name fewer paths") from None


def _why(result: ExecResult) -> str:
    text = result.stderr.decode(errors="replace").strip()
    return text or (f"exit {result.exit_code}" if result.status == "exited" else result.status)


def _ruff(rows: list[dict[str, Any]], root: str) -> list[Lint]:
    """Ruff names files by absolute path; `root` is where the workspace is inside the sandbox."""
    lints = []
    for row in rows:
        place = row["location"] or {"row": 1, "column": 1}
        path = row["filename"].removeprefix(root.rstrip("/") + "/")
        message = row["message"].partition("\n")[0]
        lints.append(Lint(path, place["row"], place["column"], row["code"] or "syntax", message))
    return lints
