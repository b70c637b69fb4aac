"""Runs as the first process of a virtual machine: what the keeper does with control groups of version 2.

The launcher and its namespaces are the real ones; in place of the server, which needs overlays that this kernel has as
a module only, stands `Trial`: it starts commands in slots and prints how they ended, a JSON line for each scene.
"""

import ctypes
import json
import os
import socket
import sys
import termios

from composer_envkit.agent import linux
from composer_envkit.agent.streams import Stream
from composer_plugin_local.keeper import start
from composer_plugin_local.keeper.cgroups import ROOT
from composer_plugin_local.keeper.slots import Slot, receive

HOG = "x = bytearray({} << 20); print('had it')"
FORKS = "for i in $(seq 60); do sleep 5 & done; echo all"
POWER_OFF = 0x01234567


class Trial:
    """What `start` calls in place of the server."""

    def __init__(self, channel, state, tools, groups, settings):
        self.state, self.groups = state, groups

    def serve(self):
        if self.groups is None:
            say(groups=None)
            return
        slot = Slot(0, self.groups, "/usr/bin/env")
        say(
            groups=os.path.dirname(self.groups.memory),
            version=self.groups.version,
            hog=self.run(slot, "python3", "-S", "-c", HOG.format(300)),
            after=self.run(slot, "echo", "alive"),
            kept=self.run(slot, "sh", "-c", f"head -c 40000000 /dev/zero > {self.state}/kept"),
            beside=self.run(slot, "python3", "-S", "-c", HOG.format(30)),
            forks=self.run(slot, "sh", "-c", FORKS),
            last=self.run(slot, "echo", "alive"),
        )
        slot.close()

    def run(self, slot, *argv):
        """[wait status, whether the kernel killed for memory, what it printed]; 64 MiB and ten processes."""
        out, null = Stream(1000), os.open("/dev/null", os.O_RDWR)
        own = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in ("mnt", "net")]
        words = ["env", "PATH=/usr/bin:/bin", *argv]
        spec = {"memory_bytes": 64 << 20, "processes": 10}
        slot.start([word.encode() for word in words], [null, out.theirs, null, null, *own], spec)
        os.close(out.theirs)
        while (message := receive(slot.channel)[0])[:1] == b"P":
            continue
        out.finish()
        return [int.from_bytes(message[1:], "big"), slot.ran_out_of_memory(), out.kept.decode()]


def say(**fields):
    os.write(CONSOLE, f"\nscene {json.dumps(fields)}\n".encode())


def scene(group):
    """The launcher, from within a group; then what it has left."""
    launcher = os.fork()
    if launcher == 0:
        with open(f"{group}/cgroup.procs", "w") as file:
            file.write("0")
        null = os.open("/dev/null", os.O_RDWR)
        sys.argv[1:] = [
            json.dumps(
                {"cgroups": True, "tools": {}, "store_bytes": 64 << 20, "socket": socket.socketpair()[0].detach()}
            )
        ]
        os.dup2(null, 0)
        start.Server = Trial
        start.main()
    os.waitpid(launcher, 0)
    left = [name for _, names, _ in os.walk(ROOT) for name in names if name.startswith("composer-")]
    say(left=left)


def main():
    linux.mount("cgroup2", ROOT, "cgroup2")
    scene(ROOT)
    service = f"{ROOT}/service"
    os.mkdir(service)
    os.mkdir(f"{ROOT}/composer-999999")  # of a launcher that is no more
    if os.fork() == 0:  # it has another process, so it can give nothing to groups below
        with open(f"{service}/cgroup.procs", "w") as file:
            file.write("0")
        os.execv("/bin/sleep", ["sleep", "600"])
    scene(service)
    with open(f"{service}/memory.max", "w") as file:
        file.write(str(400 << 20))
    scene(service)


CONSOLE = os.open("/dev/ttyS0", os.O_WRONLY | os.O_NOCTTY)
try:
    os.dup2(CONSOLE, 1)
    os.dup2(CONSOLE, 2)
    main()
finally:
    termios.tcdrain(CONSOLE)
    ctypes.CDLL(None).reboot(POWER_OFF)
