"""The format, byte for byte, against ml_dtypes and against a scalar model that shares no code with it.

The model works on tables of exact float64 values: a scale is found by searching, a value by choosing the nearest.
"""

import ml_dtypes
import numpy as np
import pytest
import torch

from composer_plugin_mxfp8 import formats
from composer_plugin_mxfp8.formats import MX, NAN_DATA, NAN_SCALE, dequantize, quantize

BLOCKS = [(1, 32), (32, 1), (32, 32)]
SCALINGS = ["rceil", "floor"]
POWERS = np.ldexp(1.0, np.arange(255) - 127)
E4M3 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
SIZES = E4M3[:127]  # codes 0 to 0x7E in rising order; 0x7F is NaN


def model_scale(amax, scaling):
    """E8M0 bytes from float64: the smallest scale that holds amax, or the power of two below it over 2^8."""
    if scaling == "rceil":
        byte = np.searchsorted(448 * POWERS, amax)
    else:
        byte = np.maximum(np.searchsorted(256 * POWERS, amax, side="right") - 1, 0)
    return np.where(np.isfinite(amax), byte, NAN_SCALE).astype(np.uint8)


def model_codes(x):
    """E4M3 bytes of the nearest value, ties to the even code, 448 for all that is larger."""
    size = np.minimum(np.abs(x), 448)
    above = np.clip(np.searchsorted(SIZES, size), 1, 126)
    low, high = size - SIZES[above - 1], SIZES[above] - size
    up = (high < low) | ((high == low) & (above % 2 == 0))
    code = np.where(up, above, above - 1) | np.where(np.signbit(x), 0x80, 0)
    return np.where(np.isnan(x), NAN_DATA, code).astype(np.uint8)


def model(x, block, scaling):
    """Data and scale bytes of a float64 matrix, one block after the other."""
    rows, cols = x.shape[0] // block[0], x.shape[1] // block[1]
    data, scale = np.zeros(x.shape, np.uint8), np.zeros((rows, cols), np.uint8)
    for row, col in np.ndindex(rows, cols):
        at = np.s_[row * block[0] : (row + 1) * block[0], col * block[1] : (col + 1) * block[1]]
        byte = model_scale(np.abs(x[at]).max(), scaling)
        scale[row, col] = byte
        data[at] = NAN_DATA if byte == NAN_SCALE else model_codes(x[at] / POWERS[byte])
    return data, scale


def every_bf16():
    return torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16).float()


def wild(rows, cols, seed=0):
    """Values over most of fp32's range, and exact zeros."""
    source = torch.Generator().manual_seed(seed)
    size = torch.exp2(torch.randint(-140, 120, (rows, 1), generator=source).float())
    x = torch.randn(rows, cols, generator=source) * size
    return x * (torch.rand(rows, cols, generator=source) > 0.1)


def test_every_scale_byte_decodes_as_ml_dtypes_and_the_definition_say():
    found = formats.decode_e8m0(torch.arange(256, dtype=torch.uint8)).numpy()
    theirs = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    np.testing.assert_array_equal(found, theirs)
    np.testing.assert_array_equal(found[:255], POWERS)
    assert np.isnan(found[255]) and found[0] > 0


def test_every_data_byte_decodes_as_ml_dtypes_says():
    data = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).view(8, 32)
    found = dequantize(MX(data, torch.full((8, 1), 127, dtype=torch.uint8)))
    np.testing.assert_array_equal(found.flatten().numpy(), E4M3.astype(np.float32))


def test_every_bf16_value_encodes_as_ml_dtypes_and_the_nearest_value_say():
    x = every_bf16()
    found = formats.encode_e4m3(x).view(torch.uint8).numpy()
    real = ~x.isnan().numpy()
    theirs = x.clamp(-448, 448).numpy()[real].astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    np.testing.assert_array_equal(found[real], theirs)
    np.testing.assert_array_equal(found[real], model_codes(x.double().numpy())[real])
    assert ((found[~real] & 0x7F) == NAN_DATA).all()


def test_random_fp32_patterns_encode_as_the_nearest_value_says():
    bits = torch.randint(-(2**31), 2**31, (200_000,), generator=torch.Generator().manual_seed(0)).int()
    near = (bits & 0x007FFFFF) | torch.randint(116, 138, bits.shape) << 23  # 2^-11 to 2^10: where roundings are
    x = torch.cat([bits.view(torch.float32), near.int().view(torch.float32)])
    x = x[~x.isnan()]
    np.testing.assert_array_equal(formats.encode_e4m3(x).view(torch.uint8).numpy(), model_codes(x.double().numpy()))


