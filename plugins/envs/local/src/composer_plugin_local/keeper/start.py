"""Enter the keeper's namespaces, then serve: `python -I -S -B -c ... SETTINGS`, the socket's number among them.

Three processes in a row, each of which dies with the one before it: the launcher, which (as root) makes control
groups and removes them at the end; one that gives up its privileges and unshares; and the keeper itself, first process
of its pid namespace, so the kernel kills everything below it when it ends. Its socket's end of file is its stop.
As root everything below the launcher runs as `nobody`: the keeper holds no power over the host. Nothing below it has a
network, so no slip could give one to a command.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import stat
import sys
from typing import Any

from composer_envkit.agent import linux
from composer_plugin_local.keeper.cgroups import Groups, delegate, remove
from composer_plugin_local.keeper.layers import INODES_PER_SANDBOX
from composer_plugin_local.keeper.server import Server

NOBODY = 65534
DEEPEST_CALLS = 4 * INODES_PER_SANDBOX
"""A command may nest folders as deep as it may make any, and whoever copies them goes along."""
BASE = "/mnt"
"""Hidden, in the keeper's own mount namespace, below a fresh tmpfs that holds all templates and sandboxes."""


def main() -> None:
    settings = json.loads(sys.argv[1])
    root = os.geteuid() == 0
    groups = delegate(NOBODY) if root and settings["cgroups"] else None
    pid = os.fork()
    if pid == 0:
        _guarded(_unshare, settings, groups, root)
    os.close(settings["socket"])
    _, status = os.waitpid(pid, 0)
    if groups:
        remove(groups)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _guarded(step: Any, *arguments: Any) -> None:
    try:
        step(*arguments)
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
        os._exit(70)
    os._exit(0)


def _unshare(settings: dict[str, Any], groups: Groups | None, root: bool) -> None:
    if groups:
        groups.join("keeper")
    if root:
        linux.unshare(linux.CLONE_NEWNS)
        _lay_base(settings)
        os.chown(BASE, NOBODY, NOBODY)
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        linux.prctl(linux.PR_SET_DUMPABLE, 1)  # else /proc/self/uid_map stays root's
    uid, gid = os.getuid(), os.getgid()
    linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWNET)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    if not root:
        _lay_base(settings)
    pid = os.fork()
    if pid == 0:
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        _guarded(_serve, settings, groups)
    os.close(settings["socket"])
    _, status = os.waitpid(pid, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _lay_base(settings: dict[str, Any]) -> None:
    """A tmpfs over BASE, and in it the tools outside the system's folders (which perhaps only root can reach)."""
    linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    tools = {name: os.open(path, os.O_PATH) for name, path in settings["tools"].items()}
    linux.mount("tmpfs", BASE, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=1m")
    for name, fd in tools.items():
        target = f"{BASE}/tools/{name}"
        os.makedirs(target)
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            os.mkdir(f"{target}/bin")
            target = f"{target}/bin/{name}"
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
        linux.mount(f"/proc/self/fd/{fd}", target, "", linux.MS_BIND | linux.MS_REC)
        os.close(fd)
    os.mkdir(f"{BASE}/state")
    os.chmod(f"{BASE}/state", 0o777)


def _serve(settings: dict[str, Any], groups: Groups | None) -> None:
    os.umask(0o022)
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV)  # bubblewrap looks up pids of our namespace
    sys.setrecursionlimit(DEEPEST_CALLS)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # three descriptors a sandbox
    state = f"{BASE}/state"
    options = f"mode=755,size={settings['store_bytes']}"
    linux.mount("tmpfs", state, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
    with socket.socket(fileno=settings["socket"]) as channel:
        Server(channel, state, f"{BASE}/tools", groups, settings).serve()
