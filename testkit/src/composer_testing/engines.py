"""A container engine of one's own for tests and measurements: a real dockerd that shares nothing with another.

Data, run-time state, sockets and log lie in one temporary folder; it sets up no bridge and no packet filter. It is
ended by its process id, and the folder is removed. dockerd needs root: where there is none, or no dockerd, this is an
error that says what to do, since a test that is skipped shows nothing. `COMPOSER_ENGINE` may name another to use.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from composer_core.errors import ConfigError

ADDRESS = "COMPOSER_ENGINE"
START_S, STOP_S = 60.0, 30.0
FIX = (
    "run as root with dockerd installed (apt install --no-install-recommends docker.io), or name an engine that may be "
    f"used: {ADDRESS}=unix:///run/docker.sock"
)
WORDS = "--bridge none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false --userland-proxy=false"


@contextmanager
def own_engine() -> Iterator[str]:
    """The address of an engine that is there until the block ends.

    Raises:
        ConfigError: none can be started; with the end of its log.
    """
    if os.environ.get(ADDRESS):
        yield os.environ[ADDRESS]
        return
    program = shutil.which("dockerd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None or os.geteuid() != 0:
        found = "no dockerd" if program is None else "not root"
        raise ConfigError("no container engine can be started", expected="root and dockerd", found=found, fix=FIX)
    folder = Path(tempfile.mkdtemp(prefix="dockerd-", dir="/tmp"))  # short, as the path of a socket has to be
    try:
        with _daemon(program, folder) as address:
            yield address
    finally:
        shutil.rmtree(folder)


@contextmanager
def _daemon(program: str, folder: Path) -> Iterator[str]:
    address = f"unix://{folder}/docker.sock"
    places = ["--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid"]
    argv = [program, *places, "--host", address, *WORDS.split()]
    with open(folder / "log", "wb") as log:
        null = subprocess.DEVNULL
        daemon = subprocess.Popen(argv, stdin=null, stdout=log, stderr=log, start_new_session=True)
    try:
        _await(daemon, folder)
        yield address
    finally:
        daemon.terminate()
        try:
            daemon.wait(STOP_S)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _await(daemon: subprocess.Popen[bytes], folder: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and daemon.poll() is None:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(5)
            probe.connect(f"{folder}/docker.sock")
            probe.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            if b"200" in probe.recv(100):
                return
        time.sleep(0.1)
    end = (folder / "log").read_text(errors="replace")[-3000:]
    raise ConfigError("dockerd did not start", found=end, fix=FIX)
