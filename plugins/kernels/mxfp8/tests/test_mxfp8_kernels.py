"""Every memory-bound kernel gives the bytes of the plain torch reference: on a GPU if there is one, else interpreted.

An exponential's last bit differs between libraries. Interpreted kernels take numpy's, so the reference is given that
one too; on a GPU the few bytes that land on the other side of a rounding are counted.
"""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from composer_plugin_mxfp8 import formats, kernels, reference
from composer_plugin_mxfp8.kernels import numerics, quantize
from composer_plugin_mxfp8.ops import Blocks, Plan

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PATHS = [False, True] if DEVICE.type == "cuda" else [False]
"""Whether conversions are instructions; the interpreter has integers only."""
DTYPES = [torch.bfloat16, torch.float32]
SCALINGS = ["rceil", "floor"]
BLOCKS = [(1, 32), (32, 1), (32, 32)]
ROUTINGS = {
    "even": (13, 3, 8),
    "few": (9, 2, 3),
    "one token": (1, 2, 8),
    "one expert": (33, 1, 1),
    "all to one expert": (9, 2, 3),
    "no token": (0, 2, 8),
    "more pairs than a chunk": (700, 2, 5),
    "many experts": (20, 4, 72),
}
GATHERED = ["few", "all to one expert", "no token"]


def random(*shape, dtype=torch.float32, seed=0):
    source = torch.Generator().manual_seed(seed)
    size = torch.exp2(torch.randint(-30, 30, (shape[0], *[1] * (len(shape) - 1)), generator=source).float())
    return (torch.randn(shape, generator=source) * size).to(DEVICE, dtype)


def broken(*shape, dtype=torch.float32):
    """With zeros, subnormals, NaN and infinities in blocks of their own."""
    x = random(*shape, dtype=dtype)
    x[0, :32], x[1] = 0, 2.0**-130
    x[2, 5], x[33, 40], x[-1, -1] = torch.nan, torch.inf, -torch.inf
    return x


def routed(case, *, skewed=False):
    tokens, chosen, experts = ROUTINGS[case]
    source = torch.Generator().manual_seed(1)
    scores = torch.rand(tokens, experts, generator=source)
    if skewed:
        scores[:, 0] += 1
    ids = scores.topk(chosen).indices.to(DEVICE)
    if case == "all to one expert":
        ids[:] = 1
    return ids, torch.rand(tokens, chosen, generator=source).to(DEVICE), experts


def same(ours, theirs):
    """Equal bytes, whatever is compared."""
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype and ours.device == theirs.device
    if ours.dtype == torch.float8_e4m3fn:
        ours, theirs = ours.view(torch.uint8), theirs.view(torch.uint8)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def same_blocks(ours, theirs):
    same(ours.scale, theirs.scale)
    same(ours.data, theirs.data)


@pytest.fixture
def as_exact_as_exponentials(monkeypatch):
    """How blocks behind a sigmoid compare: the same bytes, but for one in a thousand where a GPU takes its own exp."""
    if DEVICE.type == "cuda":
        return few_differ

    def sigmoid(x):
        small = torch.from_numpy(np.exp(-x.abs().numpy()))
        return torch.where(x >= 0, 1.0, small) / (1.0 + small)

    monkeypatch.setattr(torch, "sigmoid", sigmoid)
    return same_blocks


def few_differ(ours: Blocks, theirs: Blocks, share=1e-3):
    for mine, other in zip(ours, theirs, strict=True):
        assert float((mine.view(torch.uint8) != other.view(torch.uint8)).float().mean()) <= share


@triton.jit
def convert(x, e4m3, bf16, back, NATIVE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at)
    code = numerics.encode(value, NATIVE)
    tl.store(e4m3 + at, code)
    tl.store(bf16 + at, numerics.bf16_bits(value, NATIVE))
    tl.store(back + at, numerics.decode(code, NATIVE))