@pytest.mark.parametrize("scaling", SCALINGS)
def test_scales_of_every_bf16_magnitude_and_around_every_boundary_are_the_models(scaling):
    powers = torch.from_numpy(POWERS[:248]).float()
    near = [(size * powers).view(torch.int32) + step for size in (448, 256, 512, 1) for step in range(-4, 5)]
    amax = torch.cat([every_bf16()[:32768], torch.cat(near).view(torch.float32)])
    amax = amax[(amax >= 0) | amax.isnan()]
    expected = model_scale(amax.double().numpy(), scaling)
    np.testing.assert_array_equal(formats.scale_bytes(amax, scaling).numpy(), expected)
    assert expected[expected < NAN_SCALE].max() == {"rceil": 247, "floor": 246}[scaling]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_quantizing_gives_the_bytes_of_the_model(block, scaling):
    x = torch.cat([wild(64, 96), wild(64, 96, seed=1).T.reshape(64, 96)])
    x[40, 50], x[70, 3], x[100, 95] = torch.nan, torch.inf, -torch.inf
    mx = quantize(x, block, scaling)
    data, scale = model(x.double().numpy(), block, scaling)
    np.testing.assert_array_equal(mx.scale.numpy(), scale)
    np.testing.assert_array_equal(mx.data.view(torch.uint8).numpy(), data)


@pytest.mark.parametrize(
    ("values", "rceil", "floor", "codes"),
    [
        ([0.0], 0, 0, [0x00]),
        ([-0.0], 0, 0, [0x80]),
        ([448.0, 1.0], 127, 127, [0x7E, 0x38]),
        ([256.0], 127, 127, [0x78]),
        ([480.0], 128, 127, [0x77, 0x7E]),
        ([2.0**-149], 0, 0, [0x00]),
        ([2.0**-133, 2.0**-127], 0, 0, [0x08, 0x38]),
        ([3.3895313892515355e38], 247, 246, [0x78, 0x7E]),
        ([torch.nan, 1.0], 255, 255, [0x7F, 0x7F]),
        ([torch.inf, 1.0], 255, 255, [0x7F, 0x7F]),
        ([-torch.inf, -1.0], 255, 255, [0x7F, 0x7F]),
    ],
    ids=str,
)
def test_a_named_block_has_the_bytes_that_were_worked_out_by_hand(values, rceil, floor, codes):
    x = torch.zeros(1, 32)
    x[0, : len(values)] = torch.tensor(values)
    found = [quantize(x, (1, 32), scaling) for scaling in SCALINGS]
    assert [int(mx.scale) for mx in found] == [rceil, floor]
    if rceil == floor:
        assert found[0].data.view(torch.uint8)[0, : len(values)].tolist() == codes
    else:  # one value, a code for each scale
        assert [int(mx.data.view(torch.uint8)[0, 0]) for mx in found] == codes
    rest = found[0].data.view(torch.uint8)[0, len(values) :]
    assert (rest == (NAN_DATA if rceil == NAN_SCALE else 0)).all()


def test_rceil_never_clips_and_floor_does():
    x = torch.linspace(1, 2, 64 * 32).view(64, 32)
    worst = {scaling: ((dequantize(quantize(x, (1, 32), scaling)) - x) / x).abs().max() for scaling in SCALINGS}
    assert worst["rceil"] <= 2**-4 < worst["floor"] <= 2**-3


@pytest.mark.parametrize("block", BLOCKS)
def test_quantizing_what_was_quantized_changes_nothing(block):
    once = quantize(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)), block)
    twice = quantize(dequantize(once), block)
    assert torch.equal(dequantize(once), dequantize(twice))


@pytest.mark.parametrize(("scaling", "least_db"), [("rceil", 31.3), ("floor", 30.4)])
def test_a_gaussian_keeps_its_signal_to_noise_ratio(scaling, least_db):
    x = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))
    noise = dequantize(quantize(x, (1, 32), scaling)) - x
    assert 10 * torch.log10(x.square().sum() / noise.square().sum()) >= least_db


def test_what_a_block_does_not_divide_is_refused_with_both_shapes():
    with pytest.raises(ValueError, match=r"32x1 do not divide \[33, 64\]"):
        quantize(torch.zeros(33, 64), (32, 1))


def test_tensors_without_rows_have_scales_without_rows():
    mx = quantize(torch.zeros(0, 64))
    assert mx.data.shape == (0, 64) and mx.scale.shape == (0, 2) and dequantize(mx).shape == (0, 64)


def test_scales_are_the_same_bytes_for_other_libraries():
    mx = quantize(wild(4, 64))
    assert mx.e8m0.dtype == torch.float8_e8m0fnu and torch.equal(mx.e8m0.view(torch.uint8), mx.scale)


@pytest.mark.parametrize("shape", [(128, 4), (200, 7), (1, 1), (3, 130, 5)])
def test_a_swizzled_scale_stands_where_the_hardware_looks_for_it(shape):
    scale = torch.randint(1, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    swizzled = formats.swizzle(scale)
    rows, cols = shape[-2:]
    assert swizzled.shape == (*shape[:-2], -(-rows // 128), -(-cols // 4), 32, 4, 4)
    r, c = torch.meshgrid(torch.arange(rows), torch.arange(cols), indexing="ij")
    assert torch.equal(swizzled[..., r // 128, c // 4, r % 32, r % 128 // 32, c % 4], scale)
    assert int((swizzled != 0).sum()) == scale.numel()  # what pads is zero
    assert torch.equal(formats.unswizzle(swizzled, rows, cols), scale)


def test_a_swizzled_tensor_dequantizes_to_the_same_values():
    mx = quantize(wild(130, 160))
    swizzled = MX(mx.data, formats.swizzle(mx.scale), mx.block, "swizzled")
    assert torch.equal(dequantize(swizzled), dequantize(mx))
