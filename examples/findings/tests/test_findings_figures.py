"""What the page says follows from what was measured: on made-up results with known answers."""

import tomllib
from xml.etree import ElementTree

import findings
import pytest
from study import long_horizon
from study.curves import least_squares
from study.effects import interval, measured, pooled, signed
from study.findings import FINDINGS, Effect
from study.page import arms_of, figure, found, judge, page, seeds_of
from study.recipes import HERE, RECIPES, chain
from study.results import Result, load, path, runs_of, save
from study.running import Runs

from composer_core import statistics
from composer_core.errors import ConfigError

RESAMPLES = statistics.RESAMPLES


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
    known = {"revision": "abc", "machine": "m", "command": "c", "date": "2026-01-01"}
    runs = runs_of(finding, arm) if arm in FINDINGS[finding].arms else []
    made = {"seconds": dict.fromkeys(runs, 60.0), "recipe": Runs(HERE).expected(runs)}
    return Result(finding, arm, seed, **{**known, **made, **given})


def arms(**tables):
    """The same table for three seeds."""
    return {
        arm: {seed: result("effort", arm, seed, after=after) for seed in (1, 2, 3)} for arm, after in tables.items()
    }


EFFECT = Effect("e", "excess", "new", "old", -1)


def test_an_effect_is_treated_less_untreated_paired_by_task():
    one = measured(EFFECT, arms(new=table(excess=1.0), old=table(excess=1.5)))
    assert one.all.value == pytest.approx(-0.5)
    assert (one.all.low, one.all.high) == pytest.approx((-0.5, -0.5))
    assert one.tasks == 16
    assert [span.value for span in one.seeds.values()] == pytest.approx([-0.5] * 3)
    assert one.levels == pytest.approx((1.0, 1.5), abs=0.01)
    assert one.verdict == "holds"


@pytest.mark.parametrize(("value", "text"), [(-2e-19, "+0"), (0.12345, "+0.123"), (-2.69e-05, "-2.69e-05")])
def test_a_value_has_three_digits_and_no_rounding_error(value, text):
    assert signed(value) == text


def test_tasks_without_a_value_in_one_arm_have_no_difference():
    one = measured(EFFECT, arms(new=table(excess=(1.0, None)), old=table(excess=(1.5, 9.0))))
    assert one.tasks == 8
    assert one.levels[1] - one.levels[0] == pytest.approx(0.5)
    assert measured(EFFECT, arms(new=table(excess=None), old=table(excess=2.0))) is None
    assert measured(EFFECT, {}) is None


def test_levels_are_pooled_as_the_difference_is_where_seeds_have_other_tasks():
    both = arms(new=table(excess=1.0), old=table(excess=1.5))
    for seed in (1, 2):
        for task in ("t0", "t1", "t2"):
            both["new"][seed].after[task]["excess"] = 9.0
    both["old"][3] = result("effort", "old", 3, after=table(excess=(None, 1.5)))
    one = measured(EFFECT, both)
    assert one.all.value > 0.5
    assert one.levels[0] - one.levels[1] == pytest.approx(one.all.value)


def test_an_effect_may_be_of_easy_tasks_alone_or_of_easy_less_hard_ones():
    two = arms(new=table(excess=(0.5, 1.0)), old=table(excess=(2.0, 1.5)))
    easy = measured(Effect("e", "excess", "new", "old", -1, 1), two)
    less = measured(Effect("e", "excess", "new", "old", -1, 1, 2), two)
    assert easy.all.value == pytest.approx(-1.5)
    assert less.all.value == pytest.approx(-1.0)
    assert less.all.low <= less.all.value <= less.all.high
    assert less.seeds[1].value == pytest.approx(-1.0)
    assert less.verdict == "holds"
    two["new"][2] = result("effort", "new", 2, after=table(excess=(0.5, None)))
    assert [*measured(Effect("e", "excess", "new", "old", -1, 1, 2), two).seeds] == [1, 3]


