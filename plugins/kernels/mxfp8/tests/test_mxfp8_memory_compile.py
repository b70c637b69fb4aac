"""What the memory-bound kernels become on GPUs that this machine lacks: no spills, wide accesses, no emulation.

They are compiled in a process of their own, where nothing is interpreted.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mxfp8_cases import launched

REGISTERS = {"place": 255}
"""Most registers of a thread, where 168 is not the bound: at that, twelve warps share a multiprocessor."""

SPILLED = {"swiglu_backward_tile": 64}
"""Most bytes spilled: where registers are capped, more programs and a few spills were measured to be faster."""


@pytest.fixture(scope="module")
def kernels():
    script = Path(__file__).with_name("mxfp8_crosscompile_memory.py")
    env = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_kernels_spill_only_where_it_pays_and_leave_room_for_others(kernels):
    for name, found in kernels.items():
        assert found["spilled"] <= SPILLED.get(name.split()[0], 0), name
        assert found["registers"] <= REGISTERS.get(name.split()[0], 168), name


def test_every_kernel_that_moves_memory_is_compiled_for_both(kernels):
    names = launched(r"\blaunch\(\s*(\w+),")
    assert {(name.split()[0], name.split()[2]) for name in kernels} == {
        (name, target) for name in names for target in ("sm_90", "sm_100")
    }


def test_tensors_are_read_and_written_8_or_16_bytes_at_a_time(kernels):
    for name, found in kernels.items():
        if name.split()[0].endswith("_tile") and not name.startswith("route"):
            assert found["wide loads"] and found["wide stores"], name


def test_conversions_are_the_hardwares(kernels):
    for name, found in kernels.items():
        quantizes = name.startswith(("quantize", "requantize", "gather_quantize", "gather_columns", "swiglu"))
        assert bool(found["to E4M3"]) == quantizes, name
        assert bool(found["from E4M3"]) == name.startswith(("dequantize", "requantize", "gather_columns")), name
