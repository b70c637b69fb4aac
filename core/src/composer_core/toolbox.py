"""The tools of a run, and how the calls of one turn are executed.

Consecutive reads run concurrently; a write or an exec is a barrier, so it sees everything before it and nothing after.
Results come in call order, whatever finished first. A call that cannot be executed (malformed, unknown tool, bad
arguments) gets a result that says why: it is the policy's doing and is never dropped.

A tool's error is text for the model. What is the host's fault (a sandbox that is gone) passes through and makes the
episode void; a tool that breaks with an exception of its own is recorded as a fault and shown as a failed call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from attrs import Factory, define, evolve, frozen

from composer_core.errors import PathError, PluginFault, QuotaError, ToolError, boundary, did_you_mean
from composer_core.printable import clip
from composer_core.protocols import ToolContext, ToolSchema
from composer_core.records import ToolSpec
from composer_core.schema import bind, call_tool, schema_of
from composer_core.types import Call, Fault, ToolResult


@frozen
class Tool:
    """A chosen tool: its record with the function resolved, and its settings."""

    id: str
    spec: ToolSpec
    config: Any
    function: Callable[..., Any]
    schema: ToolSchema
    without: frozenset[str] = frozenset()
    """Optional arguments that the run does not offer."""

    @classmethod
    def of(
        cls, id: str, spec: ToolSpec, function: Callable[..., Any], config: Any, without: Sequence[str] = ()
    ) -> Tool:
        """Raises ConfigError if an argument to be left out is none of the tool's, or is required."""
        resolved = evolve(spec, function=function)
        return cls(id, resolved, config, function, schema_of(resolved, without), frozenset(without))


@define
class Toolbox:
    """All tools of a run by the name the model uses."""

    tools: dict[str, Tool] = Factory(dict)
    strict: bool = False
    """Whether what is written almost as it should be is refused (`config.ToolsConfig.strict`)."""

    @property
    def schemas(self) -> list[ToolSchema]:
        return [tool.schema for tool in self.tools.values()]

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(need for tool in self.tools.values() for need in tool.spec.needs))

    def ends(self, calls: Sequence[Call]) -> bool:
        """Whether one of the executed calls ends the episode."""
        return any(not call.problem and self.tools[call.name].spec.ends for call in calls)

    def examine(self, calls: Sequence[Call]) -> tuple[Call, ...]:
        """Mark calls of unknown tools and with arguments that do not fit."""
        return tuple(self._examine(call) for call in calls)

    def _examine(self, call: Call) -> Call:
        if call.problem:
            return call
        if call.repair and self.strict:
            return evolve(call, problem="malformed", detail=f"the call is not well-formed: {call.repair}")
        tool = self.tools.get(call.name)
        if tool is None:
            detail = f"unknown tool {call.name!r}: {did_you_mean(call.name, self.tools)}"
            return evolve(call, problem="unknown_tool", detail=detail)
        try:
            bind(tool.spec, call.arguments, tool.without, self.strict)
        except ToolError as error:
            return evolve(call, problem="bad_arguments", detail=str(error))
        return call

    async def run(self, calls: Sequence[Call], context: ToolContext) -> tuple[list[ToolResult], list[Fault]]:
        """Execute the calls of one turn."""
        results: list[ToolResult] = []
        faults: list[Fault] = []
        for batch in self._batches(calls):
            runs = [self._run_one(call, context) for call in batch]
            for result, fault in [await runs[0]] if len(runs) == 1 else await asyncio.gather(*runs):
                results.append(result)
                if fault:
                    faults.append(fault)
        return results, faults

    def _batches(self, calls: Sequence[Call]) -> list[list[Call]]:
        """Runs of reads together, everything else alone."""
        batches: list[list[Call]] = []
        open_for_reads = False
        for call in calls:
            reads = call.problem is not None or self.tools[call.name].spec.effect == "read"
            if reads and open_for_reads:
                batches[-1].append(call)
            else:
                batches.append([call])
            open_for_reads = reads
        return batches

    async def _run_one(self, call: Call, context: ToolContext) -> tuple[ToolResult, Fault | None]:
        if call.problem:
            text, cut = clip(call.detail or call.problem, context.limits.output_chars)
            return ToolResult(call.id, call.name, text, ok=False, problem=call.problem, cut_chars=cut), None
        tool = self.tools[call.name]
        started = time.perf_counter()
        fault = None
        try:
            with boundary("tools", tool.id):
                arguments = bind(tool.spec, call.arguments)
                own = ToolContext(context.sandbox, context.state, context.limits, tool.config)
                output = await call_tool(tool.spec, tool.function, own, arguments)
            text, ok, problem = output.text, output.ok, None if output.ok else "tool"
            exit_code, data = output.exit_code, output.data
        except (ToolError, PathError, QuotaError) as error:
            text, ok, problem, exit_code, data = error.message, False, "tool", None, {}
        except PluginFault as error:
            if error.kind != "tools":
                raise  # the sandbox's own: the host failed, not the tool
            text, ok, problem, exit_code, data = "the tool failed", False, "fault", None, {}
            fault = Fault("tool", tool.id, error.message)
        text, cut = clip(text, context.limits.output_chars)
        wall_s = time.perf_counter() - started
        return ToolResult(call.id, call.name, text, ok, problem, exit_code, wall_s, cut, data), fault