def test_an_arm_may_be_compared_with_itself_before():
    one = {"new": {1: result("scaling", "new", before=table(solved=0.2), after=table(solved=0.6))}}
    assert measured(Effect("e", "solved", "new", "new:before", 1), one).all.value == pytest.approx(0.4)


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
    assert verdict(0, table(solved=0.2), table(solved=0.2)) == "open"
    assert verdict(None, high, low) == ""


@pytest.mark.parametrize(("sign", "worse"), [(1, 0.4), (0, 0.7)])
def test_the_other_way_round_and_no_worse_are_asked_of_each_seed_too(sign, worse):
    """In the mean the first is below 0, and the second is above."""
    mixed = arms(new=table(solved=0.4 if sign else 0.9), old=table(solved=0.8))
    assert measured(Effect("e", "solved", "new", "old", sign), mixed).verdict == ("fails" if sign else "holds")
    mixed["new"][2] = result("effort", "new", 2, after=table(solved=0.81 if sign else worse))
    assert measured(Effect("e", "solved", "new", "old", sign), mixed).verdict == "open"


def test_a_task_whose_attempts_were_all_void_but_for_those_that_ran_alone_is_in_what_is_of_these():
    both = arms(new=table(alone_s=1.0, solved=0.5), old=table(alone_s=2.0, solved=0.5))
    both["new"][1].after["t1"] = {"alone_s": 1.0}
    assert measured(Effect("e", "alone_s", "new", "old", -1), both).tasks == 16
    assert measured(Effect("e", "alone_s", "new", "old", -1, 2), both).tasks == 7
    assert measured(Effect("e", "solved", "new", "old", 0), both).tasks == 15


@pytest.mark.parametrize("level", [2.1, (1.0, 2.9)])
def test_one_seed_on_the_other_side_or_one_that_is_not_sure_leaves_it_open(level):
    mixed = arms(new=table(excess=1.0), old=table(excess=2.0))
    mixed["new"][2] = result("effort", "new", 2, after=table(excess=level))
    one = measured(EFFECT, mixed)
    assert one.all.high < 0
    assert one.verdict == "open"


def test_a_solve_rate_that_is_not_known_well_enough_is_open():
    noisy = {f"t{number}": {"bugs": 1.0, "solved": float(number % 2)} for number in range(8)}
    flat = {f"t{number}": {"bugs": 1.0, "solved": 0.5} for number in range(8)}
    assert measured(Effect("e", "solved", "new", "old", 0), arms(new=noisy, old=flat)).verdict == "open"


@pytest.mark.parametrize(("seeds", "verdict"), [((1, 2), "open"), ((1, 2, 3), "holds")])
def test_figures_of_runs_are_paired_by_seed_and_hold_with_three(seeds, verdict):
    one = measured(
        Effect("e", "figure:parity_median", "new", "old", -1),
        {
            "new": {seed: result("precision", "both", seed, figures={"parity_median": 0.1 * seed}) for seed in seeds},
            "old": {seed: result("precision", "sampler", seed, figures={"parity_median": 0.5}) for seed in seeds},
        },
    )
    assert (one.all.low, one.all.high) == pytest.approx((-0.4, 0.1 * seeds[-1] - 0.5))
    assert one.verdict == verdict


def test_seeds_are_pooled_by_task_and_intervals_grow_with_noise():
    assert pooled({1: {"a": 0.0, "b": 1.0}, 2: {"a": 1.0}}) == [0.5, 1.0]
    wide = interval([[0.0, 1.0] * 8], lambda groups: statistics.mean(groups[0]))
    narrow = interval([[0.4, 0.6] * 8], lambda groups: statistics.mean(groups[0]))
    assert wide[0] < narrow[0] < 0.5 < narrow[1] < wide[1]


def paged(results, remarks=None):
    return page(results, judge(results), remarks or {})


