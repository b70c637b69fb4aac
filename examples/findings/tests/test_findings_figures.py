"""What the page says follows from what was measured: on made-up results with known answers."""

import json
import math
from xml.etree import ElementTree

import pytest
from study import long_horizon, plots, reading, results
from study.curves import rank_correlation, ranks, slope
from study.effects import interval, measured, pooled
from study.findings import FINDINGS, Effect
from study.page import arms_of, figure, page, seeds_of
from study.recipes import RECIPES, chain
from study.results import Result, load, path, save

from composer_core import statistics


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 200)


def table(**columns):
    """Sixteen tasks, half of them with two broken files; a column is a number, or one for each number of files."""
    found = {}
    for number in range(16):
        bugs = 1 + number % 2
        row = {"attempts": 2.0, "bugs": float(bugs)}
        for name, value in columns.items():
            level = value[bugs - 1] if isinstance(value, tuple) else value
            row[name] = None if level is None else level + 0.01 * (number // 2 % 3 - 1)
        found[f"t{number}"] = row
    return found


def result(finding, arm, seed=1, **given):
    known = {"revision": "abc", "machine": "m", "command": "c", "date": "2026-01-01", "seconds": {"base": 60.0}}
    return Result(finding, arm, seed, **{**known, **given})


def arms(**tables):
    """The same table for three seeds."""
    return {
        arm: {seed: result("effort", arm, seed, after=after) for seed in (1, 2, 3)} for arm, after in tables.items()
    }


EFFECT = Effect("e", "excess", "new", "old", -1)


def test_an_effect_is_treated_less_untreated_paired_by_task():
    found = measured(EFFECT, arms(new=table(excess=1.0), old=table(excess=1.5)))
    assert found.value == pytest.approx(-0.5)
    assert (found.low, found.high) == pytest.approx((-0.5, -0.5))
    assert found.tasks == 16
    assert found.seeds == pytest.approx({1: -0.5, 2: -0.5, 3: -0.5})
    assert (found.treated, found.untreated) == pytest.approx((1.0, 1.5), abs=0.01)
    assert found.verdict == "holds"


def test_tasks_without_a_value_in_one_arm_have_no_difference():
    found = measured(EFFECT, arms(new=table(excess=(1.0, None)), old=table(excess=2.0)))
    assert found.tasks == 8
    assert measured(EFFECT, arms(new=table(excess=None), old=table(excess=2.0))) is None
    assert measured(EFFECT, {}) is None


def test_an_effect_may_be_of_easy_tasks_alone_or_of_easy_less_hard_ones():
    two = arms(new=table(excess=(0.5, 1.0)), old=table(excess=(2.0, 1.5)))
    easy = measured(Effect("e", "excess", "new", "old", -1, 1), two)
    less = measured(Effect("e", "excess", "new", "old", -1, 1, 2), two)
    assert easy.value == pytest.approx(-1.5)
    assert less.value == pytest.approx(-1.0)
    assert less.low <= less.value <= less.high
    assert less.seeds[1] == pytest.approx(-1.0)
    assert less.verdict == "holds"


def test_an_arm_may_be_compared_with_itself_before():
    one = {"new": {1: result("scaling", "new", before=table(solved=0.2), after=table(solved=0.6))}}
    assert measured(Effect("e", "solved", "new", "new:before", 1), one).value == pytest.approx(0.4)


def test_what_is_said_of_an_effect():
    def verdict(sign, new, old):
        return measured(Effect("e", "solved", "new", "old", sign), arms(new=new, old=old)).verdict

    high, low = table(solved=0.8), table(solved=0.5)
    assert verdict(1, high, low) == "holds"
    assert verdict(-1, high, low) == "fails"
    assert verdict(1, high, high) == "open"
    assert verdict(0, high, high) == "holds"
    assert verdict(0, high, low) == "holds"
    assert verdict(0, low, high) == "fails"
    assert verdict(None, high, low) == ""


def test_one_seed_on_the_other_side_leaves_it_open():
    mixed = arms(new=table(excess=1.0), old=table(excess=2.0))
    mixed["new"][2] = result("effort", "new", 2, after=table(excess=2.1))
    found = measured(EFFECT, mixed)
    assert found.high < 0
    assert found.verdict == "open"


def test_a_solve_rate_that_is_not_known_well_enough_is_open():
    noisy = {f"t{number}": {"bugs": 1.0, "solved": float(number % 2)} for number in range(8)}
    flat = {f"t{number}": {"bugs": 1.0, "solved": 0.5} for number in range(8)}
    assert measured(Effect("e", "solved", "new", "old", 0), arms(new=noisy, old=flat)).verdict == "open"


def test_figures_of_runs_are_paired_by_seed():
    found = measured(
        Effect("e", "figure:parity_median", "new", "old", -1),
        {
            "new": {seed: result("precision", "both", seed, figures={"parity_median": 0.1 * seed}) for seed in (1, 2)},
            "old": {seed: result("precision", "sampler", seed, figures={"parity_median": 0.5}) for seed in (1, 2)},
        },
    )
    assert (found.low, found.high) == pytest.approx((-0.4, -0.3))
    assert found.verdict == "holds"


def test_seeds_are_pooled_by_task_and_intervals_grow_with_noise():
    assert pooled({1: {"a": 0.0, "b": 1.0}, 2: {"a": 1.0}}) == [0.5, 1.0]
    wide = interval([[0.0, 1.0] * 8], lambda groups: statistics.mean(groups[0]))
    narrow = interval([[0.4, 0.6] * 8], lambda groups: statistics.mean(groups[0]))
    assert wide[0] < narrow[0] < 0.5 < narrow[1] < wide[1]


def test_a_slope_is_that_of_the_line():
    found = slope([(x, 0.1 * x + 0.3 + 0.01 * (x % 2)) for x in range(10)])
    assert found.value == pytest.approx(0.1, abs=0.003)
    assert found.at_one == pytest.approx(0.3, abs=0.02)
    assert 0.09 < found.low < found.high < 0.11
    with pytest.raises(ValueError, match="two different x"):
        slope([(1.0, 2.0), (1.0, 3.0)])


def test_ranks_and_their_correlation():
    assert ranks([10.0, 30.0, 30.0, 20.0]) == [1.0, 3.5, 3.5, 2.0]
    down = rank_correlation([(float(x), math.exp(-x)) for x in range(9)])
    assert down.value == pytest.approx(-1.0)
    assert down.p < 0.01
    mixed = rank_correlation([(1, 1), (2, 3), (3, 2), (4, 4), (5, 1.5)])
    assert -1 < mixed.value < 1
    assert mixed.p > 0.2
    with pytest.raises(ValueError, match="three points"):
        rank_correlation([(1, 1), (2, 2)])


# --- results and the page ---


def everything():
    """Results of every finding: all that is claimed holds."""
    good = table(solved=0.9, best=0.9, excess=(0.5, 1.0), calls_a_turn=2.0, turns=4.0, alone_s=1.0, looks=2.0,
                 needless=0.1, blind=0.1)  # fmt: skip
    bad = table(solved=0.88, best=0.6, excess=1.5, calls_a_turn=1.0, turns=8.0, alone_s=2.0, looks=1.0, needless=0.5,
                blind=0.5)  # fmt: skip
    parity = {"parity_median": 1e-6, "parity_p999": 1e-3, "weight_effective_share": 1.0, "summary_tokens": 15.0}
    apart = {"parity_median": 1e-2, "parity_p999": 1e-1, "weight_effective_share": 0.9, "summary_tokens": 82.0}
    treated = {
        "effort": ("concave", "linear"),
        "parallel": ("effort",),
        "evidence": ("evidence",),
        "precision": ("both",),
    }
    groups = [[1000 * 2**step, 1 + group % 2, min(16, 2 * step + group), 16] for step in range(7) for group in range(4)]
    found = []
    for seed in (1, 2, 3):
        for key, arms in treated.items():
            for arm in FINDINGS[key].arms:
                ours = arm in arms
                found.append(result(key, arm, seed, after=good if ours else bad, figures=parity if ours else apart))
        found.append(result("scaling", "trained", seed, before=bad, after=good, groups=groups))
        for place, arm in enumerate(FINDINGS["pretraining"].arms):
            nll = {"imitation_nll": 1.0 - 0.2 * place + 0.01 * seed}
            found.append(
                result("pretraining", arm, seed, after=table(solved=0.3 + 0.2 * place - 0.01 * seed), figures=nll)
            )
        for arm, solved in (("unlimited", 1.0), ("prompted", 0.5), ("self", 0.8)):
            found.append(
                result("summary", arm, seed, after=table(solved=solved), figures=parity if arm == "self" else apart)
            )
    return found


def test_without_results_every_finding_is_not_run_yet():
    text = page([])
    assert text.count("**Not run yet.**") == len(FINDINGS) == 7
    assert text.count("| not run yet |") == 7
    assert not [key for key, finding in FINDINGS.items() if figure(key, finding, {})]


def test_every_claim_is_told_with_what_was_found_of_it():
    text = page(everything())
    assert "Not run yet" not in text
    assert text.count("**Reproduced**, with 3 seeds.") == 7
    assert "Not reproduced" not in text
    assert "The mean rises" in text
    assert "Rank correlation of loss and solve rate: -1.00 over 9 runs" in text
    for key in FINDINGS:
        assert f"findings/{key}.svg" in text


def test_what_was_not_reproduced_is_said_plainly():
    worse = [
        result("evidence", arm, seed, after=table(solved=0.9, looks=1.0, needless=level, blind=0.1))
        for seed in (1, 2, 3)
        for arm, level in (("none", 0.1), ("evidence", 0.4))
    ]
    text = page(worse)
    assert "**Not reproduced**: reads and searches before the first edit; needless edits; files edited blindly." in text
    assert "**the other way round**" in text
    assert "**not shown**" in text


def test_a_seed_that_one_arm_lacks_does_not_count():
    found = [one for one in everything() if not (one.finding == "effort" and one.arm == "linear" and one.seed > 1)]
    assert seeds_of(FINDINGS["effort"], arms_of("effort", found)) == [1]
    assert "Every arm has 1 of three seeds." in page(found)


def test_figures_are_well_formed_and_hold_what_was_found():
    found = everything()
    for key, finding in FINDINGS.items():
        tree = ElementTree.fromstring(figure(key, finding, arms_of(key, found)))
        texts = [node.text for node in tree.iter("{http://www.w3.org/2000/svg}text")]
        circles = [*tree.iter("{http://www.w3.org/2000/svg}circle")]
        if finding.plot == "effects":
            assert {effect.title for effect in finding.effects} <= set(texts)
            assert len(circles) == 4 * len(finding.effects)
        else:
            assert len(circles) > 9


def test_a_frame_has_room_for_points_that_are_alike():
    ElementTree.fromstring(plots.frame([plots.Series("s", [(1.0, 0.0)])], "t", "x", "y"))


def test_a_result_is_read_as_it_was_written(tmp_path):
    one = result("effort", "none", 2, after=table(solved=0.5, excess=None), groups=[[1, 2, 3, 4]], figures={"a": 1.5})
    written = save(one, tmp_path)
    assert written == path("effort", "none", 2, tmp_path)
    assert load(tmp_path) == [one]
    assert written.read_text().count("\n") < 40


def test_a_result_of_no_finding_is_refused(tmp_path):
    save(result("effort", "none"), tmp_path).rename(tmp_path / "x.json")
    (tmp_path / "x.json").write_text((tmp_path / "x.json").read_text().replace('"none"', '"some"'))
    with pytest.raises(ValueError, match="of no finding"):
        load(tmp_path)


def test_committed_results_are_of_arms_that_there_are():
    for one in load():
        assert path(one.finding, one.arm, one.seed).is_file()
        assert one.after
        assert one.command
        assert one.machine


def test_every_arm_names_runs_and_every_chain_begins_with_nothing():
    for finding in FINDINGS.values():
        for names in finding.arms.values():
            for name in names:
                assert RECIPES[chain(name)[0]].after is None
                assert RECIPES[name].file
    assert chain("parallel-effort-alone") == ["base", "manners", "parallel-effort", "parallel-effort-alone"]


def test_effects_name_arms_that_there_are():
    for finding in FINDINGS.values():
        for effect in finding.effects:
            assert {effect.treated.partition(":")[0], effect.untreated.partition(":")[0]} <= set(finding.arms)


def test_a_long_horizon_that_was_not_run_is_told(tmp_path):
    assert [folder.name for folder in long_horizon.missing(tmp_path, 2)] == ["unlimited-2", "prompted-2", "self-2"]
    (tmp_path / "self-2").mkdir()
    (tmp_path / "self-2/summary.json").write_text("{}")
    assert len(long_horizon.missing(tmp_path, 2)) == 2


# --- reading ---


def ended(task, attempt, outcome, purpose="after/main", **parts):
    known = dict.fromkeys(("looks", "reads", "writes", "needless", "blind"), 0.0)
    score = {"reward": "chores/measures", "parts": {**known, "bugs": 1.0, "excess": 2.0, **parts}}
    key = {"task_id": task, "attempt": attempt, "stage": "rl", "moment": ""}
    stats = {"calls": 4.0, "turns": 3.0, "tokens": 100.0, "wall_s": 2.0, "parallel_width": 4 / 3}
    verdict = {"outcome": outcome, "cause": None}
    return {"event": "EpisodeEnded", "purpose": purpose, "result": {
        "key": key, "verdict": verdict, "scores": [{"reward": "x", "parts": {}}, score], "stats": stats}}  # fmt: skip


def events(folder, *found):
    (folder / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in found))
    return folder


