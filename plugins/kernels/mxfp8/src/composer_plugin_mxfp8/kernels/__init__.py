"""`ops.Ops` in Triton. To import it needs a supported Triton; to run it, a GPU or `TRITON_INTERPRET=1` set before.

`numerics` converts, `emit` turns a tile into bytes, and a file for each op computes the tile before; `launch` is the
host side that they share. Legend: see `ops`.
"""

from composer_plugin_mxfp8.support import wrong_version

if reason := wrong_version():
    raise ImportError(f"the MXFP8 kernels cannot run: {reason}; or choose implementation = 'reference'")

from composer_plugin_mxfp8.kernels.combining import combine, combine_backward, scatter_rows
from composer_plugin_mxfp8.kernels.dequantizing import dequantize
from composer_plugin_mxfp8.kernels.gather import (
    gather_both,
    gather_columns,
    gather_quantize,
    gather_quantize_both,
    gather_rows,
)
from composer_plugin_mxfp8.kernels.matmul import decode_mm, grouped_dgrad, grouped_mm, grouped_wgrad
from composer_plugin_mxfp8.kernels.planning import plan
from composer_plugin_mxfp8.kernels.quantize import (
    quantize_both,
    quantize_columns,
    quantize_rows,
    quantize_weights,
    requantize_columns,
)
from composer_plugin_mxfp8.kernels.router import balance_bias, route
from composer_plugin_mxfp8.kernels.swiglu import (
    swiglu_backward,
    swiglu_backward_weighted,
    swiglu_quantize,
    swiglu_quantize_both,
)
from composer_plugin_mxfp8.kernels.swizzling import swizzle, unswizzle
from composer_plugin_mxfp8.ops import ALIGN, FORWARD_ALIGN

__all__ = [
    "ALIGN",
    "FORWARD_ALIGN",
    "balance_bias",
    "combine",
    "combine_backward",
    "decode_mm",
    "dequantize",
    "gather_both",
    "gather_columns",
    "gather_quantize",
    "gather_quantize_both",
    "gather_rows",
    "grouped_dgrad",
    "grouped_mm",
    "grouped_wgrad",
    "plan",
    "quantize_both",
    "quantize_columns",
    "quantize_rows",
    "quantize_weights",
    "requantize_columns",
    "route",
    "scatter_rows",
    "swiglu_backward",
    "swiglu_backward_weighted",
    "swiglu_quantize",
    "swiglu_quantize_both",
    "swizzle",
    "unswizzle",
]
