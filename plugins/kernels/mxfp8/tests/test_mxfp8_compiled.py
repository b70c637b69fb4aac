"""The matrix kernels compile for Hopper and Blackwell on any machine, to the instructions they were written for.

Triton brings its own ptxas, so neither a GPU nor a driver is needed. What is compiled is what `matmul` would launch.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from mxfp8_cases import launched

from composer_plugin_mxfp8 import fp8_1x128_pow2

SOURCES = Path(fp8_1x128_pow2.__file__).parents[1]
BUDGET = {
    "forward sm_90": 168,
    "dgrad sm_90": 168,
    "few rows sm_90": 128,
    "wgrad sm_90": 168,
    "decode a token sm_90": 168,
    "decode sm_90": 168,
    "fp8_1x128_pow2 sm_90": 168,
    "decode a token sm_100": 168,
    "decode sm_100": 168,
    "fp8_1x128_pow2 sm_100": 168,
    "forward sm_100": 168,
    "dgrad sm_100": 168,
    "wgrad sm_100": 168,
}
"""Registers of a thread: what a tile's sums need, and room for another release of Triton. With 128 or 168, two or three
programs share a multiprocessor."""
PRODUCTS = ("bf16 wgmma", "e4m3 wgmma", "bf16 tcgen05", "e4m3 tcgen05", "block_scale")
SHARED = 227 << 10
"""Bytes of shared memory that a program may have on both GPUs."""
INSTRUCTION = {
    "fp8_1x128_pow2 sm_90": "e4m3 wgmma",
    "fp8_1x128_pow2 sm_100": "e4m3 tcgen05",
    "decode a token sm_100": "bf16 tcgen05",
    "decode sm_100": "bf16 tcgen05",
}


@pytest.fixture(scope="module")
def compiled():
    """In a process of its own, since here Triton may have been told to interpret; kept in Triton's cache in between."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {
        "PYTHONPATH": str(SOURCES),
        "TRITON_CACHE_DIR": str(Path(tempfile.gettempdir(), f"composer-mxfp8-{os.getuid()}")),
    }
    script = Path(__file__).with_name("mxfp8_crosscompile.py")
    command = [sys.executable, "-W", "ignore", str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kernel", BUDGET)
def test_kernels_keep_their_registers_and_spill_none(compiled, kernel):
    assert compiled[kernel]["spilled"] == 0
    assert compiled[kernel]["registers"] <= BUDGET[kernel]
    assert compiled[kernel]["shared"] <= SHARED


@pytest.mark.parametrize("kernel", BUDGET)
def test_products_run_on_the_tensor_cores_they_were_written_for(compiled, kernel):
    wanted = INSTRUCTION.get(kernel, "bf16 wgmma" if kernel.endswith("sm_90") else "block_scale")
    products = {what: compiled[kernel][what] for what in PRODUCTS}
    assert {what for what, count in products.items() if count} == {wanted}
    assert compiled[kernel]["bulk copy"]


def test_every_matrix_kernel_is_compiled_and_has_a_budget(compiled):
    assert set(compiled) == set(BUDGET)
    assert {found["kernel"] for found in compiled.values()} == launched(r"\n    (\w+)\[\(")
