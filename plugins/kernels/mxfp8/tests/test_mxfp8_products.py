"""Matrix products against fp32 sums of the same quantized operands, on a GPU where there is one, else interpreted.

Every route is taken on any machine: which one a device would get is `matmul`'s to say, what each computes is tested
here. What a product has no business to read, rows behind the last expert's and weights of experts without rows, is NaN
in every test.
"""

import mxfp8_cases
import pytest
import torch

from composer_plugin_mxfp8 import fp8_1x128_pow2, kernels, reference
from composer_plugin_mxfp8.formats import COLUMNWISE, NAN_DATA, NAN_SCALE, ROWWISE
from composer_plugin_mxfp8.kernels import blackwell, decode, hopper, matmul, promoted
from composer_plugin_mxfp8.kernels.hopper import Tile
from composer_plugin_mxfp8.ops import Blocks

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROUTINGS = {
    "ragged": [128, 0, 256, 0],
    "all to one expert": [0, 256, 0],
    "one tile": [0, 128, 0],
    "no rows but spare ones": [0, 0, 0],
}
N, K, SPARE = 96, 160, 128
"""Widths that no tile divides; rows behind the last expert's end."""
LIMIT = {torch.float32: 1e-5, torch.bfloat16: 4e-3}
"""Relative Frobenius error: of sums in fp32, and after one rounding to bf16."""


