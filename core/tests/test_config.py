"""The run file: every misspelt, ineffective or ill-typed key is an error that says where and what else."""

import contextlib
import json
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_core.commands.train import changes
from composer_core.config import Limits, RlStage, limits_for, load, override, structure, to_data
from composer_core.errors import ConfigError

RUN = """
name = "q"
tasks.use = "a/b"
model = {use = "a/b", layers = 2}
renderer.use = "a/b"
sampler.use = "a/b"
trainer.use = "a/b"
sandbox.use = "a/b"
[[rewards]]
use = "x/y"
weight = 2
sharp = true
[[stages]]
kind = "rl"
steps = 3
learning_rate = 0.1
[[stages]]
name = "again"
kind = "sft"
steps = 3
sampler = "demo"
"""

MEASURED = "evaluations=[{name='main', split='s'"


@pytest.fixture
def path(tmp_path) -> Path:
    target = tmp_path / "run.toml"
    target.write_text(RUN)
    return target


def test_a_component_keeps_the_keys_beside_use(path):
    run = load(path)
    assert run.model.settings == {"layers": 2}
    assert (run.rewards[0].weight, run.rewards[0].settings) == (2, {"sharp": True})


def test_a_weight_that_is_not_given_stays_the_records(path):
    run = load(path, ["rewards=[{use='x/y'}]"])
    assert run.rewards[0].weight is None
    assert to_data(run)["rewards"] == [{"use": "x/y"}]


def test_a_stage_splits_core_keys_from_the_trainers(path):
    choice = load(path).stages[0]
    assert choice.stage == RlStage(name="rl", steps=3)
    assert choice.settings == {"learning_rate": 0.1}


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("seed=7", lambda run: run.seed == 7),
        ("name=other-name", lambda run: run.name == "other-name"),
        ("stages.rl.steps=9", lambda run: run.stages[0].stage.steps == 9),
        ("rewards.y.weight=3", lambda run: run.rewards[0].weight == 3),
        ('rewards."x/y".sharp=false', lambda run: run.rewards[0].settings == {"sharp": False}),
        ("rewards.y={use='c/d'}", lambda run: run.rewards[0].use == "c/d"),
        ("stages[1].episodes=5", lambda run: run.stages[1].stage.episodes == 5),
        ("model.deep.er=1.5", lambda run: run.model.settings["deep"] == {"er": 1.5}),
        ('tools.settings."code/read".n=3', lambda run: run.tools.settings["code/read"] == {"n": 3}),
    ],
)
def test_overrides_reach_any_key(path, text, read):
    assert read(load(path, [text]))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seeed=3", ["unknown key seeed", "did you mean 'seed'"]),
        ("stages.rl.group_size=1", ["group_size", ">= 2", "stages[0]"]),
        ("seed=1.5", ["expected int", "seed"]),
        ("deterministic=1", ["expected bool"]),
        ("tasks=3", ['use = "plugin/name"']),
        ("stages.nope.steps=1", ["no entry 'nope'", "known: 0, 1, again, rl"]),
        ("rewards.z.weight=1", ["no entry 'z'", "known: 0, x/y, y"]),
        ("stages[7].steps=1", ["no entry 7 to set"]),
        ("stages[0].kind='dream'", ["pretrain, sft, rl"]),
        ("checkpoints.keeep=1", ["did you mean 'keep'"]),
        ("nonsense", ["key.path=value"]),
        ("seed.deep=1", ["below a value"]),
        ("stages.again.keep='sloved'", ["stages[1]: 'keep' must be in ('all', 'solved') (got 'sloved')"]),
        ("threads=-3", ["'threads' must be > 0: -3"]),
        ("sandbox_limits.processes=0", ["'processes' must be > 0: 0", "sandbox_limits"]),
        ("sandbox_limits.disk_bytes=-1", ["'disk_bytes' must be > 0"]),
        (f"{MEASURED}, when=['befor']}}]", ["'when' holds 'befor': did you mean 'before'?", "evaluations[0]"]),
        (f"{MEASURED}, when=['before', 'never']}}]", ["'when' holds 'never': known: after, before, during"]),
        (f"{MEASURED}, when=[]}}]", ["'when' is empty, so this is never measured", "before, during, after"]),
    ],
)
def test_bad_keys_and_values_are_named(path, text, words):
    overrides = ["seed=1", text] if text.startswith("seed.") else [text]
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    for word in words:
        assert word in str(caught.value)