def drawn(key, results):
    return figure(key, judge(results)[key], arms_of(key, results))


def everything():
    """Results of every finding: all that is claimed holds."""
    good = table(solved=0.9, best=0.9, over=(0.5, 1.0), excess=1.0, width=2.0, turns=4.0, alone_s=1.0, looks=2.0,
                 needless=0.1, blind=0.1)  # fmt: skip
    bad = table(solved=0.88, best=0.6, over=1.5, excess=1.5, width=1.0, turns=8.0, alone_s=2.0, looks=1.0,
                needless=0.5, blind=0.5)  # fmt: skip
    linear = table(solved=0.9, over=1.0, excess=1.0)
    parity = {"parity_median": 1e-6, "parity_p999": 1e-3, "weight_effective_share": 1.0, "summary_tokens": 15.0}
    apart = {"parity_median": 1e-2, "parity_p999": 1e-1, "weight_effective_share": 0.9, "summary_tokens": 82.0}
    treated = {
        "effort": ("concave", "linear"),
        "parallel": ("effort",),
        "evidence": ("evidence",),
        "precision": ("both",),
    }
    groups = [
        [step, 1000 * 2**step, 1 + group % 2, step * (2 if step > 3 or group % 2 else 0), 16]
        for step in range(1, 8)
        for group in range(4)
    ]
    made = []
    for seed in (1, 2, 3):
        for key, arms in treated.items():
            for arm in FINDINGS[key].arms:
                ours = arm in arms
                after = linear if arm == "linear" else good if ours else bad
                made.append(result(key, arm, seed, after=after, figures=parity if ours else apart))
        made.append(result("scaling", "trained", seed, before=bad, after=good, groups=groups))
        for place, arm in enumerate(FINDINGS["pretraining"].arms):
            nll = {"imitation_nll": 1.0 - 0.2 * place + 0.01 * seed}
            made.append(
                result("pretraining", arm, seed, after=table(solved=0.3 + 0.2 * place - 0.01 * seed), figures=nll)
            )
        for arm, solved in (("unlimited", 1.0), ("prompted", 0.5), ("self", 0.8)):
            made.append(
                result("summary", arm, seed, after=table(solved=solved), figures=parity if arm == "self" else apart)
            )
    return made


def test_without_results_every_finding_is_not_run_yet():
    text = paged([])
    assert text.count("**Not run yet.**") == len(FINDINGS) == 7
    assert text.count("| not run yet |") == 7
    assert not [key for key in FINDINGS if drawn(key, [])]


def test_every_claim_is_told_with_what_was_found_of_it():
    text = paged(everything())
    assert "Not run yet" not in text
    assert text.count("**Reproduced**, with 3 seeds.") == 7
    assert "Not reproduced" not in text
    assert "| mean reward for each doubling of tokens | - | - | +" in text
    assert "| rank correlation of loss and solve rate | - | - | -1.00 over 9 runs, p = 0.005 |" in text
    for key in FINDINGS:
        assert f"findings/{key}.svg" in text


def test_what_was_not_reproduced_is_said_plainly():
    worse = [
        result("evidence", arm, seed, after=table(solved=0.9, looks=1.0, needless=level, blind=0.1))
        for seed in (1, 2, 3)
        for arm, level in (("none", 0.1), ("evidence", 0.4))
    ]
    text = paged(worse)
    assert "**Not reproduced**: reads and searches before the first edit; needless edits; files edited blindly." in text
    assert "**the other way round**" in text
    assert "**not shown**" in text
    assert "| +0.3, +0.3, +0.3 | 16 | **the other way round** |" in text
    assert "| (+0), (+0), (+0) | 16 | **not shown** |" in text, "a seed whose own interval holds 0 stands in brackets"
    red = [node for node in ElementTree.fromstring(drawn("evidence", worse)).iter() if node.get("class") == "not"]
    assert len(red) == 3


