"""Compiles the matrix kernels for GPUs that are not there, as they are launched, and prints what came of it as JSON.

    python mxfp8_crosscompile.py

A launch is recorded in place of being run: its arguments give the signature, its options the rest. For each kernel:
instructions of interest in the PTX, bytes of shared memory, and registers and spilled bytes as Triton's ptxas counts.
"""

import json
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource
from triton.tools.tensor_descriptor import TensorDescriptor

from composer_plugin_mxfp8.kernels import blackwell, decode, hopper, matmul, promoted

TYPES = {
    torch.float32: "fp32", torch.bfloat16: "bf16", torch.float8_e4m3fn: "fp8e4nv", torch.uint8: "u8",
    torch.int32: "i32", torch.int64: "i64",
}  # fmt: skip
INSTRUCTIONS = {
    "bf16 wgmma": r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k16\.f32\.bf16\.bf16",
    "e4m3 wgmma": r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k32\.f32\.e4m3\.e4m3",
    "bf16 tcgen05": r"tcgen05\.mma\.\S*kind::f16",
    "e4m3 tcgen05": r"tcgen05\.mma\.\S*kind::f8f6f4",
    "block_scale": r"tcgen05\.mma\.\S*kind::mxf8f6f4\S*block_scale",
    "bulk copy": r"cp\.async\.bulk\.tensor",
}
E, N, K, R, P = 8, 2048, 7168, 4096, 64


class Recorder:
    """Stands in for a kernel in its module and keeps the last launch."""

    def __init__(self, module, name):
        self.module, self.name, self.kernel = module, name, getattr(module, name)

    def __getitem__(self, grid):
        def record(*args, **options):
            self.args, self.options = args, options

        return record

    def of(self, call):
        setattr(self.module, self.name, self)
        try:
            call()
        finally:
            setattr(self.module, self.name, self.kernel)
        return self


def kind(value):
    if isinstance(value, TensorDescriptor):
        return f"tensordesc<{TYPES[value.base.dtype]}[{','.join(map(str, value.block_shape))}]>"
    return "*" + TYPES[value.dtype] if isinstance(value, torch.Tensor) else "i32"


def compiled(recorder, capability):
    """PTX and bytes of shared memory of a recorded launch."""
    constants = {k: v for k, v in recorder.options.items() if k not in {"num_warps", "num_stages"}}
    names = recorder.kernel.arg_names
    values = dict(zip(names, recorder.args, strict=False))
    signature = {name: kind(values[name]) if name in values else "constexpr" for name in names}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if isinstance(values.get(name), torch.Tensor) or (isinstance(values.get(name), int) and not values[name] % 16)
    }
    source = ASTSource(fn=recorder.kernel, signature=signature, constexprs=constants, attrs=aligned)
    options = {k: recorder.options[k] for k in ("num_warps", "num_stages")}
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return made.asm["ptx"], made.metadata.shared


def assembled(ptx, capability):
    """Registers of a thread and bytes spilled."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        command = [get_ptxas(capability).path, "-v", f"--gpu-name=sm_{capability}a", source, "-o", f"{folder}/kernel"]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
    found = said.stderr + said.stdout
    registers, spilled = re.search(r"Used (\d+) registers", found), re.search(r"(\d+) bytes spill stores", found)
    return int(registers[1]), int(spilled[1])


def launches():
    """Name, compute capability, recorded launch."""
    bf16, fp32 = torch.bfloat16, torch.float32

    def e4m3(*shape):
        return torch.empty(shape, dtype=torch.float8_e4m3fn)

    def scale(*shape):
        return torch.empty(shape, dtype=torch.uint8)

    ends_E, w, x = torch.empty(E, dtype=torch.int32), torch.empty(E, N, K, dtype=bf16), torch.empty(R, K, dtype=bf16)
    rows, weights = (e4m3(R, K), scale(R, K // 32)), (e4m3(E, N, K), scale(E, N, K // 32))
    dy, tall = (e4m3(R, N), scale(R, N // 32)), (e4m3(E, N, K), scale(E, N // 32, K))
    columns = (e4m3(R, N), scale(R // 32, N), e4m3(R, K), scale(R // 32, K))
    coarse = (scale(R, K), scale(R, K // 128), scale(E, N, K), scale(E, N // 128, K // 128))
    ids_P = torch.empty(P, dtype=torch.int64)

    def record(module, name, call):
        return Recorder(module, name).of(call)

    y = x[:, :N].contiguous()
    yield "forward", 90, record(hopper, "rows_by_weights", lambda: hopper.grouped(x, w, ends_E, True, fp32))
    yield "dgrad", 90, record(hopper, "rows_by_weights", lambda: hopper.grouped(y, w, ends_E, False, fp32))
    yield "few rows", 90, record(hopper, "weights_by_rows", lambda: hopper.grouped_swapped(x, *weights, ends_E, bf16))
    yield "wgrad", 90, record(hopper, "rows_by_rows", lambda: hopper.wgrad(y, x, ends_E, fp32))
    for capability in (90, 100):
        for name, pairs in (("decode a token", 8), ("decode", P)):
            tile, few = matmul.decode_tile(pairs), ids_P[:pairs]
            call = partial(decode.decode, x[:pairs], few, *weights, bf16, tile)
            yield name, capability, record(decode, "weights_by_pairs", call)
        call = partial(promoted.promoted_mm, *coarse, ends_E, bf16)
        yield "fp8_1x128_pow2", capability, record(promoted, "promoted_rows_by_weights", call)
    name = "scaled_rows_by_weights"
    yield "forward", 100, record(blackwell, name, lambda: blackwell.grouped(*rows, *weights, ends_E, True, bf16))
    yield "dgrad", 100, record(blackwell, name, lambda: blackwell.grouped(*dy, *tall, ends_E, False, bf16))
    yield "wgrad", 100, record(blackwell, "scaled_rows_by_rows", lambda: blackwell.wgrad(*columns, ends_E, fp32))


def main():
    found = {}
    for name, capability, recorder in launches():
        ptx, shared = compiled(recorder, capability)
        registers, spilled = assembled(ptx, capability)
        counts = {what: len(re.findall(pattern, ptx)) for what, pattern in INSTRUCTIONS.items()}
        kernel = recorder.kernel.__name__
        found[f"{name} sm_{capability}"] = {
            "kernel": kernel, "registers": registers, "spilled": spilled, "shared": shared, **counts,
        }  # fmt: skip
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
