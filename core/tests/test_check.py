"""`check` says what will run, what it costs and what it takes, from the run file and the records alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import Factory, evolve, field, frozen
from click.testing import CliRunner

from composer_core import ExecutorSpec, Footprint, KernelSpec, ModelSize, ModelSpec, RewardSpec
from composer_core.assembly import Assembly
from composer_core.cli import group
from composer_core.commands.check import page
from composer_core.config import EvaluationSet, load
from composer_core.errors import CheckError, ConfigError, PluginFault, SandboxUnreachable
from composer_core.footprint import Process
from composer_core.plan import attempts, differing, plan
from composer_core.plugins import Plugins, select
from composer_core.registry import Registry
from composer_testing.fakes.sandbox import MemoryProvider
from composer_testing.fakes.tasks import Sums

FAKES = Path(__file__).resolve().parents[2] / "examples/fakes/run.toml"


def planned(tmp_path, *overrides, footprints=None, more=()):
    """The plan of the fakes' run; `footprints` replaces those of components by id, `more` are further records."""
    config = load(FAKES, overrides)
    plugins = Plugins().load(select(config.plugins))
    registry = Registry()
    for entry in plugins.registry:
        given = (footprints or {}).get(entry.id, entry.spec.footprint)
        registry.add(entry.spec.kind, entry.plugin, evolve(entry.spec, footprint=given), dist="d", version="1")
    for spec in more:
        registry.add(spec.kind, "fakes", spec, dist="d", version="1")
    return {**plan(Assembly(config, registry, tmp_path), plugins), "probed": False}


def checked(*args):
    result = CliRunner().invoke(group, ["check", str(FAKES), *args])
    if result.exception:
        raise result.exception
    return result.output


def test_the_page_names_every_component_with_its_distribution_version_and_own_settings():
    text = checked("--set", "sampler.gain=0.3")
    for words in ("fakes/sums", "fakes/memory", "fakes/checked", "core/inprocess", "composer-testing 0.1.0"):
        assert words in text
    assert "gain = 0.3" in text
    assert "count = 12" not in text, "12 is the default"


def test_the_page_fits_100_columns_has_no_escapes_and_is_the_same_twice():
    text = checked()
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text
    assert text == checked()


@frozen
class Experts:
    kernel: str = "fakes/fast"
    settings: Mapping[str, Any] = Factory(dict)


@frozen
class Mixture:
    experts: Experts = Experts()


@frozen
class FastConfig:
    unroll: int = 1


MIXTURE = (
    ModelSpec(name="mixture", config=Mixture, tokenizer=list, policy=list),
    KernelSpec(name="fast", op="experts", factory=list, reference=list, config=FastConfig),
)


def test_the_kernel_that_a_model_names_is_a_component_with_settings(tmp_path):
    found = planned(tmp_path, "model.use='fakes/mixture'", "model.experts.settings.unroll=4", more=MIXTURE)
    kernels = [(row["id"], row["settings"]) for row in found["components"] if row["key"] == "kernels"]
    assert kernels == [("fakes/fast", {"unroll": 4})]


def test_a_key_that_is_unknown_to_the_kernel_is_refused_with_its_place(tmp_path):
    with pytest.raises(ConfigError, match=r"model\.experts\.settings.*unrol: did you mean 'unroll'"):
        planned(tmp_path, "model.use='fakes/mixture'", "model.experts.settings.unrol=4", more=MIXTURE)


def test_needs_name_the_capability_and_the_setting_that_needs_it(tmp_path):
    rows = {row["key"]: row for row in planned(tmp_path)["capabilities"]}
    assert ["sampler.logprobs", "an rl stage"] in rows["sampler"]["needs"]
    assert ["trainer.deterministic", "deterministic"] in rows["trainer"]["needs"]
    assert rows["sandbox"]["needs"] == []
    assert "sandbox.forks" in rows["sandbox"]["offers"]


def test_router_replay_is_refused_where_model_sampler_or_trainer_lack_their_part():
    lacking = [
        one.partition(" does not offer ")[2].partition(",")[0] for one in _problems("stages.rl.router_replay=true")
    ]
    assert {"model.routes", "sampler.routes", "trainer.routes"} <= set(lacking)


