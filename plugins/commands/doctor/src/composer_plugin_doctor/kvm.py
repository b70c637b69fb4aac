"""Whether KVM really runs guests: one of four instructions, run through the ioctls alone.

`/dev/kvm` may exist and refuse to create a machine (nested virtualization switched off), create one that never runs,
or interpret what the processor should run: a KVM without the processor's help (`kvm_pvm`) does so for every guest that
is not written for it. So a virtual CPU in real mode is given a loop that ends with HLT. Only the exit "the guest
halted" counts, and only if the loop took no longer than a processor might: an interpreter needs a thousand times as
long. Processor time is what is measured, so that a busy machine is not taken for a slow one.

`python -I kvm.py DEVICE` does it in a process of its own, which a caller can end when a hypervisor below hangs: it
prints what there is to say of the device and exits with 0 only if the guest halted in time. Standard library alone.
Source: Documentation/virt/kvm/api.rst and include/uapi/linux/kvm.h of Linux.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import struct
import sys
import time
from contextlib import ExitStack

DEVICE = "/dev/kvm"
API_VERSION = 12
EXIT_HLT = 5
ROUNDS = 100_000
GUEST = b"\x66\xb9" + struct.pack("<I", ROUNDS) + b"\x66\x49" + b"\x75\xfc" + b"\xf4"
"""mov ecx, ROUNDS; again: dec ecx; jnz again; hlt."""
SLOW_S = 0.03
"""Processor time in which any processor has run the guest a hundred times."""
PAGE_BYTES = 4096
START = 0x1000
"""Where the guest's only page lies, and its first instruction in it."""

GET_API_VERSION = 0xAE00
CREATE_VM = 0xAE01
GET_VCPU_MMAP_SIZE = 0xAE04
CREATE_VCPU = 0xAE41
SET_USER_MEMORY_REGION = 0x4020AE46
RUN = 0xAE80
SET_REGS = 0x4090AE82
GET_SREGS = 0x8138AE83
SET_SREGS = 0x4138AE84
STEPS = {
    GET_API_VERSION: "is no KVM device",
    CREATE_VM: "creates no virtual machine",
    GET_VCPU_MMAP_SIZE: "does not say how large a virtual CPU is",
    CREATE_VCPU: "creates no virtual CPU",
    SET_USER_MEMORY_REGION: "gives a guest no memory",
    RUN: "does not run a guest",
    SET_REGS: "sets no registers",
    GET_SREGS: "shows no segment registers",
    SET_SREGS: "sets no segment registers",
}
"""What it means when an ioctl fails."""


class Refused(Exception):
    """KVM is there and does not work; the text says what the device does not do, and why."""


def _ask(fd: int, request: int, argument: bytes | bytearray | int = 0) -> int:
    try:
        found = fcntl.ioctl(fd, request, argument)
    except OSError as error:
        raise Refused(f"{STEPS[request]}: {error.strerror}") from error
    return found if isinstance(found, int) else 0


def boot(device: str = DEVICE) -> tuple[int, float]:
    """Run the guest; returns KVM's reason for its exit, and the seconds of processor time that it took.

    Raises:
        OSError: the device cannot be opened.
        Refused: a step failed.
    """
    with ExitStack() as stack:
        kvm = os.open(device, os.O_RDWR | os.O_CLOEXEC)
        stack.callback(os.close, kvm)
        version = _ask(kvm, GET_API_VERSION)
        if version != API_VERSION:
            raise Refused(f"speaks version {version} of the API, not {API_VERSION}")
        vm = _ask(kvm, CREATE_VM)
        stack.callback(os.close, vm)
        page = stack.enter_context(mmap.mmap(-1, PAGE_BYTES))
        page[: len(GUEST)] = GUEST
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        _ask(vm, SET_USER_MEMORY_REGION, struct.pack("=IIQQQ", 0, 0, START, PAGE_BYTES, address))
        vcpu = _ask(vm, CREATE_VCPU)
        stack.callback(os.close, vcpu)
        state = stack.enter_context(mmap.mmap(vcpu, _ask(kvm, GET_VCPU_MMAP_SIZE)))
        segments = bytearray(312)  # struct kvm_sregs; cs comes first: base u64, limit u32, selector u16
        _ask(vcpu, GET_SREGS, segments)
        struct.pack_into("=Q", segments, 0, 0)
        struct.pack_into("=H", segments, 12, 0)
        _ask(vcpu, SET_SREGS, segments)
        _ask(vcpu, SET_REGS, struct.pack("=18Q", *[0] * 16, START, 2))  # ..., rip, rflags
        started = time.thread_time()
        _ask(vcpu, RUN)
        spent_s = time.thread_time() - started
        (reason,) = struct.unpack_from("=I", state, 8)  # struct kvm_run: exit_reason
        return int(reason), spent_s


def main(device: str = DEVICE) -> int:
    """Exit code of the process: 0 if a guest ran as a processor runs it."""
    if platform.machine() not in ("x86_64", "AMD64"):
        print(f"is there; a guest is tried on x86-64 only, this is {platform.machine()}")
        return 0
    try:
        reason, spent_s = boot(device)
    except OSError as error:
        print(f"cannot be opened: {error.strerror}")
    except Refused as error:
        print(error)
    else:
        if reason == EXIT_HLT and spent_s <= SLOW_S:
            print("boots: a guest ran and halted")
            return 0
        if reason == EXIT_HLT:
            print(f"interprets its guests: {2 * ROUNDS / spent_s / 1e6:.1f} million instructions a second")
        else:
            print(f"ran a guest that ended with exit {reason}, not with a halt")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
