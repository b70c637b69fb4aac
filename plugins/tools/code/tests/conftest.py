"""A bench for the tools: they are bound and called as an episode does, over a real folder."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from composer_core import ToolContext, ToolError, ToolOutput
from composer_core.errors import PathError, QuotaError, Unsupported
from composer_core.protocols import Entry, ExecResult
from composer_core.schema import bind, call_tool
from composer_core.toolbox import Tool, Toolbox
from composer_core.types import Call, Limits, ToolResult
from composer_plugin_code.plugin import composer_tools

SPECS = {spec.name: spec for spec in composer_tools()}


class Scripted:
    """Answers every command alike and remembers the time limits it was given."""

    def __init__(self, result: ExecResult) -> None:
        self.result = result
        self.timeouts: list[float | None] = []

    async def exec(self, argv: Sequence[str], *, timeout_s: float | None = None, **_: Any) -> ExecResult:
        self.timeouts.append(timeout_s)
        return self.result

    async def session_exec(self, name: str, argv: Sequence[str], **_: Any) -> ExecResult:
        raise Unsupported("no sessions")


class Folder:
    """A SandboxHandle over a temporary folder; it isolates nothing and limits files."""

    file_bytes = 1000
    output_bytes = 1 << 20

    def __init__(self, root: Path) -> None:
        self.root = root

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float | None = None,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        tools = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *argv, cwd=self.root, stdin=pipe, stdout=pipe, stderr=pipe, env={"PATH": tools}, start_new_session=True
        )
        outputs = asyncio.ensure_future(process.communicate(stdin))
        done, _ = await asyncio.wait({outputs}, timeout=timeout_s)
        if not done:
            os.killpg(process.pid, signal.SIGKILL)
        streams = await outputs
        sizes = [len(stream) for stream in streams]
        out, err = (stream[: self.output_bytes] for stream in streams)
        if not done:
            return ExecResult("timeout", None, out, err, *sizes)
        code = process.returncode
        if code is not None and code < 0:
            return ExecResult("signaled", None, out, err, *sizes, signal=-code)
        return ExecResult("exited", code, out, err, *sizes)

    async def session_exec(self, name: str, argv: Sequence[str], *, timeout_s: float | None = None) -> ExecResult:
        return await self.exec(argv, timeout_s=timeout_s)

    async def read(self, path: str) -> bytes:
        if not (self.root / path).is_file():
            raise PathError("no such file")
        return (self.root / path).read_bytes()

    async def write(self, path: str, data: bytes) -> None:
        if len(data) > self.file_bytes:
            raise QuotaError(f"a file holds at most {self.file_bytes} bytes")
        target = self.root / path
        if target.is_dir() or any(parent.is_file() for parent in target.parents):
            raise PathError("it is a folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    async def list(self, path: str = "") -> list[Entry]:
        if not (self.root / path).is_dir():
            raise PathError("no such folder")
        return [Entry(item.name, "folder" if item.is_dir() else "file") for item in (self.root / path).iterdir()]


class Bench:
    """Calls tools as an episode does: bind, then call."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state: dict[str, Any] = {}
        self.limits = Limits()
        self.sandbox: Any = Folder(root)

    def call(self, name: str, config: Any = None, **arguments: Any) -> ToolOutput:
        spec = SPECS[name]
        context = ToolContext(self.sandbox, self.state, self.limits, config=config or spec.config())
        return asyncio.run(call_tool(spec, spec.function, context, bind(spec, arguments)))  # type: ignore[arg-type]

    def shown(self, name: str, config: Any = None, **arguments: Any) -> ToolResult:
        """What the model is shown, by way of the toolbox, which has the last word on its length."""
        spec = SPECS[name]
        box = Toolbox({name: Tool.of(f"code/{name}", spec, spec.function, config or spec.config())})  # type: ignore[arg-type]
        context = ToolContext(self.sandbox, self.state, self.limits)
        (result,), faults = asyncio.run(box.run(box.examine([Call("0", name, arguments)]), context))
        assert not faults
        return result

    def text(self, name: str, config: Any = None, **arguments: Any) -> str:
        return self.call(name, config, **arguments).text

    def refusal(self, name: str, config: Any = None, **arguments: Any) -> str:
        with pytest.raises(ToolError) as caught:
            self.call(name, config, **arguments)
        return str(caught.value)

    def script(self, result: ExecResult) -> Scripted:
        """Answer every command with `result` from now on."""
        self.sandbox = Scripted(result)
        return self.sandbox

    def file(self, path: str, data: str | bytes) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data.encode() if isinstance(data, str) else data)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    found = Bench(tmp_path)
    found.file("pkg/clamp.py", "def clamp(x, low, high):\n    if x < low:\n        return low\n    return x\n")
    found.file("README.md", "A package.\n")
    found.file(".ruff.toml", 'lint.select = ["E9", "F"]\n')
    return found
