"""The set as a whole: thin, complete, and light enough to be listed whole beside an outcome."""

from composer_core.hookspecs import RunView
from composer_core.records import resolve
from composer_plugin_behavior.config import RubricConfig
from composer_plugin_behavior.plugin import composer_check, composer_rewards
from composer_testing.contracts.hook_modules import HookModuleContract

NAMES = {
    "effort", "parallelism", "broken_calls", "todos", "evidence", "lints", "claims", "diff", "terminal_only", "rubric",
}  # fmt: skip


class TestHookModule(HookModuleContract):
    module = "composer_plugin_behavior.plugin"


def test_all_of_them_together_stay_below_an_outcome_of_weight_one():
    specs = list(composer_rewards())
    assert {spec.name for spec in specs} == NAMES
    assert sum(spec.weight * (spec.range[1] - spec.range[0]) for spec in specs) < 0.7
    assert not any(spec.outcome for spec in specs)


def test_the_docstring_of_each_begins_with_its_formula_and_names_its_source():
    """A cost is minus something; a bonus says of what it is, and when it is 0."""
    for spec in composer_rewards():
        text = resolve(spec.function).__doc__
        formula = text.partition("\n")[0]
        assert formula.startswith("-") if spec.range == (-1.0, 0.0) else "; 0 " in formula, spec.name
        assert "Source:" in text, spec.name


def test_a_judges_key_that_is_not_there_is_told_before_anything_is_built(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "k")
    monkeypatch.delenv("NO_KEY", raising=False)
    names = ("JUDGE_KEY", "NO_KEY", "")
    judges = [RubricConfig(aspect="?", url="http://x", model="m", key_env=name) for name in names]
    run = RunView(None, {"rewards": (("other/other", None), *(("behavior/rubric", judge) for judge in judges))})
    (found,) = composer_check(run)
    assert found.where == "rewards[2].key_env"
    assert "NO_KEY" in found.fix
