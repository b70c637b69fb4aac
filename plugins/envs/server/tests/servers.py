"""A real `composer-run envd` for tests, and the client's provider for it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import define

from composer_plugin_server.config import RemoteConfig
from composer_plugin_server.remote import RemoteProvider

TOKEN = "a-token-that-only-tests-know"
START_S = 120


@define
class Envd:
    """A running server process."""

    process: subprocess.Popen
    url: str
    node: str
    said: str

    def provider(self, **settings) -> RemoteProvider:
        return RemoteProvider(RemoteConfig(urls=(self.url,), **settings), TOKEN)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def start(use: str, state: Path, *overrides: str) -> Envd:
    """A server of its own process, on a free port; whoever starts it ends it."""
    settings = [f"sandbox.use={use}", "server.port=0", f"server.state={state}", *overrides]
    argv = [sys.executable, "-m", "composer_core.cli", "--plugins", use.partition("/")[0], "envd"]
    argv += [word for text in settings for word in ("--set", text)]
    environment = {**os.environ, "COMPOSER_ENVD_TOKEN": TOKEN, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    said = ""
    until_s = time.monotonic() + START_S
    for line in process.stdout:
        said += line
        found = re.search(r" at (http\S+), node (\w+)", line)
        if found:
            return Envd(process, found[1], found[2], said)
        if time.monotonic() > until_s:
            break
    process.kill()
    process.wait()
    process.stdout.close()
    raise AssertionError(f"the server did not start: {said}")


@contextmanager
def envd(use: str, state: Path, *overrides: str) -> Iterator[Envd]:
    running = start(use, state, *overrides)
    try:
        yield running
    finally:
        end(running)


def end(running: Envd) -> None:
    """By its process id, and at once if it does not follow."""
    if running.process.poll() is None:
        running.process.terminate()
        try:
            running.process.wait(15)
        except subprocess.TimeoutExpired:
            running.process.kill()
            running.process.wait()
    running.process.stdout.close()
