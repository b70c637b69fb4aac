"""An episode of a million tokens and 500 calls holds one window of them, and survives its process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOKENS, CALLS = 1_000_000, 500
ACTING_BYTES = 6 << 20
"""Most that an episode may take while it acts, whatever its length: windows of 20,000 tokens, and the interpreter's."""
GROWTH_BYTES = 2 << 20
"""Most that an episode may take more while it acts than one of a quarter of its length; holding its branches takes 9
bytes a token, and words and calls."""
TRACE_BYTES_PER_TOKEN = 20
"""Most that reading the whole together takes at the end: 9 bytes a token, words and calls."""


def measured(folder, tokens, calls):
    """What the process of a whole episode says of itself."""
    argv = [sys.executable, str(Path(__file__).with_name("long_episode.py")), str(folder), str(tokens), str(calls)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Of an episode whose process ended itself at half, and was made again in the same folder."""
    folder = tmp_path_factory.mktemp("long")
    argv = [sys.executable, str(Path(__file__).with_name("long_episode.py")), str(folder), str(TOKENS), str(CALLS)]
    killed = subprocess.run([*argv, str(CALLS // 2)], capture_output=True, text=True, check=False)
    assert killed.returncode == 9, killed.stderr
    kept = len(list((folder / "segments").iterdir()))
    return {**measured(folder, TOKENS, CALLS), "kept": kept}


def test_it_goes_to_its_end(told):
    assert told["stop"] == "finished"
    assert told["calls"] == CALLS
    assert told["sampled_tokens"] >= TOKENS


def test_memory_is_that_of_a_window_while_it_acts(told, record_property):
    record_property("acting_bytes", told["acting_bytes"])
    assert told["acting_bytes"] < ACTING_BYTES


def test_a_longer_episode_takes_no_more_while_it_acts(tmp_path, record_property):
    short = measured(tmp_path / "short", TOKENS // 4, CALLS // 4)
    long = measured(tmp_path / "long", TOKENS, CALLS)
    record_property("short_acting_bytes", short["acting_bytes"])
    record_property("long_acting_bytes", long["acting_bytes"])
    assert long["acting_bytes"] < short["acting_bytes"] + GROWTH_BYTES


def test_the_trace_as_a_whole_takes_its_columns_and_words(told, record_property):
    record_property("whole_bytes", told["whole_bytes"])
    assert told["whole_bytes"] < ACTING_BYTES + TRACE_BYTES_PER_TOKEN * told["tokens"]


def test_after_a_kill_only_the_open_branch_is_sampled_again(told):
    turns = told["calls"] + told["branches"] - 1
    per_branch = turns / told["branches"]
    assert told["kept"] == pytest.approx(told["branches"] / 2, abs=1)
    assert told["generations"] == pytest.approx(turns - told["kept"] * per_branch, abs=per_branch)
