"""Expert weights as MXFP8 in a safetensors file, for whoever reads 8 bits: a kernel of Blackwell, a server, a download.

    NAME         F8_E4M3  [E, N, K]       values, where the parameter has them
    NAME_scale   F8_E8M0  [E, N, K / 32]  one power of two for each 32 along K, plain layout (not swizzled)

for every parameter NAME of experts (`...gate_up_proj`, `...down_proj`); all others stand as they are. Value = data x
scale. Blocks of 32x32 are written as 32 equal rows of scales, so that a reader has one layout to know. The file's
metadata holds format = "mxfp8", version = "1" and the recipe.

A checkpoint to train on from is another thing: that keeps the master weights, and nothing here writes or reads one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from composer_plugin_mxfp8 import reference
from composer_plugin_mxfp8.config import MXFP8Config
from composer_plugin_mxfp8.experts import DEFAULT
from composer_plugin_mxfp8.formats import MX, dequantize
from composer_plugin_mxfp8.weights import quantized

PARTS = ("gate_up_proj", "down_proj")
SCALE = "_scale"


def export_mxfp8(state: Mapping[str, torch.Tensor], path: Path, config: MXFP8Config = DEFAULT) -> None:
    """Write a model's `state_dict` with its experts in MXFP8; names that share a tensor get one each.

    Raises:
        ValueError: it holds no weights of experts.
    """
    made: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        if name.rpartition(".")[2] in PARTS and tensor.dim() == 3:
            data, scale = quantized(tensor.detach(), reference, config).rows
            made |= {name: data, name + SCALE: scale.view(torch.float8_e8m0fnu)}
        else:
            made[name] = tensor.detach()
    if len(made) == len(state):
        raise ValueError(f"nothing to export: no tensor [E, N, K] is named ...{' or ...'.join(PARTS)}")
    metadata = {"format": "mxfp8", "version": "1", "recipe": config.recipe}
    save_file(_apart({name: tensor.contiguous().cpu() for name, tensor in made.items()}), path, metadata)


def _apart(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors that share memory, as tied embeddings do, in memory of their own: the format knows no other."""
    owners = {tensor.untyped_storage().data_ptr(): name for name, tensor in state.items()}
    own = {*owners.values()}
    return {name: tensor if name in own else tensor.clone() for name, tensor in state.items()}


def load_mxfp8(path: Path, dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    """A state dict of what `export_mxfp8` wrote, its experts in `dtype`; bf16 holds them exactly.

    Raises:
        ValueError: the file is not of this format.
    """
    with safe_open(path, "pt") as file:
        if (found := (file.metadata() or {}).get("format")) != "mxfp8":
            raise ValueError(f"{path} is no export of MXFP8 weights: its metadata says format = {found!r}")
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, a file of safetensors is no dict
    scaled = [name for name in state if name + SCALE in state]
    for name in scaled:
        state[name] = dequantize(MX(state[name], state.pop(name + SCALE).view(torch.uint8)), dtype)
    return state
