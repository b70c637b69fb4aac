"""Experts of a mixture in MXFP8. `quantize_` converts a model that exists, `mxfp8_experts` is the function behind it.

Imported on first use, so that the hook module beside this loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_plugin_mxfp8.config import MXFP8Config
    from composer_plugin_mxfp8.convert import quantize_
    from composer_plugin_mxfp8.drift import Drift, layer_drift
    from composer_plugin_mxfp8.experts import mxfp8_experts
    from composer_plugin_mxfp8.export import export_mxfp8, load_mxfp8
    from composer_plugin_mxfp8.formats import MX, dequantize, quantize
    from composer_plugin_mxfp8.weights import forget

_HOME = {
    "MXFP8Config": "config",
    "quantize_": "convert",
    **dict.fromkeys(("Drift", "layer_drift"), "drift"),
    "mxfp8_experts": "experts",
    **dict.fromkeys(("export_mxfp8", "load_mxfp8"), "export"),
    **dict.fromkeys(("MX", "dequantize", "quantize"), "formats"),
    "forget": "weights",
}
__all__ = [
    "MX",
    "Drift",
    "MXFP8Config",
    "dequantize",
    "export_mxfp8",
    "forget",
    "layer_drift",
    "load_mxfp8",
    "mxfp8_experts",
    "quantize",
    "quantize_",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
