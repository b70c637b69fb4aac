"""The layer: how much it loses, what it keeps, when it quantizes its weights, and that both ways to compute agree."""

from functools import partial
from pathlib import Path

import pytest
import torch
from mxfp8_cases import ROUTINGS, decibels, dense, gradients, layer
from torch._dynamo.testing import CompileCounterWithBackend

from composer_core import BuildContext
from composer_core.errors import ConfigError
from composer_core.records import resolve
from composer_plugin_mxfp8 import (
    MXFP8Config,
    forget,
    implementation,
    kernels,
    mxfp8_experts,
    reference,
    values,
    weights,
)
from composer_plugin_mxfp8.experts import with_ops
from composer_plugin_mxfp8.fp8_experts import fp8_experts
from composer_plugin_mxfp8.ops import Blocks
from composer_plugin_mxfp8.plugin import composer_kernels
from composer_testing.contracts.hook_modules import HookModuleContract
from composer_testing.contracts.kernels import ExpertsContract

SPEC, COARSE = composer_kernels()
CONFIGS = [MXFP8Config(), MXFP8Config("rceil_hp_wgrad"), MXFP8Config("floor"), MXFP8Config(weight_block="1x32")]
GATES = (23.0, 22.5, 22.5, 22.5, 22.5)
"""dB of y, dx, dweights, dgate_up and ddown through a SwiGLU expert."""


def built(factory, **settings):
    return resolve(factory)(SPEC.config(**settings), BuildContext(Path()))


class TestHookModule(HookModuleContract):
    module = "composer_plugin_mxfp8.plugin"


class TestExperts(ExpertsContract):
    tolerance = 1e-5
    """Of `values` against `reference`, whose sums differ in their order; the record's is Triton's."""

    def build(self):
        return built(SPEC.factory)

    def reference(self):
        return built(SPEC.reference)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_are_those_of_the_bytes_bit_for_bit(dtype, routing, config, monkeypatch):
    monkeypatch.setattr(values, "ALIGN", reference.ALIGN)  # the same sums in the same order
    ours, theirs = (
        gradients(lambda *inputs, ops=ops: with_ops(*inputs, ops=ops, config=config), layer(routing, dtype=dtype))
        for ops in (values, reference)
    )
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("scaling", ["rceil", "floor"])
@pytest.mark.parametrize("block", [(1, 32), (32, 1), (32, 32)])
def test_rounding_by_addition_is_rounding_to_bytes(block, scaling):
    source = torch.Generator().manual_seed(0)
    x = torch.randn(96, 96, generator=source) * 2.0 ** torch.randint(-40, 40, (96, 1), generator=source)
    x[::7, ::5] *= 2.0**-12
    x[32:64, 32:64] = torch.arange(1024).view(32, 32) / 16 - 32  # ties
    x[:32, 64:] = 0
    odd = {"large": 2.0**120, "infinite": torch.inf, "not a number": torch.nan, "tiny": 2.0**-140}
    for name, value in {"plain": 1.0, **odd}.items():
        y = x.clone()
        y[70, 70] = value
        exact = reference.dequantize(reference.quantize_weights(y, block, scaling), block, torch.float32)
        assert torch.equal(values.rounded(y, block, scaling).nan_to_num(7e30), exact.nan_to_num(7e30)), name


def test_a_swiglu_expert_keeps_its_signal():
    for config in (MXFP8Config(), MXFP8Config(weight_block="1x32")):
        ours, exact = gradients(lambda *i, c=config: mxfp8_experts(*i, config=c), layer()), gradients(dense, layer())
        assert all(decibels(clean, mine) >= gate for clean, mine, gate in zip(exact, ours, GATES, strict=True))


def test_unquantized_operands_lift_weight_gradients_and_nothing_else():
    plain = gradients(mxfp8_experts, layer())
    lifted = gradients(lambda *i: mxfp8_experts(*i, config=MXFP8Config("rceil_hp_wgrad")), layer())
    exact = gradients(dense, layer())
    assert all(torch.equal(a, b) for a, b in zip(plain[:3], lifted[:3], strict=True))
    for number in (3, 4):
        assert decibels(exact[number], lifted[number]) > decibels(exact[number], plain[number]) + 1


