"""Traces as bytes and as a page of text.

A trace on disk is one safetensors file: the numbers (ids, log-probabilities, expert ids, the bytes of patched files)
are raw columns, everything else is one JSON document in the header's metadata, so any safetensors reader opens the
columns and any JSON reader the words. cattrs writes the JSON part with code generated once per type; columns and file
bytes pass through it untouched and are lifted out of the few places where they may stand, which keeps a small trace
at a fraction of a millisecond.

With router replay, expert ids are most of what an episode leaves behind (a byte for each token, layer and chosen
expert), and only the rank that trains a row ever looks at its own. So `set_apart` puts them into blobs beside it.

The round trip is lossless for what JSON can hold: tools that put tuples into `ToolResult.data` read back lists.
Nothing here reads or writes files; stores do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from attrs import evolve
from cattrs import Converter

from composer_core.columns import Blob, Column, pack, unpack
from composer_core.diffs import unified
from composer_core.errors import StoreError
from composer_core.printable import printable
from composer_core.protocols import Store
from composer_core.types import Call, ToolResult, Trace, Turn

__all__ = [
    "decode",
    "encode",
    "readable",
    "set_apart",
    "turn_text",
]

FORMAT = "1"
"""Version of the layout, in the file's metadata as `composer_trace`."""
BRANCH_COLUMNS = ("ids", "sampled", "logprobs", "routes")


def _make_converter() -> Converter:
    converter = Converter(detailed_validation=False)
    converter.register_unstructure_hook(Column, lambda column: column)
    converter.register_structure_hook(Column, lambda column, _: column)
    converter.register_structure_hook(Column | Blob | None, _routes)
    return converter


def _routes(value: Any, _: Any) -> Column | Blob | None:
    return Blob(**{**value, "shape": tuple(value["shape"])}) if isinstance(value, dict) else value


_CONVERTER = _make_converter()


def set_apart(trace: Trace, store: Store) -> Trace:
    """Expert ids as blobs: they are most of a trace's bytes, and only the rank that trains a row reads its own."""
    key = f"traces/{trace.key.episode_id}"
    branches = [
        evolve(branch, routes=Blob.put(store, f"{key}.{number}.routes", branch.routes))
        if isinstance(branch.routes, Column)
        else branch
        for number, branch in enumerate(trace.branches)
    ]
    return evolve(trace, branches=tuple(branches))


def encode(trace: Trace) -> bytes:
    """One safetensors file.

    Raises:
        StoreError: a tool's arguments or data hold something that JSON cannot.
    """
    document = _CONVERTER.unstructure(trace)
    columns = {}
    for name, holder, key in _column_places(document):
        columns[name] = holder.pop(key)
    for name, file in _files(document):
        columns[name] = Column("U8", (len(file["data"]),), file.pop("data"))
    try:
        text = json.dumps(document, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise StoreError("a trace holds something that JSON cannot", where=trace.key.episode_id, found=error) from error
    return pack(columns, {"composer_trace": FORMAT, "trace": text})


def decode(data: bytes) -> Trace:
    """The inverse of `encode`.

    Raises:
        StoreError: the bytes are not a whole trace, or one of another format.
    """
    columns, metadata = unpack(data)
    if metadata.get("composer_trace") != FORMAT:
        found = repr(metadata.get("composer_trace"))
        raise StoreError("not a trace of this format", expected=f"composer_trace = {FORMAT!r}", found=found)
    try:
        document = json.loads(metadata["trace"])
        for name, file in _files(document):
            file["data"] = columns[name].data
        for index, branch in enumerate(document["branches"]):
            names = {key: f"branches.{index}.{key}" for key in BRANCH_COLUMNS}
            branch.update({key: columns[name] for key, name in names.items() if name in columns})
        for index, message in enumerate(document["opening"]):
            message["ids"] = columns.get(f"opening.{index}.ids")
        return _CONVERTER.structure(document, Trace)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"the trace's header cannot be read: {type(error).__name__}: {error}") from error


