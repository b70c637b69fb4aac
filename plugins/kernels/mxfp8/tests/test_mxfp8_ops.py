"""Both implementations are one Protocol: the same functions, the same parameters, the same defaults."""

import inspect

import pytest

from composer_plugin_mxfp8 import kernels, reference
from composer_plugin_mxfp8.ops import ALIGN, Ops, padded_rows

NAMES = sorted(name for name, member in vars(Ops).items() if inspect.isfunction(member) and not name.startswith("_"))


@pytest.mark.parametrize("module", [kernels, reference], ids=["kernels", "reference"])
@pytest.mark.parametrize("name", NAMES)
def test_a_module_has_each_op_as_the_protocol_states_it(module, name):
    stated = list(inspect.signature(getattr(Ops, name)).parameters.values())[1:]
    found = list(inspect.signature(getattr(module, name)).parameters.values())
    assert [(p.name, p.default, p.kind) for p in found] == [(p.name, p.default, p.kind) for p in stated]


@pytest.mark.parametrize("module", [kernels, reference], ids=["kernels", "reference"])
def test_a_module_exports_the_ops_and_what_rows_are_padded_to(module):
    assert all(hasattr(module, name) for name in NAMES) and (module.ALIGN, module.FORWARD_ALIGN) == (ALIGN, ALIGN)


@pytest.mark.parametrize(("pairs", "experts", "align", "rows"), [(0, 8, 128, 0), (1, 8, 128, 128), (9, 2, 4, 12)])
def test_the_bound_of_padded_rows_is_reached_and_never_passed(pairs, experts, align, rows):
    assert padded_rows(pairs, experts, align) == rows
    worst = max(
        sum(-(-part // align) * align for part in (first, pairs - first)) for first in range(pairs + 1)
    )  # of all ways to share pairs among two experts
    assert worst <= padded_rows(pairs, max(2, experts), align)
