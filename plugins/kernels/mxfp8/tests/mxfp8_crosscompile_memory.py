"""Compiles the memory-bound kernels for a GPU that is not there, as they are launched, and prints the outcome as JSON.

    python mxfp8_crosscompile_memory.py

Each op runs once on a CPU with its launches recorded: the arguments of a launch give the signature, constants included.
"""

import json
import re
import sys
from collections import Counter

import torch
import triton
from mxfp8_crosscompile import assembled
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from composer_plugin_mxfp8 import kernels, reference
from composer_plugin_mxfp8.kernels import (
    combining,
    dequantizing,
    gather,
    planning,
    promoted,
    quantize,
    router,
    swiglu,
    swizzling,
)

MODULES = (combining, dequantizing, gather, planning, promoted, quantize, router, swiglu, swizzling)
TYPES = {
    torch.float32: "fp32", torch.int16: "i16", torch.uint8: "u8", torch.int32: "i32", torch.int64: "i64",
}  # fmt: skip
INSTRUCTIONS = {
    "wide loads": r"ld\.global\S*\.v[24]\.b32",
    "wide stores": r"st\.global\S*\.v[24]\.b32",
    "to E4M3": r"cvt\.rn\.satfinite\.e4m3x2\.f32",
    "from E4M3": r"cvt\.rn\.f16x2\.e4m3x2",
}


def recorded():
    """(kernel, arguments, options) of every launch of one pass over the ops, in bf16 and of DeepSeek-V3's widths."""
    found = []

    def record(kernel, grid, *args, warps=4, fuse=True, **options):
        found.append((kernel, args, {"num_warps": warps, "enable_fp_fusion": fuse, **options}))

    for module in MODULES:
        module.launch = record
        if hasattr(module, "native"):
            module.native = lambda _: True
    x_ND = torch.zeros(32, 7168, dtype=torch.bfloat16)
    ids_NK, weights_NK = torch.zeros(32, 8, dtype=torch.int64), torch.zeros(32, 8)
    rows, plan = reference.quantize_rows(x_ND), reference.plan(ids_NK, 8)
    out_RD = torch.zeros(len(plan.pairs_R), 7168, dtype=torch.bfloat16)
    h_R2F = out_RD[:, :4096].contiguous()
    kernels.quantize_rows(x_ND)
    kernels.quantize_columns(x_ND)
    kernels.quantize_both(x_ND)
    kernels.quantize_weights(x_ND[None], (32, 32))
    kernels.dequantize(rows, (1, 32))
    kernels.requantize_columns(rows)
    kernels.swizzle(rows.scale)
    kernels.plan(ids_NK, 256)
    kernels.gather_quantize(x_ND, plan)
    kernels.gather_quantize_both(x_ND, plan, "rceil", weights_NK)
    kernels.gather_rows(rows, plan)
    kernels.gather_columns(rows, plan)
    kernels.gather_both(rows, plan)
    kernels.combine(out_RD, plan, weights_NK)
    kernels.combine_backward(x_ND, out_RD, plan, weights_NK)
    kernels.swiglu_quantize(h_R2F)
    kernels.swiglu_quantize_both(h_R2F)
    kernels.swiglu_backward(h_R2F[:, :2048], h_R2F)
    kernels.swiglu_backward_weighted(h_R2F[:, :2048], h_R2F, plan, weights_NK)
    promoted.quantize_rows_1x128(x_ND)
    kernels.route(torch.zeros(128, 256), 8, torch.zeros(256), "sigmoid")
    return found


def kind(value):
    if isinstance(value, torch.Tensor):
        return "*" + TYPES[value.dtype]
    return "i32" if isinstance(value, int) else "constexpr"


def compiled(kernel, args, options, capability):
    values = dict(zip(kernel.arg_names, args, strict=True))
    fixed = {kernel.arg_names[param.num] for param in kernel.params if param.is_constexpr}
    signature = {name: "constexpr" if name in fixed else kind(value) for name, value in values.items()}
    constants = {name: values[name] for name, is_a in signature.items() if is_a == "constexpr"}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, (name, is_a) in enumerate(signature.items())
        if is_a.startswith("*") or (is_a == "i32" and values[name] % 16 == 0)
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm["ptx"]


def main():
    found, seen = {}, Counter()
    for kernel, args, options in recorded():
        seen[kernel.__name__] += 1
        for capability in (90, 100):
            ptx = compiled(kernel, args, options, capability)
            registers, spilled = assembled(ptx, capability)
            counts = {what: len(re.findall(pattern, ptx)) for what, pattern in INSTRUCTIONS.items()}
            name = f"{kernel.__name__} {seen[kernel.__name__]} sm_{capability}"
            found[name] = {"registers": registers, "spilled": spilled, **counts}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
