"""The peak memory that `check` states lies within 30 % of what the run then takes."""

import json

import pytest

QUICKSTART = "examples/quickstart/run.toml"
FAKES = "examples/fakes/run.toml"
SHORT = (
    "samplers={demonstrator={use='drills/demonstrator'}}",
    "evaluations=[{name='main',split='new_bug',tasks=8,attempts=1,when=['after']}]",
    "tasks.restoring_variants=10",
    "threads=1",
)
TINY = (
    *SHORT,
    "stages=["
    "{name='copy',kind='pretrain',source='copying',steps=3,window_tokens=64,batch_windows=16},"
    "{name='restoring',kind='pretrain',split='restoring',steps=3,batch_windows=8},"
    "{name='sft',kind='sft',sampler='demonstrator',episodes=32,steps=3,batch_episodes=8},"
    "{name='rl',kind='rl',steps=2,groups_per_step=2,group_size=4}]",
)
WIDE = (
    *SHORT,
    "model={use='hf/tiny-moe',width=256,layers=3,expert_width=128,vocab_size=2048}",
    "sampler={use='torch-sampler/continuous',context_tokens=512,slots=256}",
    "stages=["
    "{name='restoring',kind='pretrain',split='restoring',steps=2,batch_windows=16,micro_batch_tokens=4096},"
    "{name='sft',kind='sft',sampler='demonstrator',episodes=32,steps=2,batch_episodes=16,micro_batch_tokens=4096},"
    "{name='rl',kind='rl',steps=2,groups_per_step=2,group_size=4,micro_batch_tokens=4096}]",
)


def sets(overrides):
    return [part for text in overrides for part in ("--set", text)]


def stated(composer_run, path, overrides=()):
    """Bytes of the run's own process, as `check --json` states them."""
    process = composer_run("check", path, "--json", *sets(overrides))
    assert process.returncode == 0, process.stderr
    memory = json.loads(process.stdout)["memory"]
    assert memory["unknown"] == []
    return memory["processes"][0]["peak_bytes"]


@pytest.mark.parametrize(
    ("path", "overrides"), [(FAKES, ()), (QUICKSTART, TINY), (QUICKSTART, WIDE)], ids=["fakes", "tiny", "wide"]
)
def test_the_stated_peak_is_within_30_percent_of_the_measured(composer_run, tmp_path, path, overrides):
    run = tmp_path / "run"
    process = composer_run("train", path, "--run-dir", run, *sets(overrides), timeout_s=300)
    assert process.returncode == 0, process.stderr
    measured = json.loads((run / "summary.json").read_text())["peak_rss_bytes"]
    assert stated(composer_run, path, overrides) == pytest.approx(measured, rel=0.3)


def test_the_stated_peak_of_the_main_job_is_within_30_percent_of_the_committed_measurement(composer_run, root):
    rows = json.loads((root / "benchmarks/results/quickstart.json").read_text())
    peak = stated(composer_run, QUICKSTART)
    assert [peak for _ in rows] == pytest.approx([row["peak_rss_bytes"] for row in rows], rel=0.3)
