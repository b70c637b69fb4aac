"""Two real gloo ranks on loopback, with rows of unequal length, give the gradient of one rank."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

WORKER = Path(__file__).with_name("rank_worker.py")
LIMIT_S = 120


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run(folder: Path, ranks: int) -> list[dict[str, torch.Tensor]]:
    """Start the ranks, wait for all of them, and read what each wrote."""
    folder.mkdir()
    port = _free_port()
    base = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(folder)],
            env={**base, "RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {**os.environ},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [load_file(folder / f"rank{rank}.safetensors") for rank in range(ranks)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]:
    root = tmp_path_factory.mktemp("ranks")
    (alone,) = _run(root / "one", 1)
    return alone, _run(root / "two", 2)


def test_two_ranks_of_unequal_length_give_the_gradients_of_one(results):
    alone, both = results
    for name in ("rl", "kl", "nll"):
        for rank in both:
            torch.testing.assert_close(rank[name], alone[name], rtol=1e-4, atol=1e-7)
    assert alone["rl"].abs().max() > 1e-4


def test_both_ranks_end_with_the_same_bytes_of_weights(results):
    _, (first, second) = results
    assert first["weights"].equal(second["weights"])


def test_metrics_are_those_of_the_whole_batch_on_every_rank(results):
    alone, both = results
    for rank in both:
        torch.testing.assert_close(rank["metrics"], alone["metrics"], rtol=1e-4, atol=1e-6)


def test_ranks_that_start_from_other_weights_take_those_of_the_first(results):
    _, (first, second) = results
    assert first["start"].equal(second["start"])