class Operands:
    """Quantized operands of one routing in all orientations, with NaN in what is not to be read."""

    def __init__(self, routing):
        source = torch.Generator().manual_seed(0)
        counts = torch.tensor(ROUTINGS[routing])
        self.ends, self.used = counts.cumsum(0).int().to(DEVICE), int(counts.sum())

        def normal(*shape):
            return torch.randn(shape, generator=source).to(DEVICE)

        x, dy, w = normal(self.used + SPARE, K), normal(self.used + SPARE, N), normal(len(counts), N, K)
        self.x, self.dy, self.w = reference.quantize_rows(x), reference.quantize_rows(dy), weights(w, ROWWISE)
        self.tall, self.x_columns, self.dy_columns = weights(w, COLUMNWISE), columns(x), columns(dy)
        for data, scale in (self.x, self.dy, self.x_columns, self.dy_columns):
            data.view(torch.uint8)[self.used :] = NAN_DATA
            scale[self.used * len(scale) // len(data) :] = NAN_SCALE
        for data, scale in (self.w, self.tall):
            data.view(torch.uint8)[counts == 0] = NAN_DATA
            scale[counts == 0] = NAN_SCALE

    def rows(self, y):
        """Without what is undefined."""
        return y[: self.used]


def weights(w, block):
    return reference.quantize_weights(w, block)


def columns(x):
    return reference.quantize_columns(x)


def cut(blocks, rows):
    return Blocks(*(part[:rows] for part in blocks))


def bf16(blocks, block):
    return reference.dequantize(blocks, block, torch.bfloat16)


def close(ours, theirs, limit=None, name=""):
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype and theirs.isfinite().all(), name
    error = (ours.double() - theirs.double()).norm()
    assert float(error) <= (limit or LIMIT[ours.dtype]) * float(theirs.double().norm()), name


def forward_routes(it, dtype):
    """Every way to compute the forward, by name."""
    tile, small = Tile(128, 64, 64), Tile(128, 64, 128, stages=2)
    x, w = bf16(it.x, ROWWISE), bf16(it.w, ROWWISE)
    yield "both dequantized", hopper.grouped(x, w, it.ends, True, dtype, tile)
    yield "weights scaled on the way", hopper.grouped_swapped(x, *it.w, it.ends, dtype, tile)
    yield "four blocks a step", hopper.grouped_swapped(x, *it.w, it.ends, dtype, small)
    yield "scaled products", blackwell.grouped(*it.x, *it.w, it.ends, True, dtype, small)


@pytest.mark.parametrize(
    "routing, dtype", [*((routing, torch.float32) for routing in ROUTINGS), ("ragged", torch.bfloat16)]
)
def test_every_route_of_the_forward_sums_in_fp32(routing, dtype):
    it = Operands(routing)
    want = it.rows(reference.grouped_mm(it.x, it.w, it.ends, dtype))
    for name, y in forward_routes(it, dtype):
        close(it.rows(y), want, name=name)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_route_of_the_gradients_sums_in_fp32(routing):
    it, fp32 = Operands(routing), torch.float32
    want = it.rows(reference.grouped_dgrad(it.dy, it.tall, it.ends, fp32))
    tile, small = Tile(128, 64, 64), Tile(128, 64, 128, stages=2)
    close(it.rows(hopper.grouped(bf16(it.dy, ROWWISE), bf16(it.tall, COLUMNWISE), it.ends, False, fp32, tile)), want)
    close(it.rows(blackwell.grouped(*it.dy, *it.tall, it.ends, False, fp32, small)), want)
    want = reference.grouped_wgrad(it.dy_columns, it.x_columns, it.ends)
    close(hopper.wgrad(*(bf16(b, COLUMNWISE) for b in (it.dy_columns, it.x_columns)), it.ends, fp32, tile), want)
    close(blackwell.wgrad(*it.dy_columns, *it.x_columns, it.ends, fp32, small), want)


@pytest.mark.parametrize("dtype", LIMIT)
def test_ops_equal_the_reference_whichever_route_they_take(dtype, monkeypatch):
    it = Operands("one tile")
    for few in (0, 1 << 20):
        monkeypatch.setattr(matmul, "FEW_ROWS", few)
        y, want = (it.rows(ops.grouped_mm(it.x, it.w, it.ends, dtype)) for ops in (kernels, reference))
        close(y, want)
    dx, want = (it.rows(ops.grouped_dgrad(it.dy, it.tall, it.ends, dtype)) for ops in (kernels, reference))
    close(dx, want)
    dw, want = (ops.grouped_wgrad(it.dy_columns, it.x_columns, it.ends, dtype) for ops in (kernels, reference))
    close(dw, want)
    assert not dw[torch.tensor(ROUTINGS["one tile"]) == 0].any()


def test_a_broken_block_is_nan_in_its_row_alone():
    it = Operands("one tile")
    it.x.scale[5, 1] = NAN_SCALE
    for _, y in forward_routes(it, torch.float32):
        assert it.rows(y).isnan().any(1).nonzero().flatten().tolist() == [5]


def test_scales_of_any_size_are_exact():
    it = Operands("one tile")
    byte = torch.arange(128, device=DEVICE) % 120 + 4
    it.x.scale[:128] = byte.to(torch.uint8)[:, None]
    want = it.rows(reference.grouped_mm(it.x, it.w, it.ends, torch.float32))
    for _, y in forward_routes(it, torch.float32):
        close(it.rows(y) / want, torch.ones_like(want), 1e-3)


@pytest.mark.parametrize(
    "ids", [[3], [0, 1, 4, 2, 1, 3], [2] * 40, [4, 0] * 19], ids=["one", "shared", "one expert", "columns overflow"]
)
@pytest.mark.parametrize("share", [1, 2])
def test_decoding_equals_the_reference(ids, share):
    source = torch.Generator().manual_seed(2)
    w = weights(torch.randn(5, N, K, generator=source).to(DEVICE), ROWWISE)
    w.data.view(torch.uint8)[[expert for expert in range(5) if expert not in ids]] = NAN_DATA
    ids_P = torch.tensor(ids, device=DEVICE).repeat_interleave(share)
    x_MD = torch.randn(len(ids), K, generator=source).to(DEVICE, torch.bfloat16)
    want = reference.decode_mm(x_MD, ids_P, w, torch.float32)
    close(kernels.decode_mm(x_MD, ids_P, w, torch.float32), want)
    close(decode.decode(x_MD, ids_P, *w, torch.float32, Tile(64, 32, 64, warps=4)), want)


@pytest.mark.parametrize("ends", [[128, 128, 256], [0, 128, 128], [0, 0, 0]], ids=["ragged", "all to one", "none"])
def test_the_recipe_of_128s_is_the_sum_of_its_own_operands(ends):
    source = torch.Generator().manual_seed(3)
    ends, used = torch.tensor(ends, dtype=torch.int32, device=DEVICE), ends[-1]
    x = torch.randn(used + SPARE, 256, generator=source).to(DEVICE)
    w = torch.randn(3, 256, 256, generator=source).to(DEVICE)
    data, scale = promoted.quantize_rows_1x128(x)
    a = fp8_1x128_pow2.quantize_rows(x)
    assert torch.equal(data, a.data.view(torch.uint8)) and torch.equal(scale, a.scale)
    b = fp8_1x128_pow2.quantize_weights(w)
    data[used:] = NAN_DATA
    y = promoted.promoted_mm(data, scale, b.data.view(torch.uint8), b.scale, ends, torch.float32)
    values = reference.dequantize(a, (1, 128), torch.float32), reference.dequantize(b, (128, 128), torch.float32)
    want = torch.nn.functional.grouped_mm(values[0], values[1].transpose(1, 2), offs=ends)
    limit = 2e-3 if DEVICE.type == "cuda" else 1e-5  # sums of 128 keep 14 bits on Hopper
    close(y[:used], want[:used], limit)


def test_the_recipe_of_128s_has_gradients_of_its_precision():
    source = torch.Generator().manual_seed(4)
    ends = torch.tensor([128, 384], dtype=torch.int32, device=DEVICE)
    x, w = torch.randn(384, 256, generator=source).to(DEVICE), torch.randn(2, 128, 256, generator=source).to(DEVICE)
    found, want = [], []
    for product, into in ((fp8_1x128_pow2.grouped_linear, found), (exact, want)):
        leaves = [x.bfloat16().requires_grad_(), w.bfloat16().requires_grad_()]
        y = product(*leaves, ends)
        toward = torch.randn(y.shape, generator=torch.Generator().manual_seed(5)).to(y)
        into += [y.detach(), *torch.autograd.grad(y, leaves, toward)]
    for ours, theirs, decibels in zip(found, want, (27, 25, 34), strict=True):
        assert mxfp8_cases.decibels(theirs, ours) >= decibels


def exact(x, w, ends):
    return torch.nn.functional.grouped_mm(x.float(), w.float().transpose(1, 2), offs=ends)


def test_products_of_no_rows_have_no_rows():
    it = Operands("one tile")
    ends, x, dy = torch.zeros_like(it.ends), cut(it.x, 0), cut(it.dy, 0)
    assert kernels.grouped_mm(x, it.w, ends).shape == (0, N)
    assert kernels.grouped_dgrad(dy, it.tall, ends).shape == (0, K)
    assert not kernels.grouped_wgrad(dy, x, ends).any()
    assert kernels.decode_mm(torch.zeros(0, K, device=DEVICE), ends[:0].long(), it.w).shape == (0, N)


def test_rows_that_no_plan_padded_are_refused():
    it = Operands("one tile")
    with pytest.raises(ValueError, match="multiples of 128 and these are 100"):
        kernels.grouped_mm(cut(it.x, 100), it.w, it.ends)
