"""Real gloo ranks on loopback, with rows of unequal length: what they compute, what they write, who is named.

`rank_worker.py` is what each of them runs.
"""

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
LIMIT_S = 240


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run(folder: Path, play: str, ranks: int, ends: tuple[int | None, ...] = ()) -> Path:
    """Start the ranks and wait until each has ended as `ends` says (default well; None: it is killed here at last)."""
    folder.mkdir()
    base = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(ranks),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), play, str(folder)],
            env={**base, "RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {**os.environ},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        for process, end in zip(processes, ends or (0,) * ranks, strict=True):
            if end is not None:
                _, errors = process.communicate(timeout=LIMIT_S)
                assert process.returncode == end, errors
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("ranks")
    return _run(root / "one", "works", 1), _run(root / "two", "works", 2)


@pytest.fixture(scope="module")
def results(folders) -> tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]:
    one, two = folders
    return load_file(one / "rank0.safetensors"), [load_file(two / f"rank{rank}.safetensors") for rank in (0, 1)]


def test_two_ranks_of_unequal_length_give_the_gradients_of_one(results):
    alone, both = results
    for name in ("rl", "kl", "nll"):
        for rank in both:
            torch.testing.assert_close(rank[name], alone[name], rtol=1e-4, atol=1e-7)
    assert alone["rl"].abs().max() > 1e-4


def test_the_gradient_is_the_same_in_every_cut_and_order_on_one_rank_and_on_two(results):
    alone, both = results
    assert alone["counts"].tolist() == [1, 2, 4]
    expected = alone["cut1+1"]
    assert expected.abs().max() > 1e-4
    for each in (alone, *both):
        for cuts in (1, 2, 4):
            for order in ("+1", "-1"):
                torch.testing.assert_close(each[f"cut{cuts}{order}"], expected, rtol=1e-4, atol=1e-7)


def test_both_ranks_end_with_the_same_bytes_of_weights(results):
    _, (first, second) = results
    assert first["weights"].equal(second["weights"])


def test_metrics_are_those_of_the_whole_batch_on_every_rank(results):
    alone, both = results
    assert alone["parity_tokens"] > 0
    for rank in both:
        torch.testing.assert_close(rank["metrics"], alone["metrics"], rtol=1e-4, atol=1e-6)


def test_ranks_that_start_from_other_weights_take_those_of_the_first(results):
    _, (first, second) = results
    assert first["start"].equal(second["start"])


def test_the_first_rank_alone_writes_and_what_it_writes_is_what_one_rank_alone_would(folders):
    one, two = folders
    assert {path.name for path in two.iterdir()} == {path.name for path in one.iterdir()} | {"rank1.safetensors"}
    for name in ("weights", "optimizer", "reference"):
        ours, theirs = (load_file(folder / "saved0" / f"{name}.safetensors") for folder in (two, one))
        assert set(ours) == set(theirs)
        for key, tensor in ours.items():
            torch.testing.assert_close(tensor, theirs[key], rtol=1e-3, atol=1e-6)
    assert (two / "saved0/trainer.json").read_text() == (one / "saved0/trainer.json").read_text()


def test_ranks_that_load_what_they_saved_end_with_the_bytes_of_not_having_stopped(folders):
    for folder in folders:
        whole, resumed = ((folder / f"{name}0.safetensors").read_bytes() for name in ("whole", "resumed"))
        assert whole == resumed


def test_every_rank_computes_with_exactly_the_16_bits_that_are_published(folders, results):
    _, both = results
    published = load_file(folders[1] / "published0.safetensors")
    assert {tensor.dtype for tensor in published.values()} == {torch.bfloat16}
    for rank in both:
        computes = {name.removeprefix("computes/"): tensor for name, tensor in rank.items() if "/" in name}
        assert computes.keys() == published.keys()
        assert all(tensor.equal(published[name].float()) for name, tensor in computes.items())
    first, second = (rank["masters"] for rank in both)
    assert first.equal(second)
    assert not first.equal(first.bfloat16().float()), "rounding took something"


def test_two_ranks_give_the_loss_curve_of_one(results):
    """A mixture of experts through imitation and reinforcement."""
    alone, both = results
    for rank in both:
        torch.testing.assert_close(rank["losses"], alone["losses"], rtol=1e-4, atol=1e-6)
    assert alone["losses"][11] < 0.8 * alone["losses"][0]


@pytest.mark.parametrize(
    ("how", "ranks", "ends", "said"),
    [
        ("raises@1", 2, (0, 0), "rank 1 of 2 failed: this card has fallen off the bus"),
        ("is-killed@1", 3, (0, -9, 0), "rank 1 of 3 is gone"),
        ("is-killed@0", 3, (-9, 0, 0), "rank 0 of 3 is gone"),
        ("hangs@1", 2, (0, None), "rank 1 of 2 is gone"),
    ],
)
def test_a_rank_that_fails_is_named_by_all_and_nobody_waits_for_it_again(how, ranks, ends, said, tmp_path):
    folder = _run(tmp_path / "ranks", how, ranks, ends)
    for rank in (rank for rank, end in enumerate(ends) if end == 0):
        first, again = (folder / f"rank{rank}.txt").read_text().strip().split("\n\n")
        assert first.startswith(said)
        assert again.startswith("the ranks have lost one of them") and said in again