def test_a_seed_that_one_arm_lacks_does_not_count():
    made = [one for one in everything() if not (one.finding == "effort" and one.arm == "linear" and one.seed > 1)]
    assert seeds_of(FINDINGS["effort"], arms_of("effort", made)) == [1]
    assert "Of three seeds 1 has every arm." in paged(made)
    apart = [one for one in made if one.finding != "effort" or (one.arm == "linear") == (one.seed == 1)]
    section = paged(apart).partition("## 2. ")[2].partition("## 3. ")[0]
    assert "**Reproduced**" not in section
    assert "Of three seeds 0 have every arm." in section


def test_a_claim_without_results_is_not_left_out_of_the_count():
    made = [one for one in everything() if one.finding == "effort" and one.arm != "linear"]
    asked = sum(effect.sign is not None for effect in FINDINGS["effort"].effects)
    assert f"| 0 | {asked - 1} of {asked} |" in paged(made)


def test_revisions_are_told_by_arm_where_arms_differ_in_them():
    made = [one for one in everything() if one.finding == "evidence"]
    assert "revision abc, " in paged(made)
    newer = [
        result("evidence", one.arm, one.seed, after=one.after, revision="abc, def" if one.arm == "none" else "abc")
        for one in made
    ]
    assert "revision abc, def (none); abc (evidence), " in paged(newer)


def test_what_a_finding_asks_beside_effects_and_has_no_result_of_is_told():
    made = everything()
    for one in made:
        one.groups[:] = [[1, 0, 1, 8, 16]]  # a single step, before which nothing was spent
        one.figures.pop("imitation_nll", None)
    text = paged(made)
    assert "**Not measured yet**: mean reward for each doubling of tokens; best of 16 for each doubling" in text
    assert "loss after imitation, 4 against 1; rank correlation of loss and solve rate." in text
    for key in ("scaling", "pretraining"):
        assert ElementTree.fromstring(drawn(key, made)) is not None


def test_a_curve_and_its_figure_are_of_groups_of_16():
    made = [one for one in everything() if one.finding == "scaling"]
    before = paged(made), drawn("scaling", made)
    made[0].groups.append([9, 1000, 1, 0, 8])
    assert (paged(made), drawn("scaling", made)) == before


def test_a_curve_that_does_not_rise_is_not_reproduced():
    made = everything()
    for one in made:
        one.groups[:] = [[step, tokens, bugs, 8, size] for step, tokens, bugs, _, size in one.groups]
    arms = arms_of("scaling", made)
    assert [one.verdict for one in found(FINDINGS["scaling"], arms)] == ["holds", "holds", "", "open", "open"]
    assert "**Not reproduced**: mean reward for each doubling of tokens; best of 16 for each" in paged(made)


def test_figures_are_well_formed_and_hold_what_was_found():
    made = everything()
    for key, finding in FINDINGS.items():
        tree = ElementTree.fromstring(drawn(key, made))
        texts = [node.text for node in tree.iter("{http://www.w3.org/2000/svg}text")]
        circles = [*tree.iter("{http://www.w3.org/2000/svg}circle")]
        if finding.plot == "effects":
            assert {effect.title for effect in finding.effects} <= set(texts)
            assert len(circles) == 4 * len(finding.effects)
            told = {"told": sum(effect.sign is None for effect in finding.effects), "not": 0}
            assert {name: sum(one.get("class") == name for one in circles) for name in told} == told
        else:
            assert len(circles) > 9
    scaling = ElementTree.fromstring(drawn("scaling", made))
    lines = [node for node in scaling.iter("{http://www.w3.org/2000/svg}path") if "fit" in node.get("class")]
    assert len(lines) == 3
    assert least_squares([(0.0, 1.0), (2.0, 5.0)]) == pytest.approx((2.0, 1.0))
    assert least_squares([(1.0, 1.0), (1.0, 5.0)]) is None


