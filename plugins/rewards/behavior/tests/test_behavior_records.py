"""The set as a whole: thin, complete, and light enough to be listed whole beside an outcome."""

from composer_plugin_behavior.plugin import composer_rewards
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
    from composer_core.records import resolve

    for spec in composer_rewards():
        text = resolve(spec.function).__doc__
        assert "Source:" in text, spec.name
