"""Whose doing it was that a container ended on its own, by what the engine says of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from composer_core.errors import SandboxGone, SandboxUnreachable
from composer_core.protocols import ExecResult
from composer_plugin_docker.channel import Channel
from composer_plugin_docker.engine import Engine, Missing

KILLED = 137
NOTICES, NOTICE_S = 40, 0.05
"""How often, and how far apart, the engine is asked whether it has noticed that a container ended."""
NEAR_S = 1.0
"""How far from a container's end the engine may have noticed that the kernel killed for memory, if that ended it."""


async def cause(engine: Engine, container: str, channel: Channel) -> str:
    """What in the container ended it.

    Raises:
        SandboxGone: somebody else has removed it.
        SandboxUnreachable: its end, or that of its streams, was not its commands' doing.
    """
    words = channel.last_words.decode(errors="replace")
    if channel.malformed:
        return f"its agent sent what is no answer ({words})"
    try:
        state = await _state(engine, container)
        found = told(state, await _killed_for_memory(engine, container, state), words)
    except Missing as error:
        raise SandboxGone(f"the container {container} was removed by somebody else") from error
    if not found:
        how = "runs, but its streams have ended" if state["Running"] else f"ended with {state['ExitCode']}"
        raise SandboxUnreachable(f"the container {container} {how}; it was not its commands' doing")
    return found


async def _state(engine: Engine, container: str) -> Mapping[str, Any]:
    """What the engine says once it has noticed the end, which streams tell first."""
    for _ in range(NOTICES):
        told = await engine.call(engine.api.inspect_container, container)
        if not told["State"]["Running"]:
            break
        await asyncio.sleep(NOTICE_S)
    state: Mapping[str, Any] = told["State"]
    return state


async def _killed_for_memory(engine: Engine, container: str, state: Mapping[str, Any]) -> bool:
    """`OOMKilled` stays true when a command was killed for memory, whatever ends the container later."""
    if state["Running"] or not state["OOMKilled"]:
        return False
    ended_s = datetime.fromisoformat(state["FinishedAt"]).timestamp()
    filters = {"container": container, "event": "oom"}
    window = {"since": int(ended_s - NEAR_S), "until": int(ended_s + NEAR_S) + 1}
    events = await engine.call(lambda: list(engine.api.events(**window, filters=filters, decode=True)))
    return any(abs(event["timeNano"] / 1e9 - ended_s) < NEAR_S for event in events)


def told(state: Mapping[str, Any], for_memory: bool, words: str) -> str:
    """What in the container ended it, "" if that was done from outside.

    A command has no right to signal the agent, so a kill comes from the engine's user or the machine; what is left is
    memory, or an agent that gave up because there was nothing left to work with.
    """
    if state["Running"]:
        return ""
    if for_memory:
        return "out of memory"
    return "" if state["ExitCode"] == KILLED else f"its agent gave up ({words or state['ExitCode']})"


def lost(reason: str) -> ExecResult:
    """Of a command in a container that its workload has ended."""
    text = f"the sandbox was ended by what ran in it: {reason}\n".encode()
    return ExecResult("lost", None, stderr=text, stderr_bytes=len(text))
