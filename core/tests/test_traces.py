import json
import pickle
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from composer_core.batches import sequences_of
from composer_core.columns import Column
from composer_core.errors import StoreError
from composer_core.traces import decode, encode, readable, set_apart
from composer_core.trees import File, Patch
from composer_core.types import (
    Branch,
    Call,
    Fault,
    Message,
    Outcome,
    Score,
    SlotKey,
    Stop,
    ToolResult,
    Trace,
    Turn,
    Verdict,
)
from composer_testing.fakes.runs import make_trace

WORDS = st.text(max_size=12)
NUMBERS = st.floats(allow_nan=False)
COUNTS = st.integers(0, 2**31 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


def _column(dtype, length, elements):
    return st.lists(elements, min_size=length, max_size=length).map(lambda values: Column.of(dtype, values))


@st.composite
def branches(draw):
    length = draw(st.integers(0, 9))
    routes = draw(st.sampled_from([None, Column("U16", (length, 2, 2), bytes(length * 8))]))
    return Branch(
        ids=draw(_column("I32", length, st.integers(-(2**31), 2**31 - 1))),
        sampled=draw(_column("U8", length, st.integers(0, 1))),
        logprobs=draw(_column("F32", length, st.floats(width=32, allow_nan=False))),
        versions=draw(st.lists(st.tuples(st.integers(-1, 9), COUNTS), max_size=3).map(tuple)),
        parent=draw(st.none() | st.integers(0, 3)),
        routes=routes,
    )


def _tuples(strategy, size=3):
    return st.lists(strategy, max_size=size).map(tuple)


PROBLEMS = st.none() | WORDS
CALLS = st.builds(Call, WORDS, WORDS, st.dictionaries(WORDS, JSON, max_size=3), PROBLEMS, WORDS)
RESULTS = st.builds(
    ToolResult,
    WORDS,
    WORDS,
    WORDS,
    ok=st.booleans(),
    problem=PROBLEMS,
    exit_code=st.none() | st.integers(-9, 255),
    wall_s=NUMBERS,
    cut_chars=COUNTS,
    data=st.dictionaries(WORDS, JSON, max_size=3),
)
TURNS = st.builds(
    Turn,
    COUNTS,
    COUNTS,
    COUNTS,
    COUNTS,
    WORDS,
    _tuples(CALLS),
    _tuples(RESULTS),
    WORDS,
    COUNTS,
    NUMBERS,
    NUMBERS,
    WORDS,
)
MESSAGES = st.builds(Message, WORDS, WORDS, st.none() | _column("I32", 3, st.integers(0, 99)))
PATHS = st.text("abc.é", min_size=1, max_size=5).filter(lambda path: path not in (".", ".."))
PATCHES = st.builds(
    Patch,
    st.lists(
        st.builds(File, PATHS, st.binary(max_size=20), st.booleans()), max_size=3, unique_by=lambda file: file.path
    ),
    _tuples(PATHS),
    _tuples(WORDS),
)
HINTS = st.dictionaries(COUNTS, WORDS, max_size=2)
SCORES = st.builds(Score, WORDS, WORDS, NUMBERS, st.dictionaries(WORDS, NUMBERS, max_size=2), WORDS, NUMBERS, HINTS)
TRACES = st.builds(
    Trace,
    key=st.builds(SlotKey, WORDS, COUNTS, WORDS),
    group=WORDS,
    opening=_tuples(MESSAGES),
    branches=_tuples(branches()),
    turns=_tuples(TURNS),
    stop=st.sampled_from(Stop),
    verdict=st.builds(Verdict, st.sampled_from(Outcome), PROBLEMS),
    scores=_tuples(SCORES),
    patch=PATCHES,
    faults=_tuples(st.builds(Fault, WORDS, WORDS, WORDS, st.booleans())),
    stats=st.dictionaries(WORDS, NUMBERS, max_size=3),
    labels=st.dictionaries(WORDS, WORDS, max_size=3),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TRACES)
def test_a_trace_survives_the_round_trip_unchanged_and_can_be_read(trace):
    again = decode(encode(trace))
    assert again == trace
    assert encode(again) == encode(trace)
    assert readable(trace).endswith("\n")


def test_types_come_back_as_they_were():
    trace = decode(encode(make_trace(SlotKey("t", 0), True)))
    assert type(trace.stop) is Stop
    assert type(trace.verdict.outcome) is Outcome
    assert type(trace.branches[0].versions[0]) is tuple
    assert trace.branches[0].routes.shape == (180, 2, 2)
    assert trace.patch.writes[0].data.startswith(b"def clamp")


class Shelf(dict):
    """A store of three lines."""

    def put(self, key, data):
        self[key] = data
        return key

    def get(self, uri):
        return self[uri]


def test_expert_ids_are_put_apart_and_read_where_they_are_used():
    shelf, trace = Shelf(), make_trace(SlotKey("t", 0), True)
    data = encode(set_apart(trace, shelf))
    assert list(shelf) == ["traces/rl-t-0.0.routes"]
    assert len(data) < len(encode(trace)) - len(trace.branches[0].routes.data) + 400
    again = decode(data)
    (sequence,) = sequences_of(again, 0, 1.0)
    assert sequence.routes == again.branches[0].routes != trace.branches[0].routes
    assert sequence.routes.get(shelf) == trace.branches[0].routes
    assert set_apart(again, None) == again, "what lies apart already stays there"
    assert pickle.loads(pickle.dumps(sequence)) == sequence, "a batch crosses processes without them"


def test_expert_ids_that_were_damaged_are_a_store_error():
    shelf, trace = Shelf(), make_trace(SlotKey("t", 0), True)
    (branch,) = set_apart(trace, shelf).branches
    shelf[branch.routes.uri] = bytes(len(shelf[branch.routes.uri]))
    with pytest.raises(StoreError, match="damaged"):
        branch.routes.get(shelf)


def test_columns_are_raw_bytes_in_the_safetensors_layout():
    trace = make_trace(SlotKey("t", 0), True)
    blob = encode(trace)
    (length,) = struct.unpack_from("<Q", blob)
    header = json.loads(blob[8 : 8 + length])
    begin, end = header["branches.0.ids"]["data_offsets"]
    assert header["branches.0.ids"]["dtype"] == "I32"
    assert blob[8 + length + begin : 8 + length + end] == trace.branches[0].ids.data
    assert json.loads(header["__metadata__"]["trace"])["stop"] == "finished"


@pytest.mark.parametrize("cut", [0, 7, 40, 900, -1])
def test_a_cut_file_is_a_store_error(cut):
    with pytest.raises(StoreError):
        decode(encode(make_trace(SlotKey("t", 0), True))[:cut])


def test_a_file_of_columns_that_is_no_trace_is_refused():
    from composer_core.columns import pack

    with pytest.raises(StoreError, match="not a trace"):
        decode(pack({"ids": Column.of("I32", [1])}, {}))


def test_what_json_cannot_hold_is_named_with_its_episode():
    result = ToolResult("c", "odd", "", data={"handle": object()})
    trace = Trace(SlotKey("t", 3), "g", (), (), (Turn(0, 0, 0, 0, "", (), (result,)),), Stop.FINISHED)
    with pytest.raises(StoreError, match="rl-t-3"):
        encode(trace)


def test_the_readable_page_says_what_happened_in_order():
    page = readable(make_trace(SlotKey("numbers.clamp-1", 2), False))
    told = ("pls fix", "> read_file(", "pkg/numbers.py:1:def clamp", "> edit_file(", "exit 1", "stopped: turns")
    places = [
        page.index(text) for text in (*told, "  hidden-tests/hidden 0.1.0: value 0 x weight 1", "patch: pkg/numbers.py")
    ]
    assert places == sorted(places)
    assert "wall_s=1.4" in page


def test_the_readable_page_cannot_steer_a_terminal():
    page = readable(make_trace(SlotKey("t", 0), True, output="\x1b[2J\x07\u202eevil\ud800"))
    assert "\x1b" not in page
    assert "\\x1b[2J\\x07\\u202eevil\\ud800" in page
    page.encode()
