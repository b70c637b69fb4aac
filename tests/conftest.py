"""Helpers of the tests that cross distributions: the command line in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
COMPOSER_RUN = [sys.executable, "-m", "composer_core.cli"]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def composer_run():
    """Run `composer-run ARGS` and return the finished process."""

    def run(*args: object, timeout_s: float = 120, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMPOSER_RUN, *map(str, args)],
            cwd=cwd,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    return run
