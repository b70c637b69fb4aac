"""The parts of agents: they need nothing of the framework, and hold against what a command may do meanwhile."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_envkit import agent
from composer_envkit.agent import deadlines, files, frames, words
from composer_envkit.agent.streams import Stream, source


@pytest.fixture
def folder(tmp_path):
    fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def test_they_need_the_standard_library_alone():
    parts = [path.stem for path in Path(agent.__file__).parent.glob("*.py") if path.stem != "__init__"]
    script = (
        f"import sys; sys.path.append({str(Path(agent.__file__).parents[2])!r})\n"
        + "".join(f"import composer_envkit.agent.{name}\n" for name in parts)
        + "print(*(name for name in sys.modules if name.startswith('composer')))"
    )
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    expected = {"composer_envkit", "composer_envkit.agent", *(f"composer_envkit.agent.{name}" for name in parts)}
    assert set(ran.stdout.split()) == expected and len(parts) == 9


def test_what_is_written_is_read_with_its_mode(folder):
    files.write(folder, "a/b/c", b"one", 3, executable=True)
    data, info = files.read(folder, "a/b/c", 3)
    assert (data, info.st_mode & 0o777) == (b"one", 0o755)
    files.write(folder, "a/b/c", b"", 0)
    assert files.read(folder, "a/b/c", 0)[0] == b""
    assert files.listing(folder, "") == [("a", "folder", 0)] and files.listing(folder, "a/b") == [("c", "file", 0)]


@pytest.mark.parametrize("path", ["out/passwd", "../x", "/etc/passwd", "loop", "pipe", "missing", "n" * 300, ""])
def test_what_is_no_file_below_is_refused(folder, tmp_path, path):
    (tmp_path / "out").symlink_to("/etc")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(files.Refused) as refused:
        files.read(folder, path, 100)
    assert refused.value.kind == "path"
    if path != "missing":
        with pytest.raises(files.Refused):
            files.write(folder, path, b"x", 100)


def test_links_are_followed_as_long_as_they_stay_below(folder, tmp_path):
    (tmp_path / "real").write_bytes(b"one")
    (tmp_path / "link").symlink_to("real")
    assert files.read(folder, "link", 10)[0] == b"one"
    with pytest.raises(files.Refused, match="a link where none may be"):
        files.read(folder, "link", 10, links=False)


def test_a_size_over_the_limit_is_a_matter_of_quota(folder):
    files.write(folder, "big", b"x" * 11, 11)
    for act in (lambda: files.read(folder, "big", 10), lambda: files.write(folder, "more", b"x" * 11, 10)):
        with pytest.raises(files.Refused, match="11 bytes, the limit is 10") as refused:
            act()
        assert refused.value.kind == "quota"


def test_a_name_that_is_no_text_is_shown_escaped(folder, tmp_path):
    (tmp_path / os.fsdecode(b"odd\xff")).write_bytes(b"")
    assert files.listing(folder, "") == [("odd\\udcff", "other", 0)]


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(0, 100))
def test_a_stream_keeps_its_head_and_counts_the_rest(parts, cap):
    stream = Stream(cap)
    for part in parts:
        os.write(stream.theirs, part)
        if part:
            assert stream.drain()
    assert stream.drain(), "a pipe that is empty is not over"
    os.close(stream.theirs)
    stream.finish()
    assert not stream.drain()
    stream.close()
    assert (bytes(stream.kept), stream.total) == (b"".join(parts)[:cap], sum(map(len, parts)))


@pytest.mark.parametrize("data", [b"", b"x" * 3_000_000])
def test_input_waits_for_nobody_to_read_it(data):
    with open(source(data), "rb") as file:
        assert file.read() == data


@given(st.binary(max_size=300), st.integers(1, 40))
def test_bytes_of_any_kind_are_frames_or_malformed(data, step):
    decoder = frames.Decoder()
    try:
        for start in range(0, len(data), step):
            for header, body in decoder.feed(data[start : start + step]):
                assert isinstance(header, dict) and isinstance(body, bytes)
    except frames.Malformed:
        return


def test_a_frame_over_the_limits_is_refused_before_it_is_kept():
    whole = frames.encode({"n": 1}, b"12345")
    assert list(frames.Decoder(7, 5).feed(whole)) == [({"n": 1}, b"12345")]
    for decoder in (frames.Decoder(6, 5), frames.Decoder(7, 4)):
        with pytest.raises(frames.Malformed):
            list(decoder.feed(whole[:8]))


# --- commands -----------------------------------------------------------------------------------------------------


class Command(deadlines.Timed):
    kills = 0

    def kill(self):
        self.kills += 1


def test_a_command_is_late_once_its_time_is_over_and_ended_until_it_is_gone():
    late, other = Command({"timeout_s": 0}), Command({"timeout_s": 60})
    assert deadlines.patience_s([other, late]) == 0 and deadlines.patience_s([]) is None
    deadlines.end_late([other, late])
    assert (late.kills, late.timed_out, other.kills, other.timed_out) == (1, True, 0, False)
    assert 0 < deadlines.patience_s([other, late]) <= deadlines.AGAIN_S
    late.deadline = time.monotonic()
    deadlines.end_late([late])
    assert late.kills == 2
    other.deadline += 1e9
    assert deadlines.patience_s([other]) == deadlines.LONGEST_S, "no wait is longer than the system can wait"


def test_the_time_in_which_a_command_stood_still_does_not_count():
    command = Command({"timeout_s": 10})
    deadline = command.deadline
    command.stood_still(-5)
    assert command.wall_s >= 5 and command.deadline == deadline - 5


@pytest.mark.parametrize(("argv", "fit"), [(["a", "ü", ""], True), (["a\0b"], False), (["half\ud800"], False)])
def test_words_are_what_the_kernel_takes(argv, fit):
    assert words.are_words(argv) is fit
    header, text = words.not_started(argv, words.UNFIT)
    assert header["exit_code"] == 126 and header["stderr_bytes"] == len(text)


def test_every_descriptor_from_one_on_is_closed_however_high():
    script = """
import os, resource, sys
from composer_envkit.agent import linux
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
os.dup2(1, most - 1)
linux.close_from(3)
print(sorted(os.listdir("/proc/self/fd")))
"""
    roots = {**os.environ, "PYTHONPATH": str(Path(agent.__file__).parents[2])}
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=roots)
    assert ran.stdout == "['0', '1', '2', '3']\n", "the last is that of the listing itself"
