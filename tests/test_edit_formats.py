"""Formats of edits are compared by one run: the same repairs by three tools, in real sandboxes, told side by side."""

import json
import re

import pytest

FILE = "examples/edit_formats/run.toml"
FORMATS = ["edit_file", "edit_lines", "apply_patch"]


@pytest.fixture(scope="module")
def run(composer_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("formats") / "run"
    few = [word for name in FORMATS for word in ("--set", f"evaluations.{name}.tasks=6")]
    made = composer_run("train", FILE, "--run-dir", folder, *few, "--set", "threads=1", timeout_s=300)
    assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture(scope="module")
def measured(run):
    return {name: json.loads((run / f"evaluations/after-{name}.json").read_text()) for name in FORMATS}


def test_all_formats_solve_the_same_tasks_and_no_edit_is_refused(measured):
    assert [row["rows"] for row in measured.values()] == [measured["edit_file"]["rows"]] * 3
    for row in measured.values():
        assert (row["metrics"]["solve_rate"], row["metrics"]["voids"]) == (1.0, 0.0)
        assert row["metrics"]["bad_call_share"] == row["metrics"]["refused_share"] == 0.0


def test_edits_are_counted_by_their_format(measured):
    for name, row in measured.items():
        metrics = row["metrics"]
        shares = {other: metrics.get(f"tool/{other}", 0.0) * metrics["calls_mean"] for other in FORMATS}
        assert shares == {other: pytest.approx(float(other == name)) for other in FORMATS}, "one in each episode"


def test_show_tells_what_each_format_costs(composer_run, run, measured):
    page = composer_run("show", run).stdout
    (heads,) = re.findall(r"^name +step.*$", page, re.MULTILINE)
    for name in FORMATS:
        evaluated, calls = re.findall(rf"^after/{name} .*$", page, re.MULTILINE)[:2]
        told = dict(zip(re.split(r" {2,}", heads), re.split(r" {2,}", evaluated), strict=True))
        assert float(told["tokens"]) == pytest.approx(measured[name]["metrics"]["tokens_mean"], rel=1e-3)
        assert re.search(rf"{name} \d+%", calls)
    tokens = [row["metrics"]["tokens_mean"] for row in measured.values()]
    assert len(set(tokens)) == 3, "the formats differ, or nothing is compared"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("samplers.edit_file.edits='apply_patches'", "samplers.edit_file"),
        ("tools.use=['code/read_file','code/edit_file','code/finish','code/run_terminal']", "no tool 'edit_lines'"),
        ("tools.settings={'code/read_file'={line_numbers=false}}", "edits by line numbers"),
    ],
    ids=["a format that is none", "a format that the run has no tool for", "numbers that nobody is shown"],
)
def test_check_refuses_a_comparison_that_cannot_be_made(composer_run, wrong, said):
    found = composer_run("check", FILE, "--set", wrong)
    assert found.returncode == 2
    assert said in found.stderr
