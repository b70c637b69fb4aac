"""What `doctor` says of a machine: true here, and right about machines that are not like this one."""

import errno
import fcntl
import json
import mmap
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from composer_plugin_doctor import cgroups, kvm, machine
from composer_plugin_doctor.machine import ABSENT, BROKEN, OK, Finding


def tool(folder, name, script):
    """A command on the path, in place of whatever there is."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine without any command."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    return folder


# --- this machine -------------------------------------------------------------------------------------------------


def test_what_is_here_is_found_to_work():
    found = {finding.name: finding for finding in machine.examine()}
    assert list(found) == list(machine.PROBES)
    for name in ("python", "cores", "memory", "bubblewrap", "rg", "ruff", "chromium"):
        assert found[name].state == OK, found[name]
    assert f" {len(os.sched_getaffinity(0))} " in found["cores"].found.replace(",", " ")


def test_what_is_missing_says_what_is_lost_and_how_to_mend_it(bare):
    names = ("bubblewrap", "qemu", "firecracker", "rg", "ruff", "chromium")
    for finding in (machine.PROBES[name]() for name in names):
        assert finding.state == ABSENT
        assert finding.lost
        assert "install" in finding.fix


# --- bounds -------------------------------------------------------------------------------------------------------


def test_a_command_that_hangs_is_ended_and_one_that_cannot_start_is_told(bare):
    good, text = machine.says([str(tool(bare, "slow", "exec /bin/sleep 60"))], timeout_s=0.1)
    assert (good, "timed out" in text) == (False, True)
    assert machine.says([str(bare / "nothing")])[0] is False
    assert machine.says([str(tool(bare, "bad", "echo why >&2; exit 3"))]) == (False, "why")
    assert machine.says([str(tool(bare, "mute", "exit 3"))]) == (False, "exit code 3")


def test_a_probe_never_raises_and_the_others_are_heard():
    found = machine.examine({"a": lambda: 1 / 0, "b": lambda: Finding("b", OK, "fine")})
    assert (found[0].name, found[0].state) == ("a", BROKEN)
    assert "ZeroDivisionError" in found[0].found
    assert found[1].state == OK


# --- cores and memory ---------------------------------------------------------------------------------------------


def lay(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n"
V2 = {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/a/b\n"}
V1 = {"proc/meminfo": MEMINFO, "proc/self/cgroup": "4:memory:/job\n3:cpu,cpuacct:/job\n1:name=systemd:/\n0::/\n"}
GROUPS = "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("files", "quota", "limit"),
    [
        ({**V2, f"{GROUPS}/a/b/cpu.max": "150000 100000", f"{GROUPS}/a/b/memory.max": "1073741824"}, 1.5, 1 << 30),
        ({**V2, f"{GROUPS}/a/b/cpu.max": "max 100000", f"{GROUPS}/a/cpu.max": "50000 100000"}, 0.5, None),
        ({**V2, f"{GROUPS}/a/b/memory.max": "max", f"{GROUPS}/a/memory.max": "2147483648"}, None, 2 << 30),
        ({**V2, f"{GROUPS}/memory.max": "1073741824"}, None, 1 << 30),
        (
            {
                **V1,
                f"{GROUPS}/cpu/job/cpu.cfs_quota_us": "200000",
                f"{GROUPS}/cpu/job/cpu.cfs_period_us": "100000",
                f"{GROUPS}/memory/job/memory.limit_in_bytes": "3221225472",
            },
            2.0,
            3 << 30,
        ),
        (
            {
                **V1,
                f"{GROUPS}/cpu/cpu.cfs_quota_us": "-1",
                f"{GROUPS}/cpu/cpu.cfs_period_us": "100000",
                f"{GROUPS}/memory/memory.limit_in_bytes": "9223372036854771712",
            },
            None,
            None,
        ),
        ({"proc/meminfo": MEMINFO}, None, None),
    ],
)
def test_the_tightest_limit_of_the_control_groups_counts(tmp_path, files, quota, limit):
    root = lay(tmp_path, files)
    assert cgroups.cpu_quota(root) == quota
    assert cgroups.memory_bytes(root) == (16 << 30, 8 << 30, limit)


def test_usable_cores_are_the_least_of_affinity_and_quota(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    root = lay(tmp_path, {**V2, f"{GROUPS}/a/b/cpu.max": "150000 100000"})
    assert machine.cores(root).found.startswith("1.5 usable")
    assert machine.cores(tmp_path / "nothing").found.startswith("4 usable")
    assert "limit none" in machine.memory(lay(tmp_path / "two", {"proc/meminfo": MEMINFO})).found


def test_a_disk_that_is_nearly_full_is_told(monkeypatch):
    monkeypatch.setattr(machine, "LOW_DISK_BYTES", 1 << 60)
    assert machine.disk().state == BROKEN


# --- GPU ----------------------------------------------------------------------------------------------------------


def test_a_gpu_is_named_by_its_driver(bare, tmp_path):
    assert machine.gpu(tmp_path).state == ABSENT
    card = "proc/driver/nvidia/gpus/0000:01:00.0/information"
    found = machine.gpu(lay(tmp_path / "card", {card: "Model:   NVIDIA X1\nIRQ: 5\n"}))
    assert (found.state, "NVIDIA X1" in found.found) == (OK, True)
    tool(bare, "nvidia-smi", "echo 'NVIDIA X2, 80 GiB, 550.1'")
    assert machine.gpu(tmp_path).found == "NVIDIA X2, 80 GiB, 550.1"
    tool(bare, "nvidia-smi", "echo 'driver mismatch'; exit 9")
    assert (machine.gpu(tmp_path).state, machine.gpu(tmp_path).found) == (BROKEN, "driver mismatch")


# --- bubblewrap ---------------------------------------------------------------------------------------------------

REFUSED = "bwrap: setting up uid map: Permission denied"


@pytest.mark.parametrize(
    ("switches", "fix"),
    [
        ({"proc/sys/user/max_user_namespaces": "0"}, "user.max_user_namespaces"),
        ({"proc/sys/kernel/unprivileged_userns_clone": "0"}, "kernel.unprivileged_userns_clone=1"),
        ({"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1"}, "AppArmor"),
        ({}, "--privileged"),
    ],
)
def test_bubblewrap_that_cannot_start_gives_the_reason_and_the_switch(bare, tmp_path, switches, fix):
    tool(bare, "bwrap", f"echo '{REFUSED}' >&2; exit 1")
    found = machine.bubblewrap(lay(tmp_path / "root", switches))
    assert (found.state, found.found) == (BROKEN, REFUSED)
    assert fix in found.fix


def test_an_old_bubblewrap_is_told_from_a_forbidden_one(bare, tmp_path):
    tool(bare, "bwrap", "echo 'bwrap: Unknown option --disable-userns' >&2; exit 1")
    assert "0.8 or newer" in machine.bubblewrap(tmp_path).fix


# --- KVM ----------------------------------------------------------------------------------------------------------


def test_without_the_device_there_is_no_kvm_and_another_device_is_not_it():
    assert machine.kvm("/dev/no-kvm").state == ABSENT
    found = machine.kvm("/dev/null")
    assert (found.state, "is no KVM device" in found.found) == (BROKEN, True)


def test_a_device_that_may_not_be_opened_is_told(monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "group kvm" in machine.kvm("/dev/null").fix


def test_the_finding_is_what_a_guest_did_in_a_process_of_its_own():
    if not os.path.exists(kvm.DEVICE):
        assert machine.kvm().state == ABSENT
        return
    done = subprocess.run([sys.executable, "-I", kvm.__file__], capture_output=True, text=True, check=False)
    found = machine.kvm()
    assert (found.state == OK) == (done.returncode == 0)
    assert done.stdout.split(":")[0].strip() in found.found


class FakeKernel:
    """KVM as its documentation says, for one guest: runs what lies at the instruction pointer."""

    def __init__(self, refuses=None, reason=kvm.EXIT_HLT, slow_s=0.0):
        self.refuses, self.reason, self.slow_s = refuses, reason, slow_s
        self.vcpu = os.memfd_create("vcpu")
        os.truncate(self.vcpu, mmap.PAGESIZE)
        self.segments = bytes(range(1, 25)) + bytes(288)
        self.memory = self.pointer = None

    def ioctl(self, fd, request, argument=0, mutate_flag=True):
        if request == self.refuses:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        if request == kvm.GET_SREGS:
            argument[:] = self.segments
        elif request == kvm.SET_SREGS:
            assert struct.unpack_from("=Q", argument) == (0,)
            assert struct.unpack_from("=H", argument, 12) == (0,)
            assert argument[13:] != bytes(299), "everything else is as the kernel gave it"
        elif request == kvm.SET_USER_MEMORY_REGION:
            _, _, at, size, address = struct.unpack("=IIQQQ", argument)
            self.memory = (at, size, address)
        elif request == kvm.SET_REGS:
            self.pointer, flags = struct.unpack("=18Q", argument)[16:]
            assert flags & 2, "bit 1 of the flags is always set"
        elif request == kvm.RUN:
            self.run()
        values = {kvm.GET_API_VERSION: 12, kvm.GET_VCPU_MMAP_SIZE: mmap.PAGESIZE, kvm.CREATE_VM: os.dup(1)}
        return values.get(request, os.dup(self.vcpu) if request == kvm.CREATE_VCPU else 0)

    def run(self):
        import ctypes

        at, size, address = self.memory
        assert at <= self.pointer < at + size
        assert ctypes.string_at(address + self.pointer - at, len(kvm.GUEST)) == kvm.GUEST
        end = time.thread_time() + self.slow_s
        while time.thread_time() < end:
            pass
        os.pwrite(self.vcpu, struct.pack("=I", self.reason), 8)


@contextmanager
def kernel(monkeypatch, **settings):
    fake = FakeKernel(**settings)
    monkeypatch.setattr(fcntl, "ioctl", fake.ioctl)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    yield fake
    os.close(fake.vcpu)


def test_a_guest_runs_until_it_halts(monkeypatch, capsys):
    with kernel(monkeypatch):
        assert kvm.boot("/dev/null")[0] == kvm.EXIT_HLT
        assert kvm.main("/dev/null") == 0
    assert capsys.readouterr().out == "boots: a guest ran and halted\n"


@pytest.mark.parametrize("step", sorted(kvm.STEPS))
def test_the_step_that_fails_is_named(monkeypatch, capsys, step):
    with kernel(monkeypatch, refuses=step):
        assert kvm.main("/dev/null") == 1
    assert capsys.readouterr().out == f"{kvm.STEPS[step]}: Operation not supported\n"


def test_a_guest_that_does_not_halt_is_no_boot(monkeypatch, capsys):
    with kernel(monkeypatch, reason=17):
        assert kvm.main("/dev/null") == 1
    assert "exit 17" in capsys.readouterr().out
    assert kvm.main("/dev/no-kvm") == 1


def test_a_guest_that_halts_late_was_interpreted_and_not_run(monkeypatch, capsys):
    with kernel(monkeypatch, slow_s=2 * kvm.SLOW_S):
        assert kvm.main("/dev/null") == 1
    assert "interprets its guests" in capsys.readouterr().out


# --- Docker -------------------------------------------------------------------------------------------------------


@contextmanager
def daemon(path, answer):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve():
            connection, _ = server.accept()
            with connection:
                asked.append(connection.recv(1000))
                if answer is not None:
                    connection.sendall(answer)

        asked = []
        thread = threading.Thread(target=serve)
        thread.start()
        yield asked
        thread.join()


def test_docker_is_a_daemon_that_answers(tmp_path, monkeypatch):
    path = tmp_path / "docker.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    assert machine.docker().state == ABSENT
    with daemon(path, b"HTTP/1.0 200 OK\r\nServer: Docker/28.2.2 (linux)\r\n\r\nOK") as asked:
        found = machine.docker()
    assert asked[0].startswith(b"GET /_ping HTTP/1.0\r\n")
    assert (found.state, found.found) == (OK, f"Docker/28.2.2 (linux) answers at unix://{path}")
    assert machine.docker().state == BROKEN, "a socket that nobody listens at"


@pytest.mark.parametrize("answer", [b"HTTP/1.0 503 Unavailable\r\n\r\n", b""])
def test_a_daemon_that_is_not_well_is_told(tmp_path, monkeypatch, answer):
    path = tmp_path / "docker.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    with daemon(path, answer):
        assert machine.docker().state == BROKEN


def test_a_daemon_that_never_answers_is_not_waited_for(tmp_path, monkeypatch):
    path = tmp_path / "docker.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    monkeypatch.setattr(machine, "SOCKET_S", 0.05)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        found = machine.docker()
    assert (found.state, "timed out" in found.found) == (BROKEN, True)


@pytest.mark.parametrize("address", ["ssh://host", "tcp://127.0.0.1:port", "nonsense"])
def test_an_address_that_cannot_be_asked_is_told(monkeypatch, address):
    monkeypatch.setenv("DOCKER_HOST", address)
    assert machine.docker().state == BROKEN


def test_findings_are_plain_data():
    import attrs

    assert json.loads(json.dumps(attrs.asdict(Finding("a", OK, "b")))) == {
        "name": "a", "state": "ok", "found": "b", "lost": "", "fix": "", "needed_by": [],
    }  # fmt: skip