def test_a_result_is_read_as_it_was_written(tmp_path):
    one = result("effort", "none", 2, after=table(solved=0.5, excess=None), groups=[[1, 2, 3, 4]], figures={"a": 1.5})
    written = save(one, tmp_path)
    assert written == path("effort", "none", 2, tmp_path)
    assert load(tmp_path) == [one]
    assert written.read_text().count("\n") < 40


def test_a_result_of_no_finding_is_refused(tmp_path):
    save(result("effort", "none"), tmp_path).rename(tmp_path / "x.json")
    (tmp_path / "x.json").write_text((tmp_path / "x.json").read_text().replace('"none"', '"some"'))
    with pytest.raises(ConfigError, match=r"of no finding.*\n.*x\.json"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ('"seed": 1', '"seed": "one"', r"no result: .*invalid.*int.*seed"),
        ('"seed": 1', '"sead": 1', "no result: .*seed"),
        ('"after": {}', '"after": null', "no result: .*after"),
        ('"seed": 1', '"seed": 2', "of another arm or seed(.|\n)*effort-none-2.json"),
        (
            '"manners"',
            '"habits"',
            r"effort-none-1.json \(of the runs base, habits, effort-none; now base, manners, effort-none\)",
        ),
        ('"recipe": "', '"recipe": "0', r"effort-none-1.json \(of other settings\)(.|\n)*measures them again"),
        ("{", "", "no result: .*"),
    ],
)
def test_a_file_that_holds_something_else_is_refused(tmp_path, was, now, said):
    file = save(result("effort", "none"), tmp_path)
    assert was in file.read_text()
    file.write_text(file.read_text().replace(was, now, 1))
    with pytest.raises(ConfigError, match=said):
        load(tmp_path)


def test_what_we_think_is_of_findings_that_there_are_and_stands_under_them():
    remarks = tomllib.loads((HERE / "remarks.toml").read_text(encoding="utf-8"))
    assert remarks.keys() <= FINDINGS.keys()
    section = paged(everything(), {"effort": "Waste is waste."}).partition("## 2. ")[2].partition("## 3. ")[0]
    assert "a guess where no figure stands: Waste is waste." in section


def test_the_page_and_its_figures_are_what_the_committed_results_give(tmp_path, monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", RESAMPLES)
    assert findings.main(["--page", "--out", str(tmp_path)]) == 0
    for key in FINDINGS:
        assert (tmp_path / f"findings/{key}.svg").read_text() == (findings.DOCS / f"findings/{key}.svg").read_text()
    assert (tmp_path / "findings.md").read_text() == (findings.DOCS / "findings.md").read_text()


def test_committed_results_are_of_every_arm_and_three_seeds():
    found = {(one.finding, one.arm, one.seed) for one in load() if one.after and one.command and one.machine}
    assert found == {(key, arm, seed) for key, one in FINDINGS.items() for arm in one.arms for seed in (1, 2, 3)}


def test_every_run_has_a_file_and_every_chain_ends_with_its_arm():
    assert all((HERE / recipe.file).is_file() for recipe in RECIPES.values())
    assert {name for name, recipe in RECIPES.items() if recipe.after is None} == {"base", "base-one", "base-quarter"}
    assert chain("parallel-effort-alone-b")[1:] == ["manners-parallel", "parallel-effort", "parallel-effort-alone-b"]


def test_effects_name_arms_that_there_are():
    for finding in FINDINGS.values():
        for effect in finding.effects:
            assert {effect.treated.partition(":")[0], effect.untreated.partition(":")[0]} <= set(finding.arms)


def test_a_long_horizon_that_was_not_run_is_told(tmp_path):
    assert [folder.name for folder in long_horizon.missing(tmp_path, 2)] == ["unlimited-2", "prompted-2", "self-2"]
    (tmp_path / "self-2").mkdir()
    (tmp_path / "self-2/summary.json").write_text("{}")
    assert len(long_horizon.missing(tmp_path, 2)) == 2
