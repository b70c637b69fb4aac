"""Both implementations are one Protocol: the same functions, the same parameters, the same defaults. Whatever is
registered with torch keeps what torch asks of ops: schema, shapes without values, and tracing with any number of rows.
"""

import inspect
import pkgutil
from importlib import import_module

import pytest
import torch

from composer_plugin_mxfp8 import fp8_1x128_pow2, kernels, reference
from composer_plugin_mxfp8.formats import BLOCK, COLUMNWISE, ROWWISE
from composer_plugin_mxfp8.ops import ALIGN, Ops, padded_rows

NAMES = sorted(name for name, member in vars(Ops).items() if inspect.isfunction(member) and not name.startswith("_"))

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
for found in pkgutil.iter_modules(kernels.__path__):  # an op is registered when its module is imported
    import_module(f"{kernels.__name__}.{found.name}")
REGISTERED = sorted(
    name.partition("::")[2] for name in torch._C._dispatch_get_all_op_names() if name.startswith("composer_mxfp8::")
)


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


def floats(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)


def ids(*rows):
    return torch.tensor(rows, device=DEVICE)


def raw(blocks):
    """As ops take operands: torch copies and compares bytes, but no floats of 8 bits."""
    return tuple(part.view(torch.uint8) for part in blocks)


@pytest.fixture(scope="module")
def inputs():
    """Small ones for every registered op."""
    x, tokens, share, ids_NK = floats(33, 64, dtype=torch.bfloat16), floats(3, 64), floats(3, 1), ids([1], [0], [1])
    plan = reference.plan(ids_NK, 2, BLOCK)
    pairs, h, dact = (plan.pairs_R, 1), floats(64, 64), floats(64, 32)
    few, rows, columns = (
        raw(make(of))
        for make, of in (
            (reference.quantize_rows, tokens),
            (reference.quantize_rows, floats(kernels.ALIGN, BLOCK)),
            (reference.quantize_columns, floats(kernels.ALIGN, BLOCK)),
        )
    )
    wide, tall = (raw(reference.quantize_weights(floats(2, BLOCK, BLOCK), block)) for block in (ROWWISE, COLUMNWISE))
    ends, side, bf16 = ids(0, kernels.ALIGN).int(), fp8_1x128_pow2.SIDE, torch.bfloat16
    coarse = fp8_1x128_pow2.quantize_rows(floats(side, side)), fp8_1x128_pow2.quantize_weights(floats(2, side, side))
    return {
        "quantize_rows": (x, True),
        **dict.fromkeys(("quantize_columns", "quantize_both", "quantize_squares"), (x[:32], False)),
        "dequantize": (*rows, *ROWWISE, bf16),
        "requantize_columns": rows,
        "swizzle": (rows[1],),
        "unswizzle": (reference.swizzle(rows[1]), *rows[1].shape),
        "plan": (ids_NK, 2, BLOCK),
        "gather_quantize": (tokens, *pairs, share, True),
        "gather_quantize_both": (tokens, *pairs, None, True),
        **dict.fromkeys(("gather_rows", "gather_columns", "gather_both"), (*few, *pairs)),
        "combine": (h, plan.rows_NK, share, bf16),
        "combine_backward": (tokens, h, plan.pairs_R, share),
        **dict.fromkeys(("swiglu_quantize", "swiglu_quantize_both"), (h, True)),
        "swiglu_backward": (dact, h, True),
        "swiglu_backward_weighted": (dact, h, plan.pairs_R, share, True),
        "route": (floats(3, 8), 2, None, True, True),
        "grouped_mm": (*rows, *wide, ends, bf16),
        "grouped_dgrad": (*rows, *tall, ends, bf16),
        "grouped_wgrad": (*columns, *columns, ends, torch.float32),
        "decode_mm": (floats(1, BLOCK), ids(1), *wide, bf16),
        "quantize_rows_1x128": (floats(4, side),),
        "promoted_mm": (*raw(coarse[0]), *raw(coarse[1]), ends, bf16),
        "grouped_product": (floats(64, 32), floats(2, 32, 16), ids(0, 64).int()),
    }


@pytest.mark.parametrize("name", REGISTERED)
def test_an_op_keeps_what_torch_asks_of_ops(name, inputs):
    torch.library.opcheck(getattr(torch.ops.composer_mxfp8, name).default, inputs[name])
