"""Triton's interpreter for the whole session where no GPU is: Triton reads the setting while it is first imported, and
many a library imports it before the tests of our kernels are collected.
"""

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
