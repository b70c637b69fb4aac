"""The rate of this machine's time-stamp counter, which a guest's kernel has to be told.

Under TCG a guest reads the host's counter, and measures its rate at boot against timers that a busy host lets slip:
some boots then hang. No file tells the rate, so the counter is read here, by three instructions put in memory.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import time
from functools import cache

RDTSC = bytes.fromhex("0f3148c1e2204809d0c3")
"""rdtsc; shl rdx, 32; or rax, rdx; ret."""
SAMPLE_S = 0.03


@cache
def tsc_khz() -> int | None:
    """Thousands of ticks a second; None where this is no x86 or memory may not be executed."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return None
    try:
        code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return None
    code.write(RDTSC)
    place = ctypes.addressof(ctypes.c_char.from_buffer(code))
    read = ctypes.CFUNCTYPE(ctypes.c_uint64)(place)
    best = min((_sample(read) for _ in range(3)), key=lambda pair: pair[1])
    return round(best[0])


def _sample(read: object) -> tuple[float, int]:
    """(kHz, nanoseconds that the four readings took beside the pause): the least disturbed sample is the best."""
    assert callable(read)
    before = time.perf_counter_ns()
    first, started = read(), time.perf_counter_ns()
    time.sleep(SAMPLE_S)
    ended, last = time.perf_counter_ns(), read()
    after = time.perf_counter_ns()
    return (last - first) / (ended - started) * 1e6, (started - before) + (after - ended)
