"""`composer-run agent`: training's own harness on a folder, to the byte, and a diff that a person accepts."""

import asyncio
import json
import shutil
import subprocess

import attrs
import pytest

from composer_core.assembly import Assembly
from composer_core.cli import Options
from composer_core.columns import Column
from composer_core.commands.agent import work
from composer_core.commands.common import load_plugins
from composer_core.config import load
from composer_core.evaluate import request_for
from composer_core.folders import read_folder
from composer_core.rundir import Commit, RunDir
from composer_core.traces import decode
from composer_core.types import Completion, Outcome, Sampling, SlotKey, Stop, WeightsRef

FAKES = "examples/fakes/run.toml"
QUICKSTART = "examples/quickstart/run.toml"
PROMPT = "write 40 plus 2 into answer.txt"


@pytest.fixture(scope="module")
def trained(composer_run, tmp_path_factory):
    run = tmp_path_factory.mktemp("agent") / "run"
    process = composer_run("train", FAKES, "--run-dir", run)
    assert process.returncode == 0, process.stderr
    return run


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "mine"
    made.mkdir()
    (made / "answer.txt").write_text("?")
    return made


def test_the_policy_changes_the_folder_once_a_person_says_yes(composer_run, trained, folder):
    process = composer_run("agent", trained, folder, "--prompt", PROMPT, "--yes")
    assert process.returncode == 0, process.stderr
    assert (folder / "answer.txt").read_text() == "42"
    assert process.stdout.startswith("diff --git a/answer.txt b/answer.txt\n--- a/answer.txt\n")
    assert "turn 1" in process.stderr and "write(" in process.stderr
    assert "stopped: finished after 2 turns" in process.stderr


def test_without_a_yes_nothing_is_written_and_the_diff_can_be_piped(composer_run, trained, folder):
    process = composer_run("agent", trained, folder, "--prompt", PROMPT)
    assert process.returncode == 0, process.stderr
    assert (folder / "answer.txt").read_text() == "?"
    assert "not applied" in process.stderr
    subprocess.run(["git", "apply", "-"], input=process.stdout, text=True, cwd=folder, check=True)
    assert (folder / "answer.txt").read_text() == "42"


def test_the_run_folder_is_left_as_it_was(composer_run, trained, folder):
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
    composer_run("agent", trained, folder, "--prompt", PROMPT, "--yes")
    assert {path: path.stat().st_mtime_ns for path in trained.rglob("*")} == before


def test_a_policy_is_refused_a_harness_it_was_not_trained_in(composer_run, trained, folder):
    process = composer_run(
        "agent", trained, folder, "--prompt", PROMPT, "--set", 'tools.use=["fakes/write", "fakes/done"]'
    )
    assert process.returncode == 2
    assert "not the one this policy was trained in" in process.stderr and "fakes/read" in process.stderr
    limits = composer_run("agent", trained, folder, "--prompt", PROMPT, "--set", "limits.turns=1")
    assert "stopped: turns after 1 turns" in limits.stderr


def test_a_resumed_run_is_refused_another_harness(composer_run, tmp_path):
    run = tmp_path / "run"
    composer_run("train", FAKES, "--run-dir", run, "--rollouts-only")
    (run / "summary.json").unlink()
    recorded = json.loads((run / "harness.json").read_text())
    recorded["tools"][0]["description"] = "Read a file, differently."
    (run / "harness.json").write_text(json.dumps(recorded))
    (run / "tokenizer" / "mark").write_text("left alone")
    before = {path: path.stat().st_mtime_ns for path in (run / "tokenizer").iterdir()}
    process = composer_run("train", "--resume", run)
    assert process.returncode == 2
    assert {path: path.stat().st_mtime_ns for path in (run / "tokenizer").iterdir()} == before
    assert "fakes/read" in process.stderr


def test_a_run_that_does_not_know_its_harness_is_refused(composer_run, trained, folder, tmp_path):
    copy = shutil.copytree(trained, tmp_path / "copy")
    (copy / "harness.json").unlink()
    process = composer_run("agent", copy, folder, "--prompt", PROMPT, "--yes")
    assert process.returncode == 2
    assert "harness.json" in process.stderr
    assert (folder / "answer.txt").read_text() == "?"


def test_a_sandbox_that_isolates_nothing_needs_the_same_trust_as_in_training(composer_run, trained, folder):
    tier = ("--set", 'plugins=["fakes", "local"]', "--set", 'sandbox={use="local/process"}')
    process = composer_run("agent", trained, folder, "--prompt", PROMPT, "--yes", *tier)
    assert process.returncode == 2
    assert "trusted" in process.stderr
    assert (folder / "answer.txt").read_text() == "?"