def test_a_required_key_that_is_missing_is_named(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('name = "x"')
    with pytest.raises(ConfigError, match="tasks"):
        load(path)


@pytest.mark.parametrize("text", ["= 3", "[", 'a = "', "\xff"])
def test_a_file_that_is_no_toml_is_refused(tmp_path, text):
    path = tmp_path / "run.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="no TOML"):
        load(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.toml")


def test_the_resolved_file_reads_back_equal(path):
    run = load(path)
    data = {key: value for key, value in json.loads(json.dumps(to_data(run))).items() if value is not None}
    data["stages"] = [{k: v for k, v in stage.items() if v is not None} for stage in data["stages"]]
    assert to_data(structure(data)) == to_data(run)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("seed=0", []),
        ("model.layers=3", [("model.layers", "2 in the folder, 3 now")]),
        ("model.deep=true", [("model.deep", "None in the folder, True now")]),
        ("stages.again.steps=4", [("stages[1].steps", "3 in the folder, 4 now")]),
        ("rewards.y.weight=3", [("rewards[0].weight", "2 in the folder, 3 now")]),
    ],
)
def test_two_configurations_differ_by_the_keys_that_were_set(path, text, found):
    told = changes(to_data(load(path)), to_data(load(path, [text])))
    assert [(one.where, one.message) for one in told] == found


def test_limits_of_a_task_are_overridden_key_by_key():
    assert limits_for(Limits(turns=3), {"tokens": 9}) == Limits(turns=3, tokens=9)
    with pytest.raises(ConfigError, match="turn"):
        limits_for(Limits(), {"turnz": 1})


@pytest.mark.parametrize("name", ["", "..", "../../etc", "a/b", "/etc/x", ".hidden", "a\nb", "a b", "x" * 101])
@pytest.mark.parametrize("key", ["name", "stages.again.name", "evaluations[0].name"])
def test_a_name_that_is_no_file_name_is_refused(path, key, name):
    overrides = [f"{MEASURED}}}]", f"{key}={json.dumps(name)}"]
    with pytest.raises(ConfigError, match="'name' must be 1 to 100 letters, digits") as caught:
        load(path, overrides)
    assert f"found {name!r}" in str(caught.value)


@pytest.mark.parametrize("name", ["a", "3", "best_of_8", "v1.2-rc", "-x", "_", "größe"])
def test_a_file_name_is_a_name(path, name):
    assert load(path, [f"name={json.dumps(name)}"]).name == name


@pytest.mark.parametrize("key", [field.name for field in attrs.fields(Limits)])
@pytest.mark.parametrize("value", [0, -1])
def test_a_limit_that_leaves_an_episode_nothing_is_refused(key, value):
    with pytest.raises(ConfigError, match=f"'{key}' must be > 0"):
        limits_for(Limits(), {key: value})


@given(st.text(max_size=40))
def test_any_override_text_is_applied_or_refused_never_a_crash(text):
    data = {"a": {"b": 1}, "stages": [{"name": "x"}]}
    with contextlib.suppress(ConfigError):
        override(data, text)


@pytest.mark.parametrize(
    "host",
    [
        *("http://example.com", "example.com/x", "user@example.com", "a b", "", "*", "*.1.2.3.4", "a:99999", "a:0"),
        *("[::1", "300.1.1.1", "127.1", "2130706433", "0x7f000001"),
    ],
)
def test_what_is_no_host_is_refused_before_anything_runs(path, host):
    assert load(path, ['network.allow=["*.example.com:443", "[::1]:80"]']).network.allow[1] == "[::1]:80"
    with pytest.raises(ConfigError, match="allow"):
        load(path, [f"network.allow={json.dumps([host])}"])