def test_each_product_keeps_its_signal():
    """27 dB forward, 25 dB of an input's gradient, 24 dB of a weight's: one product, both operands quantized."""
    source = torch.Generator().manual_seed(0)
    x, dy, w = (torch.randn(*shape, generator=source) for shape in ((512, 256), (512, 128), (1, 128, 256)))
    ends = torch.tensor([512], dtype=torch.int32)
    columns = Blocks(*reference.quantize_weights(w, (32, 1)))
    y = reference.grouped_mm(reference.quantize_rows(x), reference.quantize_weights(w, (1, 32)), ends, torch.float32)
    dx = reference.grouped_dgrad(reference.quantize_rows(dy), columns, ends, torch.float32)
    dw = reference.grouped_wgrad(reference.quantize_columns(dy), reference.quantize_columns(x), ends)
    assert decibels(x @ w[0].T, y) >= 27
    assert decibels(dy @ w[0], dx) >= 25
    assert decibels(dy.T @ x, dw[0]) >= 24


def test_gradients_of_the_same_layer_without_quantization_are_exact(monkeypatch):
    """The backward's algebra, by numbers alone: with rounding switched off it is that of the dense op."""
    monkeypatch.setattr(values, "quantize_rows", lambda x, *_: Blocks(x, x.new_empty(len(x), 0)))
    monkeypatch.setattr(values, "_round", lambda x, block, scaling, out: out.copy_(x))
    for routing in ROUTINGS:
        ours = gradients(lambda *inputs: with_ops(*inputs, ops=values), layer(routing, experts=4))
        for mine, exact in zip(ours, gradients(dense, layer(routing, experts=4)), strict=True):
            assert torch.allclose(mine, exact, atol=2e-5, rtol=1e-4)


def test_a_row_has_the_same_bytes_in_any_company():
    x, ids, share, gate_up, down = (tensor.detach() for tensor in layer("ragged", tokens=75))
    kernel = resolve(SPEC.factory)(MXFP8Config(), BuildContext(Path(), deterministic=True))
    whole = kernel(x, ids, share, gate_up, down)
    for rows in ([0], [3, 9, 4], list(range(40))):
        assert torch.equal(kernel(x[rows], ids[rows], share[rows], gate_up, down), whole[rows])


@pytest.mark.parametrize("tokens", [1, 2, 40])
def test_what_is_sampled_is_what_is_trained(tokens):
    inputs = layer(tokens=tokens, experts=16)
    with torch.inference_mode():  # first, so that the weights that are remembered are of this mode
        sampled = mxfp8_experts(*inputs)
    trained, *found = gradients(mxfp8_experts, inputs)
    assert torch.allclose(trained, sampled, rtol=1e-5, atol=1e-6)
    _, *again = gradients(mxfp8_experts, layer(tokens=tokens, experts=16))
    assert all(torch.equal(*pair) for pair in zip(found, again, strict=True))


def test_weights_are_quantized_once_for_each_version(monkeypatch):
    counted = []
    monkeypatch.setattr(weights, "_quantize", lambda *of, make=weights._quantize: counted.append(of) or make(*of))
    x, ids, share, gate_up, down = layer()
    optimizer = torch.optim.SGD([gate_up, down], lr=1.0)
    for _ in range(2):
        mxfp8_experts(x, ids, share, gate_up, down).sum().backward()
    assert len(counted) == 2, "one for each projection"
    before = mxfp8_experts(x, ids, share, gate_up, down)
    optimizer.step()
    after = mxfp8_experts(x, ids, share, gate_up, down)
    assert len(counted) == 4 and not torch.equal(before, after)


def test_a_write_behind_the_version_is_seen_after_forget():
    x, ids, share, gate_up, down = layer()
    module = torch.nn.Module()
    module.gate_up, module.down = torch.nn.Parameter(gate_up.detach()), torch.nn.Parameter(down.detach())

    def now():
        return mxfp8_experts(x, ids, share, module.gate_up, module.down).detach()

    before = now()
    module.down.data.mul_(2)
    assert torch.equal(now(), before)
    forget(module)
    assert torch.allclose(now(), 2 * before)


