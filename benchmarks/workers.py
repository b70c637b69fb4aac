"""Peers in environments of their own, and processes that are measured by asking them.

A peer's packages are installed on demand into the user's cache folder and kept there. A peer that cannot be had is said
so in capitals, and its rows stay without a ratio.

A worker is a process that answers each line of JSON on its standard input with one on its standard output; an idle one
costs nothing, so two sides are measured in turns without sharing threads, allocators or imports. Only the standard
library here: workers import this module in environments that hold nothing of ours.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

FOLDER = Path(__file__).resolve().parent
PEERS = FOLDER / "peers"
GRACE_S = 30
"""How long a worker may take to end by itself."""


def environment(name: str, *requirements: str) -> Path | None:
    """The interpreter of an environment that holds `requirements`, made if need be; None, loudly, if it cannot be."""
    wanted = hashlib.sha256("\n".join([sys.version, *requirements]).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "composer-benchmarks"
    folder = cache / f"{name}-{wanted}"
    python, ready = folder / "bin/python", folder / ".ready"
    if not ready.exists():
        print(f"installing {', '.join(requirements)} into {folder}", file=sys.stderr, flush=True)
        try:
            venv.create(folder, with_pip=True, clear=True)
            install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
            subprocess.run(install, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"PEER LEFT OUT: {', '.join(requirements)} cannot be installed: {error}", file=sys.stderr, flush=True)
            return None
        ready.touch()
    return python


class Worker:
    """A script of `benchmarks/peers` in a process of its own, run by `python`; a context manager that ends it."""

    def __init__(self, python: str | Path, script: str, *arguments: str, **environ: str) -> None:
        self._process = subprocess.Popen(
            [str(python), str(PEERS / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(FOLDER), **environ},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def ask(self, **request: Any) -> Any:
        """The worker's answer; RuntimeError with its words if it failed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["value"]

    def close(self) -> None:
        """Safe twice."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def serve(answer: Callable[..., Any]) -> None:
    """A worker's side: `answer` is called with each request; whatever else prints goes to standard error."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        try:
            reply = {"value": answer(**json.loads(line))}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)
