"""Nothing waits for the device: on tensors without values, all of the host's work runs, and reading one is an error.

Tensors of device "meta" have shapes alone. Launches are left out, so what remains is what the host does around them; on
a GPU each `.item()`, `.tolist()`, `.cpu()`, `nonzero` or indexing by a mask there would stall it.
"""

import sys

import pytest
import torch

from composer_plugin_mxfp8 import MXFP8Config, fp8_1x128_pow2, kernels, reference
from composer_plugin_mxfp8.experts import with_ops
from composer_plugin_mxfp8.formats import COLUMNWISE, ROWWISE
from composer_plugin_mxfp8.kernels import blackwell, decode, hopper, matmul, promoted

CONFIGS = [MXFP8Config(), MXFP8Config("rceil_hp_wgrad"), MXFP8Config(weight_block="1x32")]
MATRIX = {
    hopper: ("rows_by_weights", "weights_by_rows", "rows_by_rows"),
    blackwell: ("scaled_rows_by_weights", "scaled_rows_by_rows"),
    decode: ("weights_by_pairs",),
    promoted: ("promoted_rows_by_weights",),
}


HOST = {"launch": lambda *_, **__: None, "native": lambda _: True, "only_shapes": lambda: False}


class Nowhere:
    """In place of a kernel: takes any launch."""

    def __getitem__(self, grid):
        return lambda *args, **options: None


@pytest.fixture(params=["hopper", "torch's product", "blackwell", "reference"])
def ops(request, monkeypatch):
    """The host's side of every op as it runs on a GPU, in place of the fakes that tell shapes alone."""
    for name, module in list(sys.modules.items()):
        for part in HOST if name.startswith("composer_plugin_mxfp8.kernels.") else ():
            if hasattr(module, part):
                monkeypatch.setattr(module, part, HOST[part])
    for module, names in MATRIX.items():
        monkeypatch.setattr(module, "described", lambda *_: None)
        for name in names:
            monkeypatch.setattr(module, name, Nowhere())
    monkeypatch.setattr(matmul, "_scaled_products", lambda _: request.param == "blackwell")
    monkeypatch.setattr(matmul, "_torch_computes", lambda *_: request.param == "torch's product")
    return reference if request.param == "reference" else kernels


def floats(*shape):
    return torch.empty(shape, device="meta", dtype=torch.bfloat16, requires_grad=True)


def routing(tokens, chosen=2):
    return torch.empty(tokens, chosen, device="meta", dtype=torch.int64)


@pytest.mark.parametrize("tokens", [8, 3000])  # on either side of what decides for few rows
def test_the_layer_trains_and_samples_without_a_look_at_a_value(ops, tokens):
    for config in CONFIGS:
        x, share = floats(tokens, 128), floats(tokens, 2)
        inputs = x, routing(tokens), share, floats(8, 128, 128), floats(8, 128, 64)
        with_ops(*inputs, ops, config).sum().backward()
        assert x.grad.shape == x.shape and inputs[4].grad.shape == inputs[4].shape
        with torch.no_grad():
            for deterministic in (False, True):
                assert with_ops(*inputs, ops, config, deterministic).shape == x.shape


def test_what_the_layer_has_no_use_for_does_not_wait_either(ops):
    logits, out, h = floats(64, 8), floats(2048, 128), floats(2048, 256)
    with torch.no_grad():
        routes = ops.route(logits, 2, floats(8), "sigmoid")
        ops.balance_bias(floats(8), routes.load_E)
        plan, x = ops.plan(routes.ids_NK, 8), floats(64, 128)
        rows, _ = ops.gather_quantize_both(x, plan, weights_NK=routes.weights_NK)
        ops.gather_quantize(x, plan)
        ops.combine_backward(x, out[: len(plan.pairs_R)], plan, routes.weights_NK)
        ops.quantize_columns(out), ops.quantize_both(out), ops.swiglu_quantize_both(h), ops.swiglu_backward(out, h)
        ops.unswizzle(ops.swizzle(rows.scale), *rows.scale.shape)
        for block in (ROWWISE, COLUMNWISE):
            ops.dequantize(ops.quantize_weights(floats(2, 64, 64), block), block)


@pytest.mark.parametrize("ops", ["hopper"], indirect=True)
def test_the_recipe_of_128s_does_not_wait(ops, monkeypatch):
    monkeypatch.setattr(fp8_1x128_pow2, "kernels", lambda _: promoted)
    x, w = floats(256, 128), floats(2, 128, 128)
    fp8_1x128_pow2.grouped_linear(x, w, torch.empty(2, device="meta", dtype=torch.int32)).sum().backward()
    assert x.grad.shape == x.shape and w.grad.shape == w.shape


@pytest.mark.parametrize(
    "look", [torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.cpu, bool, torch.nonzero, lambda x: x[x > 0]]
)
def test_a_look_at_a_value_is_noticed(look):
    with pytest.raises((RuntimeError, NotImplementedError)):
        look(torch.empty(1, device="meta"))