def test_the_saved_bytes_are_one_copy_a_token_and_the_hidden_rows():
    x, ids, share, gate_up, down = layer("ragged", tokens=512, width=256, expert_width=128, chosen=4)
    kept = {}
    owned = {gate_up.data_ptr(), down.data_ptr(), share.data_ptr()}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.setdefault(t.data_ptr(), t.nbytes) and t, lambda t: t):
        with_ops(x, ids, share, gate_up, down, ops=reference)
    rows = reference.ALIGN * -(-512 * 4 // reference.ALIGN) + 8 * reference.ALIGN
    bound = 512 * 256 * (1 + 1 / 32) + rows * 2 * 128 * 4 + 3 * 4 * rows
    assert sum(size for place, size in kept.items() if place not in owned) <= bound


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # dynamo does, of any Function
def test_a_compiled_layer_has_one_graph_for_every_number_of_tokens_and_the_same_bytes():
    def kernel(*inputs):
        return mxfp8_experts(*inputs)

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(kernel, fullgraph=True, backend=counter)
    for tokens in (64, 225):
        inputs = layer("ragged", tokens=tokens)
        for tensor in inputs[:3]:
            torch._dynamo.mark_dynamic(tensor, 0)
        theirs = gradients(lambda *inputs: with_ops(*inputs, ops=reference), layer("ragged", tokens=tokens))
        assert all(torch.equal(*pair) for pair in zip(gradients(compiled, inputs), theirs, strict=True))
    assert counter.frame_count == 1


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(
    "kernel",
    [
        partial(with_ops, ops=kernels, config=CONFIGS[0]),
        partial(with_ops, ops=kernels, config=CONFIGS[1]),
        partial(with_ops, ops=reference, config=CONFIGS[1]),
        fp8_experts,
    ],
    ids=["triton", "triton, exact weight gradients", "reference, exact weight gradients", "recipe of 128s"],
)
def test_every_way_to_compute_compiles_to_one_graph(kernel):
    """Of its forward and of its backward; on tensors that have shapes alone, since numbers are tested elsewhere."""
    counter = CompileCounterWithBackend("aot_eager")

    def call(*inputs):
        return kernel(*inputs)

    compiled, inputs = torch.compile(call, fullgraph=True, backend=counter), layer(device="meta", expert_width=128)
    compiled(*inputs).sum().backward()
    assert counter.frame_count == 1 and inputs[0].grad.shape == inputs[0].shape


@pytest.fixture
def memory_that_was_used_before():
    """What torch hands out holds NaN, as a GPU's memory may."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, which meets that NaN in rows past the last expert's
def test_triton_computes_the_layer_of_the_reference_whatever_its_memory_held(memory_that_was_used_before):
    """Interpreted here; the figures of a GPU are in docs/benchmarks.md."""

    def small():
        return layer("ragged", tokens=16, width=64, expert_width=32, experts=2, chosen=1, dtype=torch.bfloat16)

    assert torch.empty(1).isnan()
    ours, theirs = (
        gradients(lambda *inputs, ops=ops: with_ops(*inputs, ops=ops), small()) for ops in (kernels, reference)
    )
    assert all(decibels(other, mine) > 50 for mine, other in zip(ours, theirs, strict=True))
    with torch.inference_mode():
        assert decibels(theirs[0], with_ops(*small(), ops=kernels, deterministic=True)) > 50


@pytest.fixture
def as_on_this_machine(monkeypatch):
    """Without the interpreter that other tests of this folder run Triton in."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    implementation._named.cache_clear()


def test_auto_says_in_the_log_which_it_took(caplog, as_on_this_machine):
    mxfp8_experts(*layer("one token"))
    mxfp8_experts(*layer("one token"))
    (record,) = caplog.records
    assert "auto took reference, since Triton needs a CUDA device" in record.getMessage()


def test_triton_is_refused_where_it_cannot_run(as_on_this_machine):
    with pytest.raises(ConfigError, match="cannot run here") as error:
        built(SPEC.factory, implementation="triton")
    assert error.value.fields["where"] == "model.experts.settings.implementation"
    with pytest.raises(RuntimeError, match=r'"triton" cannot run.*choose "auto"'):
        mxfp8_experts(*layer(), config=MXFP8Config(implementation="triton"))


def test_the_coarse_recipe_is_a_kernel_of_its_own_that_learns_in_the_same_way():
    kernel = resolve(COARSE.factory)(COARSE.config(), BuildContext(Path()))
    inputs = {"width": 128, "expert_width": 128, "routing": "ragged"}
    ours, exact = gradients(kernel, layer(**inputs)), gradients(dense, layer(**inputs))
    assert all(decibels(clean, mine) > 21 for clean, mine in zip(exact, ours, strict=True))
    assert "mxfp8" not in COARSE.format and not torch.equal(ours[0], gradients(mxfp8_experts, layer(**inputs))[0])
    with pytest.raises(ValueError, match="blocks of 128 do not divide"):
        kernel(*layer())


def test_widths_that_blocks_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="model width of 80 and an expert width of 64"):
        mxfp8_experts(*layer(width=80))
