"""The reward keeps its kind's contract, and pays small changes and none for nothing."""

import asyncio
from collections.abc import Mapping

import pytest

from composer_core import File, Patch, RewardSpec
from composer_plugin_workshop.plugin import composer_rewards
from composer_plugin_workshop.small_patch import small_patch
from composer_testing.contracts.rewards import RewardContract, Situation
from composer_testing.fakes.rooms import rooms_of

TEN = "".join(f"line {number}\n" for number in range(10))
ROOMS = rooms_of({"a.py": TEN, "b.py": TEN})


def writes(**texts: str) -> Patch:
    return Patch(tuple(File(f"{name}.py", text.encode()) for name, text in texts.items()))


class TestSmallPatch(RewardContract):
    def build(self) -> RewardSpec:
        (spec,) = composer_rewards()
        return spec

    def situations(self) -> Mapping[str, Situation]:
        patches = {
            "nothing": (Patch(), 0.0),
            "one line of ten": (writes(a=TEN.replace("line 3", "other")), 0.9),
            "all lines": (writes(a="other\n" * 10), 0.0),
            "one line of two files": (writes(a=TEN.replace("line 3", "x"), b=TEN.replace("line 4", "y")), 0.9),
            "a file taken away": (Patch(deletes=("a.py",)), 0.0),
            "a new file": (writes(c="new\n"), 0.0),
            "a new file that is empty": (writes(c=""), 0.0),
            "only order changed": (writes(a="".join(TEN.splitlines(keepends=True)[::-1])), 1.0),
            "one line more": (writes(a=TEN + "more\n"), 20 / 21),
        }
        return {name: Situation({"patch": patch, "grading": ROOMS}, value) for name, (patch, value) in patches.items()}


def test_the_patch_is_compared_with_the_pristine_file_and_not_with_itself():
    def opened():
        raise AssertionError("no room is needed for no patch")

    assert asyncio.run(small_patch(Patch(), opened)) == 0.0


@pytest.mark.parametrize("changed", range(10))
def test_the_fewer_lines_are_changed_the_more_is_paid(changed):
    text = "".join(f"{'other' if number < changed else 'line'} {number}\n" for number in range(10))
    assert asyncio.run(small_patch(writes(a=text), ROOMS)) == pytest.approx(1 - changed / 10)


def test_the_record_says_what_check_and_the_cache_of_scores_need():
    (spec,) = composer_rewards()
    assert (spec.pure, spec.outcome, spec.range) == (True, False, (0.0, 1.0))
