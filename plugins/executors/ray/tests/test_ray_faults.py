"""Real processes are killed under a run: it ends with the bytes of the undisturbed one, or stops and names why."""

import os
import signal
from pathlib import Path

import pytest

SMALL_DISK = Path(__file__).with_name("small_disk.sh")
STEPS, GROUPS = 6, 3
TWO = ("executor.workers=2", "executor.sampler_replicas=2")


def same_as(run, undisturbed):
    """Nothing was left out of the final weights, nothing is in them twice, and no void became a reward."""
    assert run.weights() == undisturbed.weights()
    assert run.trained() == undisturbed.trained()
    assert sorted(run.trained()) == [*range(1, STEPS + 1)]
    assert run.ledger()["counters"]["trained_groups"] == STEPS * GROUPS


def test_undisturbed_it_gives_the_bytes_of_one_process(run, undisturbed):
    made = run(*TWO).start().finish()
    same_as(made, undisturbed)
    assert not made.voids()
    assert made.figures("replica/", "/version") == {"replica/replica-0.0": STEPS, "replica/replica-1.1": STEPS}
    assert set(made.figures("", "/restarts").values()) == {0}


@pytest.mark.parametrize("name", ["worker/", "replica/"])
def test_a_killed_worker_or_replica_is_replaced_and_its_episodes_asked_again(run, undisturbed, name):
    made = run(*TWO).start()
    pid = made.kill(name, busy=True)
    made.finish()
    same_as(made, undisturbed)
    assert set(made.voids()) == {"lost"}
    assert any(f"({pid} on" in event["fault"]["error"] for event in made.events("FaultRecorded"))


def test_a_killed_trainer_stops_the_run_with_its_name_and_the_resumed_run_ends_the_same(run, undisturbed):
    made = run().start()
    pid = made.kill("rank/")
    code, said = made.end()
    assert code == 1
    assert f"rank-0 ({pid} on" in said
    assert "resume" in said
    made.resume().finish()
    same_as(made, undisturbed)


def test_a_killed_controller_leaves_no_process_and_the_resumed_run_ends_the_same(run, undisturbed):
    made = run().start()
    pids = [made.pid_of(name) for name in ("worker/", "replica/", "rank/")]
    os.kill(made.process.pid, signal.SIGKILL)
    made.stop()
    made.resume().finish()
    same_as(made, undisturbed)
    assert not [pid for pid in pids if alive(pid)]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# --- what goes wrong inside -----------------------------------------------------------------------------------------


def test_a_sandbox_that_never_answers_costs_its_episode_a_time_limit_and_the_run_nothing(run, undisturbed):
    made = run("sandbox.use=mishaps/stuck", "sandbox.every=60", "executor.episode_timeout_s=3").start().finish()
    same_as(made, undisturbed)
    assert set(made.voids()) == {"host"}
    assert any("has not ended within 3 s" in event["fault"]["error"] for event in made.events("FaultRecorded"))


def test_log_probabilities_that_are_no_numbers_make_their_episodes_void(run, undisturbed):
    made = run("sampler.use=mishaps/nan", "sampler.nan_share=0.1").start().finish()
    same_as(made, undisturbed)
    assert set(made.voids()) == {"sampler"}
    assert any("not finite" in event["fault"]["error"] for event in made.events("FaultRecorded"))


def test_a_task_that_always_crashes_its_episodes_is_left_out_and_counted(run, undisturbed):
    made = run("context.use=mishaps/crashing", "context.task=sum-3-10").start().finish()
    assert set(made.voids()) == {"host"}
    trained = [task for groups in made.trained().values() for task, _ in groups]
    assert len(trained) == STEPS * GROUPS
    assert "sum-3-10" not in trained
    assert "sum-3-10" in [task for groups in undisturbed.trained().values() for task, _ in groups]
    assert made.ledger()["counters"]["dropped/void"] > 0


def test_a_task_that_always_ends_its_process_stops_the_run_with_the_cause(run):
    made = run("executor.workers=2", "context.use=mishaps/crashing", "context.task=sum-3-10", "context.how=kill")
    made.sets += ["--set", "executor.restarts_per_hour=2"]
    code, said = made.start().end()
    assert code == 1
    assert "3 processes of the run were lost within an hour" in said
    assert "worker-" in said


# --- nodes ----------------------------------------------------------------------------------------------------------


def test_a_killed_environment_server_is_replaced_and_its_sandboxes_episodes_asked_again(run, undisturbed, tmp_path):
    mark = tmp_path / "asked"
    made = run(
        *("executor.workers=2", "executor.environments=true", "sandbox.use=mishaps/stuck", f"sandbox.mark={mark}"),
        plugins="ray,mishaps,server",
    ).start()
    made.until(mark.exists)  # from now on an episode waits for a sandbox of the server
    made.kill("environment/", step=0)
    made.finish()
    same_as(made, undisturbed)
    assert set(made.voids()) == {"lost"}


def test_a_node_that_vanishes_takes_its_processes_along_and_the_run_goes_on_without(run, undisturbed, second_node):
    made = run("executor.workers=3", "executor.sampler_replicas=2").start()
    rank = made.pid_of("rank/", step=0)
    os.kill(rank, signal.SIGSTOP)  # Ray may take seconds to notice, and the run is not to end before
    try:
        there = [name for name, pid in made.processes().items() if second_node.holds(pid)]
        assert there, "some of the run is on the second node"
        second_node.kill()
        made.until(lambda: made.processes() and not set(there) & made.processes().keys())
    finally:
        os.kill(rank, signal.SIGCONT)
    made.finish()
    same_as(made, undisturbed)
    assert set(made.voids()) <= {"lost"}
    said = [event["fault"]["error"] for event in made.events("FaultRecorded")]
    assert all(any(name.partition("/")[2] in text for text in said) for name in there)


def test_a_run_that_is_given_a_node_as_it_vanishes_starts_on_what_is_left(run, undisturbed, second_node):
    """Ray places processes there for a while."""
    made = run("executor.workers=3", "executor.sampler_replicas=2").start()
    made.until(lambda: made.events("RunStarted"))
    second_node.kill()
    made.finish()
    same_as(made, undisturbed)
    assert "gone" in made.events("FaultRecorded")[0]["fault"]["error"]


# --- the disk -------------------------------------------------------------------------------------------------------


def test_a_full_disk_stops_the_run_with_its_name_and_with_room_the_resumed_run_ends_the_same(
    own_run, tmp_path, undisturbed
):
    """In a cluster of the run's own, since only what it starts itself sees the small disk."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = own_run(disk, "sampler.turn_s=0.0", "trainer.step_s=0.0")
    unshared = ("unshare", "--user", "--map-root-user", "--mount", "sh", str(SMALL_DISK), str(disk))
    code, said = made.start(prefix=unshared).end(240)  # two clusters
    assert "full: 1\n" in said
    assert "the run folder cannot be written" in said
    assert "No space left on device" in said
    assert "Traceback" not in said
    assert code == 0, said
    made.folder = tmp_path / "disk.kept"
    same_as(made, undisturbed)
