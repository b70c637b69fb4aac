"""One command in a sandbox: bubblewrap's arguments, pipes that are always drained, the deadline, how it ended.

Between bubblewrap and the command stands a line of `sh`: it changes folder, sets the limits that count per sandbox
only inside its user namespace, tells "not found" (127) from "not executable" (126), and reports death by a signal on a
pipe of its own, since bubblewrap returns 128 + n for both a signal and an exit code. No byte on that pipe means that
the sandbox could not be set up: the machinery's fault, never the command's.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from composer_envkit.agent.deadlines import Timed
from composer_envkit.agent.sessions import Shell
from composer_envkit.agent.streams import Stream, source
from composer_plugin_local.keeper.rooms import WORKSPACE, Room
from composer_plugin_local.keeper.sandboxes import Sandbox
from composer_plugin_local.keeper.slots import STATUS_FD, Slot

SHELL = (
    f"exec 7>&2 2>&{STATUS_FD};printf + >&2;"
    "ulimit -c 0;ulimit -f $2;test $3 = 0||ulimit -v $3;ulimit -u $4 2>/dev/null||ulimit -p $4;"
    f'cd "$1" 2>&7||exit 126;unset OLDPWD;shift 4;("$@" 2>&7 7>&- {STATUS_FD}>&-);exit $?'
)
SHELL_PROCESSES = 3
"""bubblewrap's reaper, the shell and the shell's wait: inside the namespace beside the command's own."""


WALLS = (
    *("bwrap", "--unshare-user", "--disable-userns", "--unshare-pid", "--unshare-ipc", "--unshare-uts"),
    *("--unshare-cgroup-try", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
    *("--uid", "65534", "--gid", "65534", "--hostname", "sandbox", "--clearenv"),
    *("--dev-bind", "/", "/", "--proc", "/proc", "--remount-ro", "/"),
)
"""bubblewrap's arguments in a sandbox's room, which has the files and the network that a command may see."""


def variables(sandbox: Sandbox) -> dict[str, str]:
    """Of every command of a sandbox."""
    path = ":".join([*(f"/opt/{name}/bin" for name in sandbox.spec["tools"]), "/usr/local/bin", "/usr/bin", "/bin"])
    env = {"PATH": path, "HOME": "/tmp", "LANG": "C.UTF-8", "TMPDIR": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
    return {**env, **sandbox.spec["env"]}


class Command(Timed):
    """A started command. `done(header, data)` is called once, by `ended` or `lost`. With `shell` it is a session's."""

    def __init__(
        self,
        sandbox: Sandbox,
        slot: Slot,
        request: dict[str, Any],
        done: Callable[..., None],
        shell: Shell | None = None,
    ) -> None:
        """Raises OSError where there is no descriptor left."""
        super().__init__(request)
        self.sandbox, self.slot, self.done, self.shell = sandbox, slot, done, shell
        self.number: int = request["n"]
        self.killed = False
        self.pidfd = -1
        cap = request["output_bytes"]
        self.out, self.err, self.status = _streams(cap, cap, 1 << 10)
        sandbox.commands.add(self)

    @property
    def streams(self) -> tuple[Stream, Stream, Stream]:
        return self.out, self.err, self.status

    def start(self, room: Room, request: dict[str, Any], stdin: bytes | int) -> None:
        spec, env = self.sandbox.spec, {**variables(self.sandbox), **request["env"]}
        argv = [*WALLS, *(part for item in env.items() for part in ("--setenv", *item))]
        blocks = max(1, spec["file_bytes"] // 512)
        kilobytes = 0 if self.slot.groups else max(1, spec["memory_bytes"] // 1024)
        limits = [str(blocks), str(kilobytes), str(spec["processes"] + SHELL_PROCESSES)]
        argv += ["--", "/bin/sh", "-c", SHELL, "sh", f"{WORKSPACE}/{request['cwd']}", *limits, *request["argv"]]
        fd = source(stdin)
        try:
            fds = [fd, *(stream.theirs for stream in self.streams)]
            self.slot.start([os.fsencode(part) for part in argv], [*fds, room.root, room.network], spec)
        finally:
            os.close(fd)
            for stream in self.streams:
                os.close(stream.theirs)

    def kill(self) -> None:
        """Ends bubblewrap, and with it the whole pid namespace; waits for its start if need be."""
        self.killed = True
        if self.pidfd >= 0:
            try:
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            except ProcessLookupError:
                return

    def ran_out_of_memory(self) -> bool:
        return self.slot.ran_out_of_memory()

    def ended(self, wait_status: int) -> None:
        for stream in self.streams:
            stream.finish()
        code = os.waitstatus_to_exitcode(wait_status)
        mark = bytes(self.status.kept)
        oom = self.slot.ran_out_of_memory() and code != 0
        if not (mark or oom or self.killed):
            text = self.err.kept.decode(errors="replace").strip()
            self._finish({"error": "backend", "message": f"bubblewrap could not set up the sandbox: {text}"})
        elif self.timed_out:
            self._result("timeout")
        elif self.sandbox.destroyed_by is not None:
            self._finish({"error": "gone", "message": "the sandbox was destroyed while a command ran in it"})
        elif oom:
            self._result("oom")
        elif self.killed:
            self._result("signaled", signal_number=signal.SIGKILL)
        elif code > 128 and len(mark) > 1:
            self._result("signaled", signal_number=code - 128)
        else:
            self._result("exited", code)

    def refused(self, number: int) -> None:
        """bubblewrap itself could not be started; too long an argument list is the caller's doing."""
        self.err.kept += f"{os.strerror(number)}\n".encode()
        self.err.total = len(self.err.kept)
        if number == 7:  # E2BIG
            self._result("exited", 126)
        else:
            self._finish({"error": "backend", "message": f"bubblewrap could not be started: {os.strerror(number)}"})

    def lost(self) -> None:
        """The slot died. If the kernel killed for memory that was the command's doing, else nobody knows."""
        self._result("oom" if self.slot.ran_out_of_memory() else "lost")

    def _result(self, status: str, code: int | None = None, signal_number: int | None = None) -> None:
        header = {"status": status, "exit_code": code, "signal": signal_number, "split": len(self.out.kept)}
        header |= {"stdout_bytes": self.out.total, "stderr_bytes": self.err.total}
        self._finish({**header, "wall_s": self.wall_s}, bytes(self.out.kept + self.err.kept))

    def _finish(self, header: dict[str, Any], data: bytes = b"") -> None:
        self.close()
        self.done(header, data)

    def close(self) -> None:
        for stream in self.streams:
            stream.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
        self.sandbox.commands.discard(self)


def _streams(*caps: int) -> list[Stream]:
    """All of them, or none."""
    made: list[Stream] = []
    try:
        for cap in caps:
            made.append(Stream(cap))
    except OSError:
        for stream in made:
            os.close(stream.theirs)
            stream.close()
        raise
    return made
