"""What every host side of a kernel needs: registration with torch, the launch, and memory for what it makes.

An op is opaque to torch, under the interpreter as on a GPU. Its fake is the same function with `launch` doing nothing,
so the shapes are said once. Schemas take plain tensors; the functions of `ops.Ops` around them name the results.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
import triton

from composer_plugin_mxfp8.formats import Scaling, Shape
from composer_plugin_mxfp8.ops import Blocks

Tile = tuple[int, int, int]
"""Rows and columns of a tile, and warps of its program."""
Pair = tuple[torch.Tensor, torch.Tensor]

F = TypeVar("F", bound=Callable[..., Any])

_only_shapes: ContextVar[bool] = ContextVar("only_shapes", default=False)


def op(function: F) -> F:
    """Register `composer_mxfp8::NAME`, NAME being the function's without its underscore; returns the op.

    Defined and implemented apart: `custom_op` would check aliasing and autograd in each call, which costs more than a
    small kernel takes. Gradients are the business of whoever calls, so inputs of an op are never differentiated.
    """
    name = f"composer_mxfp8::{function.__name__.removeprefix('_')}"

    def fake(*args: Any) -> Any:
        token = _only_shapes.set(True)
        try:
            return function(*args)
        finally:
            _only_shapes.reset(token)

    torch.library.define(name, torch.library.infer_schema(function, mutates_args=()))
    torch.library.impl(name, "default", function)
    torch.library.register_fake(name, fake)
    registered: F = getattr(torch.ops.composer_mxfp8, name.partition("::")[2]).default
    return registered


def only_shapes() -> bool:
    """Whether an op is asked for nothing but the shapes of its results."""
    return _only_shapes.get()


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, warps: int = 4, fuse: bool = True, **options: Any) -> None:
    """Run the kernel, unless there is nothing to do or only shapes are wanted.

    Without `fuse`, a product and a sum are rounded one after the other, as in plain torch; where memory is the limit
    that costs nothing.
    """
    if not _only_shapes.get() and all(grid):
        kernel[grid](*args, num_warps=warps, enable_fp_fusion=fuse, **options)


def grid(rows: int, cols: int, tile: Tile) -> tuple[int]:
    """One program for each tile (`emit.corner` says which)."""
    return (triton.cdiv(rows, tile[0]) * triton.cdiv(cols, tile[1]),)


def new_blocks(like: torch.Tensor, rows: int, cols: int, block: Shape) -> Pair:
    """Memory for data and scale of a [rows, cols] matrix, both uint8.

    Raises:
        ValueError: a dimension is not a multiple of its block.
    """
    if rows % block[0] or cols % block[1]:
        raise ValueError(f"MXFP8 blocks of {block[0]}x{block[1]} do not divide [{rows}, {cols}]; pad the tensor")
    data = like.new_empty((rows, cols), dtype=torch.uint8)
    return data, like.new_empty((rows // block[0], cols // block[1]), dtype=torch.uint8)


def as_e4m3(pair: Pair) -> Pair:
    """Data under its own type; a view."""
    return pair[0].view(torch.float8_e4m3fn), pair[1]


def rceil(scaling: Scaling) -> bool:
    """How schemas say it.

    Raises:
        ValueError: neither "rceil" nor "floor".
    """
    if scaling not in {"rceil", "floor"}:
        raise ValueError(f"scaling is 'rceil' or 'floor', not {scaling!r}")
    return scaling == "rceil"


def two(parts: tuple[torch.Tensor, ...]) -> tuple[Blocks, Blocks]:
    """Rows and columns of an op that makes both."""
    return Blocks(*parts[:2]), Blocks(*parts[2:4])