def test_oversampling_is_refused_where_the_machines_pace_may_not_decide():
    told = [one for one in _problems("stages.rl.oversample=1") if "stages.rl.oversample:" in one]
    assert "the machine's pace" in told[0]
    checked("--set", "stages.rl.oversample=1", "--set", "deterministic=false")


def _problems(*overrides):
    with pytest.raises(CheckError) as caught:
        checked(*(part for text in overrides for part in ("--set", text)))
    return str(caught.value).splitlines()


def test_stages_say_what_they_cost_at_most(tmp_path):
    found = planned(tmp_path, "limits.tokens=40")
    text, sft, rl = found["stages"]
    assert (text["episodes"], text["tokens"]) == (0, 4 * 2 * 32)
    assert (sft["episodes"], sft["tokens"]) == (12, 12 * 40)
    assert (rl["episodes"], rl["tokens"]) == (5 * 3 * 4, 5 * 3 * 4 * 40)


def test_attempts_that_several_sets_ask_for_are_counted_once():
    main = EvaluationSet("main", "held_out", tasks=12, attempts=2)
    deep = EvaluationSet("deep", "held_out", tasks=6, attempts=4)
    greedy = EvaluationSet("greedy", "held_out", tasks=12, attempts=1, temperature=0.0)
    assert attempts([main, deep]) == 12 * 2 + 6 * 2
    assert attempts([main, greedy]) == 12 * 2 + 12


def test_moments_count_the_looks_that_a_run_takes(tmp_path, monkeypatch):
    found = planned(tmp_path)
    assert found["moments"]["during"] == {"times": 2, "episodes": 24}, "steps 2 and 4 of 5"
    assert found["episodes"] == 12 + 60 + 24 * 4


def test_the_number_of_episodes_is_that_of_the_traces_a_run_writes(tmp_path):
    process = CliRunner().invoke(group, ["train", str(FAKES), "--run-dir", str(tmp_path / "run")])
    assert process.exception is None, process.exception
    assert len(list((tmp_path / "run/traces").iterdir())) == planned(tmp_path)["episodes"]


def test_the_outcomes_lead_over_all_other_rewards_is_proved_in_one_line(tmp_path):
    style = RewardSpec(name="style", function=lambda patch: 0.0, range=(-1.0, 1.0))
    chosen = "rewards=[{use='fakes/checked'}, {use='fakes/style', weight=0.2}]"
    found = planned(tmp_path, chosen, more=(style,))
    assert [found["rewards"][name] for name in ("gap", "swing", "margin")] == [1.0, 0.4, 0.6]
    (line,) = [line for line in page(found).splitlines() if "proof" in line]
    assert "at most 0.4 < 1" in line
    (line,) = [line for line in page(planned(tmp_path)).splitlines() if "proof" in line]
    assert "there are no others" in line


def test_a_reward_weighs_what_its_record_says_where_the_run_file_says_nothing(tmp_path):
    style = RewardSpec(name="style", function=lambda patch: 0.0, range=(-1.0, 1.0), weight=0.1)
    plain, given = (
        planned(tmp_path, f"rewards=[{{use='fakes/checked'}}, {{use='fakes/style'{weight}}}]", more=(style,))["rewards"]
        for weight in ("", ", weight=0.3")
    )
    assert [plain["swing"], given["swing"]] == pytest.approx([0.2, 0.6])


@frozen
class Rounds:
    at_a_time: int = 3
    max_concurrent: int = 99


@pytest.mark.parametrize(("names", "shown"), [("at_a_time", "3 at once"), ("", "as many as the executor decides")])
def test_episodes_in_flight_are_those_of_the_setting_that_the_executors_record_names(tmp_path, names, shown):
    executor = ExecutorSpec(name="rounds", factory=list, config=Rounds, in_flight=names)
    assert shown in page(planned(tmp_path, "executor.use='fakes/rounds'", more=(executor,)))


def test_a_record_that_names_no_setting_for_the_episodes_in_flight_is_refused():
    with pytest.raises(ValueError, match="names no setting of Rounds: 'at_a_tiem'"):
        ExecutorSpec(name="rounds", factory=list, config=Rounds, in_flight="at_a_tiem")


