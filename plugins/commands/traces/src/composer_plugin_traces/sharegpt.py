"""ShareGPT: conversations of from and value, with calls and observations as tools of supervised fine-tuning read them.

Export only: the format has no ids for calls, so parallel ones cannot be told apart with certainty.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from composer_plugin_traces.episodes import Checked, Episode, Found, Shape

ROW = Shape({"conversations": list}, {"id": str, "system": str, "tools": str})
TURN = Shape({"from": str, "value": str})
FROM = ("human", "gpt", "function_call", "observation")


def to_sharegpt(episode: Episode) -> dict[str, Any]:
    system = "\n\n".join(said.text for said in episode.opening if said.role == "system")
    turns = [("human", said.text) for said in episode.opening if said.role != "system"]
    for act in episode.acts:
        turns += [("gpt", act.text)] if act.text or not act.calls else []
        if act.calls:
            calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in act.calls]
            turns.append(("function_call", _json(calls[0] if len(calls) == 1 else calls)))
        if act.results:
            turns.append(("observation", act.results[0] if len(act.results) == 1 else _json(list(act.results))))
    return {
        "id": episode.id,
        **({"system": system} if system else {}),
        "conversations": [{"from": who, "value": value} for who, value in turns],
        "tools": _json([dict(tool) for tool in episode.tools]),
    }


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def check_sharegpt(row: Any) -> Checked:
    """Everything wrong with a row."""
    found = ROW.check(row, "row")
    return found or [*_turns(row["conversations"])]


def _turns(turns: list[Any]) -> Iterator[Found]:
    before = ""
    for index, turn in enumerate(turns):
        at = f"conversations[{index}]"
        wrong = TURN.check(turn, at)
        yield from wrong
        if wrong:
            return
        who = turn["from"]
        if who not in FROM:
            yield Found(f"{at}.from", f"must be one of {', '.join(FROM)}, found {who!r}")
        elif who == "observation" and before != "function_call":
            yield Found(at, "an observation stands behind a function_call only")
        elif who == "function_call":
            try:
                json.loads(turn["value"])
            except ValueError as error:
                yield Found(f"{at}.value", f"must be JSON: {error}")
        before = who
    if not any(turn["from"] in ("gpt", "function_call") for turn in turns):
        yield Found("conversations", "hold no turn of gpt")
