"""Lets test modules import `mxfp8_cases` beside them, on one thread each."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The layers here are smaller than the cost of waking a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
