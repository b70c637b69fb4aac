"""Worker of `control_plane`, run in the peer's environment: verifiers' rollouts with a scripted model and no program.

Its contract lets a harness run its loop in process, as long as every model call goes through the interception server.
So this harness posts chat completions to that server over kept connections, calls plain functions on a dictionary of
files between them, and needs neither a program, a tool server nor a sandbox; the model is a client that answers from
the script. One entered agent serves all rollouts, and one box is borrowed by all of them: nothing is started for each.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

import aiohttp
from verifiers.v1.agent import Agent
from verifiers.v1.clients import Client
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.harness import Harness
from verifiers.v1.interception import server
from verifiers.v1.runtimes import ProgramResult, SubprocessConfig, provision_runtime
from verifiers.v1.task import Task, TaskData
from workers import serve

PROMPT = "The tests of pkg fail, please find out why and repair what is broken."
FILES = {f"pkg/module_{name}.py": f"x = {name!r}\n" * 7 for name in "abcd"}
SCRIPT = (("read a", "read b"), ("read c", "read d"), ("write a", "read a"), ("read b",), ("done",))
"""The turns of control_plane.SCRIPT."""


def completion(number: int) -> dict[str, Any]:
    """What the model says in one turn, as a provider would send it."""
    calls = []
    for index, (name, *letter) in enumerate(words.split() for words in SCRIPT[number]):
        path = {"path": f"pkg/module_{letter[0]}.py"} if letter else {}
        text = {"text": "x = 'changed'\n"} if name == "write" else {}
        call = {"name": name, "arguments": json.dumps({**path, **text})}
        calls.append({"id": f"c{number}-{index}", "type": "function", "function": call})
    message = {"role": "assistant", "content": "Let me look at this.", "tool_calls": calls}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    usage = {"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200}
    return {
        "id": f"r{number}",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }


COMPLETIONS = [completion(number) for number in range(len(SCRIPT))]


class ScriptedClient(Client):
    """Answers the n-th turn of a conversation with the n-th row of the script."""

    async def get_response(self, dialect: Any, body: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        response = dialect.parse_response(dialect.validate_response(COMPLETIONS[turn]))
        response.raw = COMPLETIONS[turn]
        return response


server.resolve_client = lambda config: ScriptedClient()


class InProcess(Harness[HarnessConfig]):
    """The chat loop with three tools."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False
    connections: aiohttp.ClientSession

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: TaskData,
        **kwargs: Any,
    ) -> ProgramResult:
        files = dict(FILES)
        messages: list[dict[str, Any]] = [{"role": "user", "content": data.prompt}]
        headers = {"Authorization": f"Bearer {secret}"}
        while True:
            body = {"model": ctx.model, "messages": messages, "tools": TOOLS}
            async with self.connections.post(f"{endpoint}/chat/completions", json=body, headers=headers) as reply:
                assert reply.status == 200, await reply.text()
                message = (await reply.json())["choices"][0]["message"]
            messages.append(message)
            for call in message["tool_calls"]:
                text = await act(files, call["function"]["name"], json.loads(call["function"]["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
            if message["tool_calls"][-1]["function"]["name"] == "done":
                return ProgramResult(exit_code=0, stdout="", stderr="")


async def act(files: dict[str, str], name: str, arguments: Mapping[str, str]) -> str:
    """The three tools."""
    if name == "read":
        return files[arguments["path"]]
    if name == "write":
        files[arguments["path"]] = arguments["text"]
        return "written"
    return ""


def schema(name: str, *arguments: str) -> dict[str, Any]:
    fields = {"type": "object", "properties": {each: {"type": "string"} for each in arguments}}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": fields}}


TOOLS = [schema("read", "path"), schema("write", "path", "text"), schema("done")]


async def play(episodes: int, at_once: int) -> dict[str, float]:
    """Rollouts per second, and how many messages one trace holds."""
    config = AgentConfig(harness={"id": "null"}, runtime=SubprocessConfig(), model="m")
    gate = asyncio.Semaphore(at_once)
    async with Agent(config) as agent, provision_runtime(SubprocessConfig()) as box:
        agent.harness = InProcess(agent.harness.config)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as agent.harness.connections:

            async def one(number: int) -> Any:
                async with gate:
                    return await agent.run(Task(TaskData(idx=number, prompt=PROMPT)), runtime=box)

            started = time.perf_counter()
            traces = await asyncio.gather(*map(one, range(episodes)))
            spent = time.perf_counter() - started
    for trace in traces:
        assert trace.ok and trace.num_turns == len(SCRIPT), trace.errors
    return {"episodes_per_s": episodes / spent, "nodes": len(traces[0].nodes)}


def answer(**request: Any) -> dict[str, float]:
    return asyncio.run(play(**request))


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    serve(answer)
