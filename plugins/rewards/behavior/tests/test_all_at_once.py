"""One run with every reward and the monitor, through the command line and a judge on this machine."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner

from composer_core.cli import group
from composer_core.tracking import read_events
from composer_plugin_behavior.plugin import composer_rewards

NAMES = [spec.name for spec in composer_rewards()]
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


def test_one_run_uses_all_rewards_at_once(tmp_path, url):
    settings = {"rubric": f', aspect = "Is it short?", url = "{url}", model = "judge"'}
    chosen = ", ".join(f'{{ use = "behavior/{name}"{settings.get(name, "")} }}' for name in NAMES)
    (tmp_path / "run.toml").write_text(RUN.format(rewards=chosen))
    done = CliRunner().invoke(group, ["train", str(tmp_path / "run.toml"), "--run-dir", str(tmp_path / "run")])
    assert done.exception is None, done.output
    events = list(read_events(tmp_path / "run"))
    scored = [event for event in events if event["event"] == "GroupScored"]
    told = {score["reward"]: score for event in scored for row in event["group_scores"] for score in row}
    assert set(told) == {f"behavior/{name}" for name in NAMES} - {"behavior/claims"}
    assert all(score["version"] == "0.1.0" and score["weight"] < 1 for score in told.values())
    (step, _) = [event["metrics"] for event in events if event["event"] == "StepEnded"]
    parts = {name.removeprefix("reward/") for name in step if name.startswith("reward/")}
    assert parts == {"fakes/checked", *(f"behavior/{name}" for name in NAMES)}
    assert step["reward_std/behavior/effort"] > 0
    total = sum(value for name, value in step.items() if name.startswith("reward/"))
    assert total == pytest.approx(step["reward_mean"])