@pytest.mark.parametrize("native", PATHS)
def test_conversions_give_the_bits_of_torch(native):
    """All bf16 values, and fp32 patterns around and between the roundings of both formats."""
    whole = torch.arange(65536, dtype=torch.int32) << 16
    source = torch.Generator().manual_seed(0)
    near = torch.randint(116 << 23, 138 << 23, (65536,), generator=source).int()
    ties = (torch.randint(0, 0x7F80, (65536,), generator=source) << 16 | 0x8000).int()
    x = torch.cat([whole, near, -near, ties, ties + 1, ties - 1]).view(torch.float32).to(DEVICE)
    e4m3, bf16, back = (
        torch.empty(len(x), dtype=kind, device=DEVICE) for kind in (torch.uint8, torch.int16, torch.float32)
    )
    convert[(len(x) // 16384,)](x, e4m3, bf16, back, native, 16384)
    expected = formats.encode_e4m3(x)
    same(e4m3, torch.where(x.isnan(), formats.NAN_DATA, expected.view(torch.uint8)))
    same(back, torch.where(x.isnan(), torch.nan, expected.float()))
    same(bf16.view(torch.bfloat16), x.bfloat16())


@pytest.mark.parametrize("native", PATHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_quantizing_rows_columns_and_both_gives_the_bytes_of_the_reference(dtype, scaling, native, monkeypatch):
    monkeypatch.setattr(quantize, "native", lambda _: native)
    x = broken(96, 288, dtype=dtype)
    same_blocks(kernels.quantize_rows(x, scaling), reference.quantize_rows(x, scaling))
    same_blocks(kernels.quantize_columns(x, scaling), reference.quantize_columns(x, scaling))
    for ours, theirs in zip(kernels.quantize_both(x, scaling), reference.quantize_both(x, scaling), strict=True):
        same_blocks(ours, theirs)


@pytest.mark.parametrize("rows", [0, 1, 33])
def test_rows_are_quantized_whatever_their_number(rows):
    x = random(rows, 64, dtype=torch.bfloat16) if rows else torch.zeros(0, 64, device=DEVICE)
    same_blocks(kernels.quantize_rows(x), reference.quantize_rows(x))


def test_a_view_that_is_not_contiguous_is_quantized_as_its_values_stand():
    x = random(64, 96).T
    same_blocks(kernels.quantize_rows(x), reference.quantize_rows(x))


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("block", BLOCKS)
def test_expert_weights_are_quantized_and_dequantized_in_every_block(block, scaling):
    w = broken(3 * 64, 96, dtype=torch.bfloat16).view(3, 64, 96)
    ours = kernels.quantize_weights(w, block, scaling)
    same_blocks(ours, reference.quantize_weights(w, block, scaling))
    for dtype in DTYPES:
        same(kernels.dequantize(ours, block, dtype), reference.dequantize(ours, block, dtype))


@pytest.mark.filterwarnings("ignore:overflow encountered")  # the largest scale times the largest value is infinite
@pytest.mark.parametrize("dtype", DTYPES)
def test_dequantizing_is_right_for_every_scale_and_data_byte(dtype):
    data = torch.arange(256, device=DEVICE).to(torch.uint8).repeat(256, 1).view(torch.float8_e4m3fn)
    scale = torch.arange(256, device=DEVICE).to(torch.uint8)[:, None].expand(256, 8).contiguous()
    every = Blocks(data, scale)
    same(kernels.dequantize(every, (1, 32), dtype), reference.dequantize(every, (1, 32), dtype))


def test_rows_to_columns_are_the_bytes_of_quantizing_the_dequantized():
    rows = reference.quantize_rows(broken(96, 160))
    ours = kernels.requantize_columns(rows)
    same_blocks(ours, reference.requantize_columns(rows))
    plain = random(96, 160) * 2.0**-60
    rows = reference.quantize_rows(plain / plain.abs().amax(1, keepdim=True))
    again = kernels.dequantize(kernels.requantize_columns(rows), (32, 1), torch.float32)
    same(again, reference.dequantize(rows, (1, 32), torch.float32))  # nothing underflows here, so nothing changes


@pytest.mark.parametrize("shape", [(128, 4), (200, 7), (3, 130, 5), (2, 1, 17)])
def test_swizzling_equals_the_reference_and_comes_back(shape):
    scale = torch.randint(0, 256, shape, dtype=torch.uint8, device=DEVICE)
    same(kernels.swizzle(scale), formats.swizzle(scale))
    same(kernels.swizzle(scale.mT), formats.swizzle(scale.mT))
    same(kernels.unswizzle(formats.swizzle(scale), *shape[-2:]), scale)


@pytest.mark.parametrize("case", ROUTINGS)
@pytest.mark.parametrize("skewed", [False, True], ids=["even", "skewed"])
def test_a_plan_sorts_pairs_by_expert_and_pads_each(case, skewed):
    ids_NK, _, experts = routed(case, skewed=skewed)
    for align in (1, 32):
        plan = kernels.plan(ids_NK, experts, align)
        for ours, theirs in zip(plan_parts(plan), plan_parts(reference.plan(ids_NK, experts, align)), strict=True):
            same(ours, theirs)
        rows_P, pairs = plan.rows_NK.flatten().long(), ids_NK.numel()
        assert plan.pairs_R[rows_P].tolist() == list(range(pairs))
        assert int((plan.pairs_R >= 0).sum()) == pairs
        expert_P = torch.searchsorted(plan.ends_E, rows_P.int(), right=True)
        assert expert_P.tolist() == ids_NK.flatten().tolist()
        assert not (plan.ends_E % align).any() and int(plan.ends_E[-1]) <= len(plan.pairs_R)


def plan_parts(plan: Plan):
    return plan.pairs_R, plan.rows_NK, plan.ends_E


@pytest.mark.parametrize("case", GATHERED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gathered_rows_are_quantized_as_the_reference_does_and_padding_is_zero(case, dtype):
    ids_NK, weights_NK, experts = routed(case)
    plan = reference.plan(ids_NK, experts, 32)
    x_ND = random(max(1, len(ids_NK)), 160, dtype=dtype)[: len(ids_NK)]
    ours = kernels.gather_quantize(x_ND, plan)
    same_blocks(ours, reference.gather_quantize(x_ND, plan))
    assert not ours.data[plan.pairs_R < 0].view(torch.uint8).any() and not ours.scale[plan.pairs_R < 0].any()
    tokens = reference.quantize_rows(x_ND)
    same_blocks(kernels.gather_rows(tokens, plan), ours)
    columns = reference.requantize_columns(ours)
    for found, expected in zip(kernels.gather_both(tokens, plan), (ours, columns), strict=True):
        same_blocks(found, expected)
    same_blocks(kernels.gather_columns(tokens, plan), columns)
    both = kernels.gather_quantize_both(x_ND, plan, "floor", weights_NK)
    for mine, theirs in zip(both, reference.gather_quantize_both(x_ND, plan, "floor", weights_NK), strict=True):
        same_blocks(mine, theirs)


@pytest.mark.parametrize("case", [*GATHERED, "one token"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_combining_reads_no_padding_and_adds_in_the_order_of_the_reference(case, dtype):
    ids_NK, weights_NK, experts = routed(case)
    plan = reference.plan(ids_NK, experts)
    out_RD = random(max(1, len(plan.pairs_R)), 96, dtype=dtype)[: len(plan.pairs_R)]
    out_RD[plan.pairs_R < 0] = torch.nan
    for result in DTYPES:
        ours, theirs = (module.combine(out_RD, plan, weights_NK, result) for module in (kernels, reference))
        same(ours, theirs)
        same(kernels.scatter_rows(out_RD, plan, result), reference.scatter_rows(out_RD, plan, result))
        assert not ours.isnan().any()


@pytest.mark.parametrize("case", GATHERED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_combining_are_zero_on_padding_and_exact_elsewhere(case, dtype):
    ids_NK, weights_NK, experts = routed(case)
    plan = reference.plan(ids_NK, experts, 32)
    out_RD = random(max(1, len(plan.pairs_R)), 160, dtype=dtype)[: len(plan.pairs_R)]
    out_RD[plan.pairs_R < 0] = torch.nan
    dout_ND = random(max(1, len(ids_NK)), 160, dtype=dtype, seed=2)[: len(ids_NK)]
    ours, theirs = (module.combine_backward(dout_ND, out_RD, plan, weights_NK) for module in (kernels, reference))
    same(ours[0], theirs[0])
    assert not ours[0][plan.pairs_R < 0].any()
    scale_NK = out_RD.float().norm(dim=1)[plan.rows_NK.long()] * dout_ND.float().norm(dim=1)[:, None]
    assert ((ours[1] - theirs[1]).abs() <= 1e-6 * scale_NK).all()


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_swiglu_is_quantized_as_if_it_had_been_stored(dtype, scaling, as_exact_as_exponentials):
    h_R2F = (torch.randn(64, 2 * 160, generator=torch.Generator().manual_seed(0)) * 4).to(DEVICE, dtype)
    h_R2F[3, 7], h_R2F[40, 200] = torch.nan, torch.inf
    as_exact_as_exponentials(kernels.swiglu_quantize(h_R2F, scaling), reference.swiglu_quantize(h_R2F, scaling))
    both = (module.swiglu_quantize_both(h_R2F, scaling) for module in (kernels, reference))
    for ours, theirs in zip(*both, strict=True):
        as_exact_as_exponentials(ours, theirs)


def test_extreme_gates_neither_overflow_nor_become_nan(as_exact_as_exponentials):
    gates = torch.tensor([-1e30, -1000.0, -90.0, -20.0, 0.0, 20.0, 90.0, 1000.0], device=DEVICE).repeat(4)
    h_R2F = torch.cat([gates, torch.ones_like(gates)]).repeat(32, 1)
    as_exact_as_exponentials(kernels.swiglu_quantize(h_R2F), reference.swiglu_quantize(h_R2F))
    for rows in kernels.swiglu_backward(torch.ones(32, 32, device=DEVICE), h_R2F):
        assert not (rows.scale == formats.NAN_SCALE).any()


@pytest.mark.parametrize(
    "case, dtype, scaling",
    [
        ("few", torch.bfloat16, "rceil"),
        ("few", torch.float32, "floor"),
        ("all to one expert", torch.bfloat16, "floor"),
        ("no token", torch.float32, "rceil"),
    ],
)
def test_gradients_of_swiglu_are_the_references_with_and_without_weights(
    case, dtype, scaling, as_exact_as_exponentials
):
    ids_NK, weights_NK, experts = routed(case)
    plan = reference.plan(ids_NK, experts, 32)
    source = torch.Generator().manual_seed(0)
    h_R2F = torch.randn(len(plan.pairs_R), 2 * 96, generator=source).to(DEVICE, dtype)
    dact_RF = torch.randn(len(plan.pairs_R), 96, generator=source).to(DEVICE, dtype)
    plain = (module.swiglu_backward(dact_RF, h_R2F, scaling) for module in (kernels, reference))
    weighted = (
        module.swiglu_backward_weighted(dact_RF, h_R2F, plan, weights_NK, scaling) for module in (kernels, reference)
    )
    for both in (plain, weighted):
        for ours, theirs in zip(*both, strict=True):
            if isinstance(ours, Blocks):
                as_exact_as_exponentials(ours, theirs)
            else:
                torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("normalize", [False, True], ids=["raw", "normalized"])
def test_routes_are_the_references(score, biased, normalize):
    source = torch.Generator().manual_seed(0)
    logits_NE = torch.randn(21, 72, generator=source).to(DEVICE)
    bias_E = torch.randn(72, generator=source).to(DEVICE) if biased else None
    ours, theirs = (module.route(logits_NE, 6, bias_E, score, normalize) for module in (kernels, reference))
    same(ours.ids_NK, theirs.ids_NK)
    same(ours.load_E, theirs.load_E)
    torch.testing.assert_close(ours.weights_NK, theirs.weights_NK, rtol=1e-5, atol=1e-7)
    assert int(ours.load_E.sum()) == ours.ids_NK.numel()


def test_equal_scores_go_to_the_lower_expert():
    ours, theirs = (module.route(torch.zeros(3, 8, device=DEVICE), 3) for module in (kernels, reference))
    assert ours.ids_NK.tolist() == theirs.ids_NK.tolist() == [[0, 1, 2]] * 3


def test_the_bias_moves_toward_an_even_load_and_rests_there():
    bias_E = torch.zeros(4, device=DEVICE)
    moved_E = kernels.balance_bias(bias_E, torch.tensor([8, 0, 4, 4], device=DEVICE), 0.5)
    assert moved_E.tolist() == [-0.5, 0.5, 0, 0]


def test_running_twice_gives_the_same_bytes():
    x = random(64, 256, dtype=torch.bfloat16)
    for first, second in zip(kernels.quantize_both(x), kernels.quantize_both(x), strict=True):
        same_blocks(first, second)


def test_a_scaling_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match="rceil"):
        kernels.quantize_rows(random(1, 32), "ceil")


def test_what_a_block_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="32x1 do not divide"):
        kernels.quantize_columns(random(33, 64))
