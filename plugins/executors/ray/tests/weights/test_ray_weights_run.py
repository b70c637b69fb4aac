"""Weights of a run go through a store as differences, and a replica that joins late serves what the others serve."""

import hashlib
import json
import tempfile
from pathlib import Path


def run_digest(folder):
    return hashlib.sha256(bytes(folder.resolve())).hexdigest()[:16]


def loaded(run):
    """What each replica loaded, in order: process, version, base of what travelled, whether the bytes are right."""
    return [json.loads(line) for line in (run.folder / "loaded.jsonl").read_text().splitlines()]


def test_a_replica_that_joins_late_loads_the_published_version_out_of_the_chain(run, undisturbed, tmp_path):
    store = tmp_path / "store"
    shipped = (f"executor.weights_store={store}", "executor.weights_full_every=4", "sampler.use=mishaps/reading")
    made = run(*shipped, "executor.sampler_replicas=1").start()
    killed = made.kill("replica/", step=3)
    made.finish()
    assert made.weights() == undisturbed.weights()
    rows = loaded(made)
    assert all(row["right"] for row in rows)
    by_pid = {row["pid"]: [one["version"] for one in rows if one["pid"] == row["pid"]] for row in rows}
    late = [versions for pid, versions in by_pid.items() if min(versions) >= 3]
    assert killed in by_pid
    (versions,) = late
    assert versions == [*range(versions[0], rows[-1]["version"] + 1)], "it missed none from then on"
    assert {row["base"] is None for row in rows} == {True, False}, "whole ones and differences"
    committed = json.loads((made.folder / "commit.json").read_text())["weights"]["version"]
    assert (store / f"{committed}.json").exists()
    assert not (made.folder / "shipping").exists()
    assert not [*Path(tempfile.gettempdir()).glob(f"composer-weights-*-{run_digest(made.folder)}-*")]


def test_a_difference_that_the_store_damages_is_refused_and_its_version_sent_whole(run, undisturbed, tmp_path):
    made = run(f"executor.weights_store=damaging://{tmp_path}/store", "sampler.use=mishaps/reading").start().finish()
    assert made.weights() == undisturbed.weights()
    rows = loaded(made)
    assert all(row["right"] for row in rows)
    assert {row["base"] for row in rows if row["version"] == 2} == {None}
    assert {row["base"] for row in rows if row["version"] in (1, 3)} == {0, 2}
