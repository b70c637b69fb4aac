"""Every benchmark still runs, its rows are judged as they say, and the page of figures is what the results give.

No time is asserted: a smoke test measures too little to be judged.
"""

import argparse
import importlib
import json
import subprocess
import sys
import tomllib

import pytest

SCRIPTS = (
    "help_time",
    "control_plane",
    "ray_executor",
    "simulation",
    "asynchrony",
    "sandboxes",
    "microvm",
    "envd",
    "sampler_throughput",
    "rl_step",
    "weight_sync",
    "mxfp8",
    "mxfp8_layer",
    "mxfp8_quickstart",
)


@pytest.fixture
def benchmark(root, tmp_path):
    """Run `python benchmarks/NAME.py ARGS` and return the finished process."""

    def run(name, *args):
        command = [sys.executable, str(root / f"benchmarks/{name}.py"), *map(str, args)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    return run


@pytest.fixture
def module(root, monkeypatch):
    """Import a module of benchmarks/ as its scripts do."""
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    return importlib.import_module


@pytest.fixture
def options(tmp_path):
    return argparse.Namespace(quick=False, out=tmp_path / "results")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_measures_without_its_peers_and_a_smoke_test_writes_nothing(benchmark, name, tmp_path):
    found = benchmark(name, "--quick", "--no-peer", "--out", tmp_path / "results")
    assert found.returncode == 0, found.stderr
    assert "cores" in found.stdout.splitlines()[0]
    assert not (tmp_path / "results").exists()


def test_the_page_of_figures_is_made_of_the_results(benchmark):
    found = benchmark("table", "--check")
    assert found.returncode == 0, f"python benchmarks/table.py writes it anew\n{found.stderr}"


@pytest.mark.parametrize(
    ("ours", "unit", "peer", "ratio"),
    [(300, "tokens/s", 100, 3.0), (100, "ms", 300, 3.0), (300, "ms", 100, 1 / 3), (5, "ms", None, None)],
)
def test_a_ratio_says_how_many_times_better_we_are(module, ours, unit, peer, ratio):
    assert module("results").Row("x", ours, unit, peer).ratio == ratio


def test_a_miss_is_written_named_and_ends_with_1(module, options, capsys):
    results = module("results")
    rows = [results.Row("slow", 16, "ms", target="ours <= 15"), results.Row("fast", 9, "ms", 30, "it", "ratio >= 3")]
    assert results.Results("made_up", "Made up", rows).finish(options) == 1
    assert capsys.readouterr().err == "MISSED: made_up: slow\n"
    written = json.loads((options.out / "made_up.json").read_text())
    assert [row["met"] for row in written["rows"]] == [False, True]


def test_a_promise_about_a_peer_that_was_left_out_is_neither_kept_nor_broken(module, options):
    results = module("results")
    row = results.Row("x", 9, "tokens/s", target="ratio >= 2")
    assert row.met is None
    assert results.Results("made_up", "Made up", [row]).finish(options) == 0


def test_the_page_shows_what_missed_with_machine_command_and_date(module, options):
    results, table = module("results"), module("table")
    rows = [results.Row("a thing", 1234.5, "tokens/s", 1000, "it 1.0", "ratio >= 2")]
    made = results.Results("help_time", "Made up", rows, ["chosen: this"], {"torch": "9"})
    made.finish(options)
    page = table.page(options.out)
    assert "| a thing | ratio >= 2 | 1,234 tokens/s | 1,000 it 1.0 | 1.23 | **missed** |" in page
    document = made.document()
    for told in (document["machine"], document["date"], document["command"], "torch 9", "- chosen: this"):
        assert told in page


def test_the_full_step_is_judged_beside_the_peers_best_setting(module):
    sides = {
        "composer": 2.0,
        "composer, rollouts beside the update": 1.0,
        "trl==1.16.0 8x8": 5.0,
        "trl==1.16.0 4x16": 6.0,
    }
    alone, beside = module("rl_step").rows_of({name: {"step_s": value} for name, value in sides.items()}, 20.0)
    assert (alone.peer_name, alone.ratio, alone.target, alone.met) == ("trl==1.16.0 8x8", 2.5, "ratio >= 3", False)
    assert (beside.ratio, beside.target) == (5.0, "")


@pytest.fixture
def run_folder(tmp_path):
    """A finished run whose evaluation found these outcomes by task."""

    def make(name, rows):
        folder = tmp_path / name
        (folder / "evaluations").mkdir(parents=True)
        (folder / "evaluations/after-main.json").write_text(json.dumps({"rows": rows}))
        (folder / "summary.json").write_text(json.dumps({"void_share": 0.0}))
        return folder

    return make


@pytest.mark.parametrize(
    ("solved", "met"),
    [(0.70, [True, True]), (0.66, [True, True]), (0.60, [False, True])],
)
def test_an_arm_is_non_inferior_by_its_paired_difference(module, run_folder, solved, met):
    without = {f"task-{n}": [1] * 70 + [0] * 30 for n in range(40)}
    other = {task: [1] * round(solved * 100) + [0] * round(100 - solved * 100) for task in without}
    rows, remark = module("non_inferior").compare("x", [run_folder("a", without)], [run_folder("b", other)])
    assert [row.met for row in rows if row.target] == met
    assert remark == f"x: difference of each seed {solved - 0.7:+.3f}"


def test_an_arm_with_too_few_attempts_is_not_shown_to_be_the_same(module, run_folder):
    """Every other task goes the other way: the mean is 0, and says nothing."""
    base, other = ({f"task-{n}": [(n + arm) % 2] for n in range(40)} for arm in (0, 1))
    rows, _ = module("non_inferior").compare("x", [run_folder("a", base)], [run_folder("b", other)])
    assert [row.met for row in rows if row.target] == [True, False]


def test_seeds_are_pooled_by_task(module, run_folder):
    seeds = [run_folder("a1", {"t": [1, 0]}), run_folder("a2", {"t": [1, 1]})]
    assert module("non_inferior").rows_of(seeds) == {"t": [1, 0, 1, 1]}


def test_whole_an_arm_has_its_component_in_every_stage_and_else_in_the_last_alone(module, tmp_path, monkeypatch):
    made = {}
    monkeypatch.setattr(module("non_inferior"), "train", lambda path, *rest: made.update({path.name: rest}) or path)
    job = module("non_inferior").Job(tmp_path, ["threads=1"])
    for way in (job.whole, job.learning):
        way("base", 2)
        way("mxfp8", 2)
    assert made.pop("quickstart-seed2") == ("", ["seed=2"])
    kernel, kinds = 'model.experts.kernel="mxfp8/experts"', {}
    for name, (plugins, settings) in made.items():
        assert (plugins == "mxfp8") == (kernel in settings)
        found = tomllib.loads("\n".join(line for line in settings if line != kernel))
        assert (found["seed"], found["threads"]) == (2, 1)
        kinds[name, plugins] = {stage["kind"] for stage in found.get("stages", [])}
    assert kinds["mxfp8-whole-seed2", "mxfp8"] == {"pretrain", "sft", "rl"}
    assert kinds["checkpoint-seed2", ""] == {"pretrain", "sft"}
    assert kinds["mxfp8-seed2", "mxfp8"] == kinds["base-seed2", ""] == {"rl"}