def _column_places(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Every place of an unstructured trace that holds a column: its name in the file, the dict and its key."""
    for index, branch in enumerate(document["branches"]):
        held = (key for key in BRANCH_COLUMNS if isinstance(branch[key], Column))
        yield from ((f"branches.{index}.{key}", branch, key) for key in held)
    for index, message in enumerate(document["opening"]):
        if message["ids"] is not None:
            yield f"opening.{index}.ids", message, "ids"


def _files(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every file of an unstructured trace, by the name of its column."""
    yield from ((f"patch.{index}", file) for index, file in enumerate(document["patch"]["writes"]))
    yield from ((f"originals.{index}", file) for index, file in enumerate(document.get("originals", ())))


# --- a page of text -----------------------------------------------------------------------------------------------


def readable(trace: Trace) -> str:
    """The trace as plain text for a person: opening, turns with calls and results, verdict, scores, timings."""
    parts = [_title(trace)]
    parts += [_block(message.role, message.text) for message in trace.opening]
    parts += [turn_text(turn, _versions(turn, trace)) for turn in trace.turns]
    parts.append(_ending(trace))
    return printable("\n\n".join(parts)) + "\n"


def _title(trace: Trace) -> str:
    key = trace.key
    counts = f"{len(trace.turns)} turns, {len(trace.calls())} calls, {trace.sampled_tokens()} sampled tokens"
    labels = "  ".join(f"{name}={value}" for name, value in sorted(trace.labels.items()))
    lines = [
        f"trace {key.episode_id}",
        f"task {key.task_id}, attempt {key.attempt}, stage {key.stage}, {counts}",
        "  ".join(filter(None, (f"harness={trace.harness}" if trace.harness else "", labels))),
    ]
    return "\n".join(line for line in lines if line)


def _versions(turn: Turn, trace: Trace) -> list[int]:
    runs = trace.branches[turn.branch].versions if turn.branch < len(trace.branches) else ()
    return sorted({value for value, _ in runs if value >= 0})


def turn_text(turn: Turn, versions: Sequence[int] = ()) -> str:
    """One turn for a person: its words, its calls, each with its result."""
    made_by = f", version {'-'.join(str(value) for value in versions)}" if versions else ""
    purpose = "" if turn.purpose == "act" else f" ({turn.purpose})"
    head = f"turn {turn.index + 1}{purpose}: {turn.stop - turn.start} tokens{made_by}, {_seconds(turn.generate_s)}"
    lines = [_rule(head)]
    if turn.text.strip():
        lines.append(turn.text.strip())
    results = {result.call_id: result for result in turn.results}
    for call in turn.calls:
        lines += [_call(call), *([_result(results[call.id])] if call.id in results else [])]
    lines += [_result(result) for result in turn.results if result.call_id not in {call.id for call in turn.calls}]
    return "\n".join(lines)


def _call(call: Call) -> str:
    arguments = ", ".join(f"{name}={json.dumps(value, default=str)}" for name, value in call.arguments.items())
    problem = f"   [{call.problem}: {call.detail}]" if call.problem else ""
    repair = f"   [repaired: {call.repair}]" if call.repair else ""
    return f"> {call.name}({arguments}){problem}{repair}"


def _result(result: ToolResult) -> str:
    facts = [
        "ok" if result.ok else f"error ({result.problem})" if result.problem else "error",
        f"exit {result.exit_code}" if result.exit_code is not None else "",
        f"{result.cut_chars} characters cut" if result.cut_chars else "",
        _seconds(result.wall_s) if result.wall_s else "",
    ]
    head = f"  {result.tool}: {', '.join(fact for fact in facts if fact)}"
    return "\n".join([head, *(f"  | {line}" for line in result.text.splitlines())])


def _ending(trace: Trace) -> str:
    cause = f" ({trace.verdict.cause})" if trace.verdict.cause else ""
    lines = [_rule(f"stopped: {trace.stop}; verdict: {trace.verdict.outcome}{cause}")]
    if trace.scores:
        lines.append(f"reward {sum(score.value * score.weight for score in trace.scores):g}, the sum of")
    for score in trace.scores:
        parts = "".join(f"  {name}={value:g}" for name, value in score.parts.items())
        note = f"  {score.note}" if score.note else ""
        value = f"value {score.value:g} x weight {score.weight:g}"
        lines.append(f"  {score.reward} {score.version}: {value}{parts}{note}")
    changed = ", ".join(trace.patch.touched()) or "nothing"
    lines.append(f"patch: {changed}" + (f"; skipped {', '.join(trace.patch.skipped)}" if trace.patch.skipped else ""))
    lines.append(unified(trace.originals, trace.patch, trace.originals_whole).rstrip("\n"))
    lines += [f"fault in {fault.where} ({fault.plugin}): {fault.error}" for fault in trace.faults]
    lines.append("  ".join(f"{name}={value:.6g}" for name, value in trace.stats.items() if name != "reward"))
    return "\n".join(line for line in lines if line)


def _block(role: str, text: str) -> str:
    return f"{_rule(role)}\n{text.strip()}"


def _rule(title: str) -> str:
    return f"--- {title} ".ljust(100, "-")


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.0f} ms"
