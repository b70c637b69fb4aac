"""Slots: small forked processes that start one command at a time, each in a control group of its own.

A slot waits until everything its command left behind is gone (it adopts orphans), so a result always means that no
process remains. It blocks freely because it does nothing else; the keeper never blocks on it.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import sys
from array import array
from typing import Any

from composer_envkit.agent import linux
from composer_plugin_local.keeper.cgroups import Groups

STATUS_FD = 9
NAMESPACES = (("mnt", linux.CLONE_NEWNS), ("net", linux.CLONE_NEWNET))
EXTRA_PROCESSES = 6
"""The slot itself, bubblewrap's two, the shell that sets limits, and two to spare."""


def receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """One message and its descriptors, which no command inherits. (`socket.recv_fds` of 3.11 drops its flags.)"""
    fds = array("i")
    message, rest, _, _ = channel.recvmsg(16, socket.CMSG_LEN(8 * fds.itemsize), socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in rest:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return message, list(fds)


class Slot:
    """The keeper's end of one slot. Messages from it: P with a pidfd, then X with a wait status, or E with an errno."""

    def __init__(self, number: int, groups: Groups | None, program: str) -> None:
        """`program` is what commands are started with; their first word is only its name."""
        self.name = f"slot-{number}"
        self.groups = groups
        self.kills = 0
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            _run(theirs, groups, self.name, program)
        theirs.close()
        self.channel = ours
        if ours.recv(1) != b"R":
            raise OSError(errno.EIO, "a slot could not start")
        if groups:
            self.kills = groups.kills(self.name)

    def start(self, argv: list[bytes], fds: list[int], spec: dict[str, Any]) -> None:
        """Start a command; `fds` are its stdin, stdout, stderr and status pipe, and its room's namespaces."""
        if self.groups:
            self.groups.limit(self.name, spec["memory_bytes"], spec["processes"] + EXTRA_PROCESSES)
        text = os.memfd_create("argv")
        try:
            with open(os.dup(text), "wb") as file:
                file.write(b"\0".join(argv))
            socket.send_fds(self.channel, [b"S"], [*fds, text])
        finally:
            os.close(text)

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel killed for memory since the last call."""
        if not self.groups:
            return False
        before, self.kills = self.kills, self.groups.kills(self.name)
        return self.kills > before

    def close(self) -> None:
        self.channel.close()
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        if self.groups:
            self.groups.leave(self.name)


def _run(channel: socket.socket, groups: Groups | None, name: str, program: str) -> None:
    try:
        own = channel.detach()
        os.dup2(own, 3)
        linux.close_from(4)
        channel = socket.socket(fileno=3)
        channel.set_inheritable(False)
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
        if groups:
            groups.join(name)
        channel.send(b"R")
        path = f"/proc/self/fd/{os.open(program, os.O_PATH | os.O_CLOEXEC)}"
        base = [(os.open(f"/proc/self/ns/{name}", os.O_RDONLY), kind) for name, kind in NAMESPACES]
        while _serve_one(channel, path, base):
            pass
    except BaseException as error:
        sys.stderr.write(f"slot: {error}\n")
    os._exit(0)


def _serve_one(channel: socket.socket, path: str, base: list[tuple[int, int]]) -> bool:
    message, fds = receive(channel)
    if not message:
        return False
    stdin, stdout, stderr, status, root, network, text = fds
    size = os.fstat(text).st_size
    argv = os.pread(text, size, 0).split(b"\0")
    actions = [(os.POSIX_SPAWN_DUP2, fd, at) for fd, at in ((stdin, 0), (stdout, 1), (stderr, 2), (status, STATUS_FD))]
    try:
        linux.setns(network, linux.CLONE_NEWNET)
        linux.setns(root, linux.CLONE_NEWNS)
        pid = os.posix_spawn(path, argv, {}, file_actions=actions)
    except OSError as error:
        channel.send(b"E" + struct.pack("!i", error.errno or 0))
        return True
    finally:
        for fd, kind in base:
            linux.setns(fd, kind)
        for fd in fds:
            os.close(fd)
    handle = os.pidfd_open(pid)
    socket.send_fds(channel, [b"P"], [handle])
    os.close(handle)
    channel.send(b"X" + struct.pack("!i", _reap(pid)))
    return True


def _reap(pid: int) -> int:
    """The wait status of `pid`, once no child of any kind is left.

    bubblewrap's inner process asks to die with the outer one, but only some time after its start; one that is orphaned
    before that has become our child (we adopt orphans) and is killed here.
    """
    found = os.waitpid(pid, 0)[1]
    while True:
        try:
            gone, _ = os.waitpid(-1, os.WNOHANG)
            if not gone:
                for orphan in _children():
                    os.kill(orphan, signal.SIGKILL)
                os.waitpid(-1, 0)
        except ChildProcessError:
            return found


def _children() -> list[int]:
    """Our children, none of which can be a stranger: their numbers are ours until we have waited for them."""
    own, found = os.getpid(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue  # gone meanwhile
            if int(fields[1]) == own:
                found.append(int(name))
    return found
