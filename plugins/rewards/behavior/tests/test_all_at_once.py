"""One run with every reward and the monitor, through the command line and a judge on this machine."""

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from attrs import evolve
from click.testing import CliRunner

from composer_core.cli import group
from composer_core.history import History
from composer_core.traces import decode
from composer_core.tracking import read_events
from composer_plugin_behavior.plugin import composer_rewards

SPECS = {f"behavior/{spec.name}": spec for spec in composer_rewards()}
NAMES = [spec.name for spec in SPECS.values()]
COUNTED = {
    "effort": {"thinking_tokens", "call_tokens", "message_tokens", "result_tokens", "calls", "turns", "x"},
    "parallelism": {"reading_turns", "reads", "redundant"},
    "broken_calls": set(),
    "todos": {"opened", "open", "dropped"},
    "evidence": {"changed", "blind"},
    "lints": {"new", "mended", "suppressions"},
    "claims": {"claims", "unbacked"},
    "diff": {"size", "stray", "comments", "changed_lines", "comment_share"},
    "terminal_only": {"share", "calls"},
    "rubric": set(),
}
"""What each has counted in any episode; broken calls are counted by kind, where there are any."""
RUN = """
name = "all"
plugins = ["fakes", "behavior"]
tasks.use = "fakes/sums"
sandbox.use = "fakes/memory"
tools.use = ["fakes/read", "fakes/write", "fakes/done"]
model.use = "fakes/bytes"
renderer.use = "fakes/lines"
sampler = {{ use = "fakes/learner", start = 0.5 }}
trainer.use = "fakes/simulated"
algorithm.use = "fakes/centered"
trackers = [{{ use = "core/jsonl" }}, {{ use = "behavior/monitor", window = 2 }}]
rewards = [{{ use = "fakes/checked" }}, {rewards}]

[[stages]]
kind = "rl"
steps = 2
groups_per_step = 2
group_size = 4
"""


class Judge(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        answer = {"choices": [{"message": {"content": '{"reason": "short", "grade": 7}'}}]}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_):
        """Quiet."""


@pytest.fixture
def url():
    with ThreadingHTTPServer(("127.0.0.1", 0), Judge) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


@pytest.fixture
def run(tmp_path, url):
    """The folder of a run with all of them."""
    settings = {"rubric": f', aspect = "Is it short?", url = "{url}", model = "judge"'}
    chosen = ", ".join(f'{{ use = "behavior/{name}"{settings.get(name, "")} }}' for name in NAMES)
    (tmp_path / "run.toml").write_text(RUN.format(rewards=chosen))
    done = CliRunner().invoke(group, ["train", str(tmp_path / "run.toml"), "--run-dir", str(tmp_path / "run")])
    assert done.exception is None, done.output
    return tmp_path / "run"


@pytest.fixture
def traces(run):
    """Those of all members, each with what its group's rewards gave it."""
    of_group = History.read(run).group_scores
    found = [decode(path.read_bytes()) for path in sorted((run / "traces").glob("rl-*.trace"))]
    return [evolve(trace, scores=(*trace.scores, *of_group[trace.key.episode_id])) for trace in found]


def test_every_episode_has_every_part_once_with_its_provenance(traces):
    assert len(traces) == 2 * 2 * 4
    assert {trace.verdict.solved for trace in traces} == {True, False}, "a gate has two sides"
    for trace in traces:
        assert Counter(score.reward for score in trace.scores) == Counter(["fakes/checked", *SPECS])
        for score in (score for score in trace.scores if score.reward in SPECS):
            spec = SPECS[score.reward]
            assert (score.version, score.weight) == ("0.1.0", spec.weight)
            assert spec.range[0] <= score.value <= spec.range[1]
            assert COUNTED[spec.name] <= set(score.parts)
            if not trace.verdict.solved and spec.name != "claims":
                assert (score.value, score.note) == (spec.range[0], "not solved")
        rubric = next(score for score in trace.scores if score.reward == "behavior/rubric")
        assert not trace.verdict.solved or (rubric.value, rubric.note) == (0.7, "Is it short? short")


def test_a_trace_is_shown_with_all_of_them_and_they_make_up_its_reward(run, traces):
    scored = [event for event in read_events(run) if event["event"] == "GroupScored"]
    rewards = {id: reward for event in scored for id, reward in zip(event["episodes"], event["rewards"], strict=True)}
    for trace in traces:
        total = sum(score.weight * score.value for score in trace.scores)
        assert rewards[trace.key.episode_id] == pytest.approx(total)
    page = CliRunner().invoke(group, ["show", str(run), "--trace", traces[0].key.episode_id]).output
    assert all(f"  {id} 0.1.0: value " in page for id in SPECS)


def test_steps_tell_each_part_and_its_spread_within_groups(run):
    events = list(read_events(run))
    (step, _) = [event["metrics"] for event in events if event["event"] == "StepEnded"]
    parts = {name.removeprefix("reward/") for name in step if name.startswith("reward/")}
    assert parts == {"fakes/checked", *(f"behavior/{name}" for name in NAMES)}
    assert step["reward_std/behavior/effort"] > 0
    total = sum(value for name, value in step.items() if name.startswith("reward/"))
    assert total == pytest.approx(step["reward_mean"])
