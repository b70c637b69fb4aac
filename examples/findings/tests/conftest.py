"""The example's own modules and its plugin's are imported from where they stand, here and in processes of tests."""

import sys
from pathlib import Path

import pytest

from composer_core import statistics

HERE = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(HERE), str(HERE / "src")]


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 200)


@pytest.fixture(autouse=True)
def found_by_other_processes(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE / "src"))