def test_caps_that_the_sandbox_does_not_enforce_are_said(tmp_path):
    found = planned(tmp_path)
    assert "memory 512 MiB (not enforced)" in page(found)
    found["capabilities"].append({"key": "sandbox", "offers": ["sandbox.limits.memory"], "needs": []})
    assert "memory 512 MiB," in page(found)


def test_a_weighty_component_that_tells_nothing_is_unknown_and_never_guessed(tmp_path):
    found = planned(tmp_path, footprints={"fakes/simulated": None, "fakes/read": None})
    assert found["memory"]["unknown"] == ["trainer fakes/simulated"]
    shown = page(found)
    assert "trainer fakes/simulated (gives none)" in shown
    assert "at least, the sum of" in shown
    assert ["weights/", "unknown"] in [line.split() for line in shown.splitlines()]
    assert "in all, at least" in shown


def test_what_a_model_tells_reaches_samplers_and_trainers(tmp_path):
    size = ModelSize(10, 40, 8, 100, 50, 4, 8, 16)

    def told(config, run):
        return Footprint({"weights": run.model_size.weight_bytes}, checkpoint_bytes=3)

    weighs = {"fakes/bytes": Footprint(model=size), "fakes/simulated": told}
    found = planned(tmp_path, "checkpoints.keep=2", footprints=weighs)
    assert found["memory"]["parts"]["trainer fakes/simulated: weights"] == 40
    assert found["files"]["weights/"] == 3 * 40
    assert found["files"]["checkpoints/"] == 3 * 3, "two, and the best of the evaluations during training"


def test_expert_ids_that_are_replayed_count_among_the_files(tmp_path):
    """Of episodes that are trained, and of no evaluation."""
    weighs = {"fakes/bytes": Footprint(model=ModelSize(10, 40, 8, 100, 50, 4, 8, 16, route_bytes=6))}
    plain, routed = (
        planned(tmp_path, "limits.context_tokens=100", f"stages.rl.router_replay={value}", footprints=weighs)
        for value in ("false", "true")
    )
    assert routed["files"]["traces/"] - plain["files"]["traces/"] == 5 * 3 * 4 * 100 * 6


def test_an_import_that_two_components_share_is_counted_once(tmp_path):
    shared = Footprint(imports={"torch": 100 << 20})
    found = planned(tmp_path, footprints={"fakes/simulated": shared, "fakes/learner": shared})
    assert found["memory"]["parts"]["import torch"] == 100 << 20


def test_processes_that_a_component_starts_stand_beside_the_run(tmp_path):
    cap = Footprint(processes=(Process("a command", 8, 512 << 20, capped=True),))
    found = planned(tmp_path, footprints={"fakes/memory": cap})
    own, other = found["memory"]["processes"]
    assert own["peak_bytes"] == sum(found["memory"]["parts"].values())
    assert other["most"] == 8
    assert "capped, each of at most 8" in page(found)


def test_a_footprint_that_raises_is_attributed(tmp_path):
    def broken(config, run):
        raise KeyError("width")

    with pytest.raises(PluginFault, match=r"fakes/learner .*KeyError"):
        planned(tmp_path, footprints={"fakes/learner": broken})


def test_a_probe_says_what_it_tried_and_found():
    text = checked("--probe")
    assert "Probed on this machine\n  tasks    as many as are asked for\n  sandbox  offers all of it\n" in text
    assert "Probed" not in checked()


def test_a_probe_tells_what_a_sandbox_says_of_itself(monkeypatch):
    monkeypatch.setattr(MemoryProvider, "describe", lambda self: "in memory, on nobody's honor", raising=False)
    assert "  sandbox  offers all of it\n           in memory, on nobody's honor\n" in checked("--probe")
    assert json.loads(checked("--probe", "--json"))["sandbox"] == "in memory, on nobody's honor"