def test_tables_are_means_over_attempts_and_voids_are_none(tmp_path):
    run = events(
        tmp_path,
        ended("a-path-1-0", 0, "solved", looks=1.0, excess=9.0),
        ended("a-path-1-0", 0, "solved", looks=1.0),  # made again after an interruption
        ended("a-path-1-0", 1, "failed", looks=3.0),
        ended("a-path-1-0", 2, "void"),
        ended("b-path-1-0", 0, "failed"),
        ended("a-path-1-0", 0, "failed", "before/main"),
        ended("a-path-1-0", 0, "failed", "rl"),
    )
    found = reading.evaluation(run, "after")
    assert (found["a-path-1-0"]["solved"], found["a-path-1-0"]["best"]) == (0.5, 1.0)
    assert (found["a-path-1-0"]["looks"], found["a-path-1-0"]["excess"]) == (2.0, 2.0)
    assert (found["b-path-1-0"]["excess"], found["b-path-1-0"]["attempts"]) == (None, 1.0)
    assert reading.evaluation(run, "before")["a-path-1-0"]["solved"] == 0.0
    assert reading.alone(run) == {"a-path-1-0": 2.0, "b-path-1-0": 2.0}


def test_groups_are_told_with_the_tokens_up_to_their_step(tmp_path):
    def scored(number, task, episodes):
        return {"event": "GroupScored", "group": f"g{number}", "task_id": task, "episodes": episodes}

    def step(number):
        return {"event": "StepEnded", "stage": "rl", "step": number, "metrics": {}}

    run = events(
        tmp_path,
        ended("train-path-2-7", 0, "solved", "rl"),
        ended("train-path-2-7", 1, "failed", "rl"),
        scored(1, "train-path-2-7", ["rl-train-path-2-7-0", "rl-train-path-2-7-1"]),
        step(1),
        ended("train-path-1-8", 0, "solved", "rl"),
        ended("train-path-1-8", 0, "solved", "rl"),
        scored(2, "train-path-1-8", ["rl-train-path-1-8-0"]),
        step(2),
    )
    assert reading.groups(run) == [(200, 2, 1, 2), (300, 1, 1, 1)]


def test_figures_are_of_the_last_step_of_all_steps_and_of_the_imitation_before(tmp_path):
    def step(stage, number, **metrics):
        return {"event": "StepEnded", "stage": stage, "step": number, "metrics": metrics}

    imitation, last = tmp_path / "imitation", tmp_path / "last"
    imitation.mkdir(), last.mkdir()
    events(imitation, *(step("sft", number, nll=float(number)) for number in range(1, 11)))
    events(last, *(step("rl", n, parity_median=n / 10, weight_mean=float(n)) for n in (1, 2, 3)))
    found = reading.figures([imitation, last])
    assert found == pytest.approx({"parity_median": 0.3, "weight_mean": 2.0, "imitation_nll": 9.5})
    assert results.revision()