def test_a_policy_is_refused_plugins_of_other_versions(composer_run, trained, folder, tmp_path):
    copy = shutil.copytree(trained, tmp_path / "copy")
    rows = json.loads((copy / "plugins.json").read_text())
    (copy / "plugins.json").write_text(json.dumps([{**row, "version": "9.9"} for row in rows]))
    process = composer_run("agent", copy, folder, "--prompt", PROMPT, "--yes")
    assert process.returncode == 2
    assert "9.9" in process.stderr


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("nowhere", "."), "no run"),
        (("RUN", "missing"), "no such folder"),
        (("RUN", "FOLDER", "--set", "limits.turn=3"), "did you mean 'turns'"),
        (("RUN", "FOLDER", "--temperature", "-1"), "--temperature"),
    ],
)
def test_bad_input_is_explained(composer_run, trained, folder, arguments, message):
    words = [{"RUN": trained, "FOLDER": folder}.get(word, word) for word in arguments]
    process = composer_run("agent", *words, "--prompt", PROMPT, cwd=folder)
    assert process.returncode == 2
    assert message in process.stderr and "Traceback" not in process.stderr


class Replay:
    """A sampler that says a recorded episode's turns again, whatever it is asked."""

    def __init__(self, trace):
        row = trace.branches[0]
        self.turns = [list(row.ids.values())[turn.start : turn.stop] for turn in trace.turns]

    async def generate(self, ids, settings, request):
        turn = self.turns.pop(0)
        runs = ((0, len(turn)),)
        return Completion(Column.of("I32", turn), Column.of("F32", [-0.5] * len(turn)), runs)

    async def load(self, weights, path):
        pass

    async def release(self, session):
        pass

    async def close(self):
        pass


def test_prompts_and_tool_results_are_those_of_training_to_the_byte(root, tmp_path):
    """A demonstrator's episode of training, and the agent's on a folder of equal content with equal sampled ids.

    Real tools, tokenizer, renderer and sandboxes; every id of the branch is compared, the context's included.
    """
    config = load(root / QUICKSTART)
    config = attrs.evolve(config, samplers={"demonstrator": config.samplers["demonstrator"]})
    plugins = load_plugins(config, Options())
    recorded = asyncio.run(_train_once(config, plugins, tmp_path))
    folder = tmp_path / "mine"
    for file in recorded["tree"].files:
        (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / file.path).write_bytes(file.data)
    run = RunDir(tmp_path / "run")
    run.write_json("harness.json", recorded["harness"].to_json())
    trace = recorded["trace"]
    assembly = Assembly(attrs.evolve(config, samplers={}), plugins.registry, tmp_path / "run")
    assembly.get("samplers")["policy"] = Replay(trace)
    commit = Commit(1, 0, 1, WeightsRef(1, "weights/1.safetensors", ""))
    tree = read_folder(folder, 1 << 24, 1 << 26)
    again = asyncio.run(work(assembly, run, commit, tree, recorded["prompt"], Sampling(1.0)))
    assert len(trace.turns) >= 3 and trace.stop is Stop.FINISHED and trace.patch
    assert again.branches[0].ids == trace.branches[0].ids
    assert again.branches[0].sampled == trace.branches[0].sampled
    assert [result.text for result in again.results()] == [result.text for result in trace.results()]
    assert again.patch == trace.patch
    assert again.harness == trace.harness != ""


async def _train_once(config, plugins, folder):
    """One episode as the sft stage of the main job rolls it out."""
    assembly = Assembly(config, plugins.registry, folder / "run")
    (folder / "run").mkdir()
    try:
        executor = assembly.get("executors")
        await executor.start()
        assembly.get("tokenizer").save(folder / "run" / "tokenizer")
        tasks = assembly.get("tasks")
        task = tasks.tasks("train")[3]
        request = request_for(task, SlotKey(task.id, 0, "sft"), config.seed, config.limits)
        result = await executor.submit(attrs.evolve(request, sampler="demonstrator"))
        assert result.verdict.outcome in (Outcome.SOLVED, Outcome.FAILED), result.faults
        trace = decode(assembly.get("stores").get(result.trace.uri))
        tree = tasks.tree(task.view.workspace)
        return {"trace": trace, "tree": tree, "prompt": task.view.prompt, "harness": assembly.harness()}
    finally:
        await assembly.close()