def test_a_sandbox_that_cannot_be_probed_is_a_problem_of_the_run_file(monkeypatch):
    async def probe(self):
        raise SandboxUnreachable("the server does not answer", where="http://node:1", fix="start it")

    monkeypatch.setattr(MemoryProvider, "probe", probe)
    with pytest.raises(CheckError, match=r"http://node:1: the server does not answer.*\(fix: start it\)") as caught:
        checked("--probe")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "stages.rl.evaluate_every=0",
            ['evaluations.main.when: holds "during"', "never be measured", "set evaluate_every"],
        ),
        (
            "stages.rl.evaluate_every=5",
            [
                "stages.rl.evaluate_every: is 5, but the stage has 5 steps, so it would never come",
                "fewer than the steps",
            ],
        ),
        ("tools.use=[]", ["tools.use: an agent without tools", "cannot finish"]),
        ("limits.turns=-1", ["'turns' must be > 0: -1", "limits"]),
    ],
)
def test_what_could_not_work_is_a_problem_though_every_key_is_known(override, words):
    with pytest.raises((CheckError, ConfigError)) as caught:
        checked("--set", override)
    for word in words:
        assert word in str(caught.value)


def test_an_rl_stage_without_an_algorithm_is_a_problem_that_names_those_there_are(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(FAKES.read_text().replace('algorithm.use = "fakes/centered"', ""))
    found = CliRunner().invoke(group, ["check", str(path)]).exception
    assert "algorithm.use: an rl stage needs an algorithm" in str(found)
    assert "choose one; known: fakes/centered" in str(found)


def test_only_what_acts_needs_tools_and_only_rl_needs_an_algorithm(tmp_path):
    path = tmp_path / "run.toml"
    text = FAKES.read_text().replace('algorithm.use = "fakes/centered"', "")
    path.write_text(text.replace('["fakes/read", "fakes/write", "fakes/done"]', "[]"))
    alone = ["stages=[{name='text', kind='pretrain', steps=2}]", "evaluations=[]", "samplers={}"]
    result = CliRunner().invoke(group, ["check", str(path), *(f"--set={text}" for text in alone)])
    assert result.exception is None, result.exception


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("stages.rl.split='tran'", ["stages.rl.split: the task set has no split 'tran'", "did you mean 'train'?"]),
        ("stages.sft.split='held-out'", ["stages.sft.split", "did you mean 'held_out'?"]),
        ("evaluations.main.split='heldout'", ["evaluations.main.split", "did you mean 'held_out'?"]),
        ("evaluations.main.tasks=500", ["evaluations.main.tasks: asks for 500 of split 'held_out', which has 12"]),
    ],
)
def test_a_probe_counts_the_tasks_that_stages_and_evaluations_ask_for(override, words):
    with pytest.raises(CheckError) as caught:
        checked("--probe", "--set", override)
    for word in words:
        assert word in str(caught.value)


def test_a_probe_finds_a_split_without_tasks(monkeypatch):
    monkeypatch.setattr(Sums, "tasks", lambda self, split: [])
    with pytest.raises(CheckError, match=r"stages\.rl\.split: asks for 1 of split 'train', which has 0"):
        checked("--probe")


def test_the_texts_of_a_pretrain_stage_are_no_split_of_tasks():
    assert "ok" in checked("--probe", "--set", "stages.text.split='anything'")


def test_json_is_the_plan_of_the_page():
    found = json.loads(checked("--json"))
    assert page(found) == checked()


@frozen
class Inner:
    kernel: str | None = None


@frozen
class Outer:
    inner: Inner = Inner()
    names: tuple[str, ...] = ()
    needed: int = 3


def test_settings_that_differ_are_shown_with_their_values_alone():
    assert differing(Outer()) == {}
    assert differing(Outer(Inner("a/b"), ("x",))) == {"inner": {"kernel": "a/b"}, "names": ["x"]}


@frozen
class Square:
    width: int = 2
    height: int = field(default=Factory(lambda self: self.width, takes_self=True))


def test_a_default_that_is_made_of_other_settings_is_a_default():
    assert differing(Square(5)) == {"width": 5}
    assert differing(Square(5, 6)) == {"width": 5, "height": 6}


def test_a_network_is_refused_where_the_sandbox_declares_none():
    with pytest.raises(CheckError, match=r"fakes/memory does not offer sandbox\.networks, which network\.allow needs"):
        checked("--set", 'network.allow=["example.com"]')
