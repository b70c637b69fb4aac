"""`ray/ray` keeps the contract of its kind, on real actors."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
import ray
from ray.exceptions import AuthenticationError

from composer_core.errors import ConfigError
from composer_plugin_ray.cluster import Cluster
from composer_plugin_ray.config import RayConfig
from composer_plugin_ray.executor import RayExecutor
from composer_plugin_ray.remote import start
from composer_testing.contracts.executors import ExecutorContract
from composer_testing.contracts.hook_modules import HookModuleContract

FAKES = Path(__file__).resolve().parents[4] / "examples/fakes/run.toml"
COMPOSER_RUN = [sys.executable, "-m", "composer_core.cli"]


class TestHookModule(HookModuleContract):
    module = "composer_plugin_ray.plugin"


@pytest.mark.usefixtures("cluster")
class TestRayExecutor(ExecutorContract):
    def build(self, context):
        return RayExecutor(RayConfig(workers=1, episodes_per_worker=16), context)


@pytest.mark.parametrize("error", [ConnectionError("Failed to connect"), AuthenticationError("no token")])
def test_a_cluster_that_lets_nobody_in_is_a_mistake_of_the_run_file_and_tokens_are_named(monkeypatch, error):
    def init(**options):
        assert options["address"] == "10.0.0.1:6379"
        raise error

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", init)
    with pytest.raises(ConfigError, match="no Ray cluster lets us in") as told:
        asyncio.run(Cluster(RayConfig(address="10.0.0.1:6379")).open())
    assert str(error) in told.value.fields["found"] and "RAY_AUTH_MODE=token" in told.value.fields["fix"]


def test_a_cluster_of_our_own_that_ray_gives_up_is_a_mistake_with_its_reason(monkeypatch):
    def init(**_options):
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", init)
    with pytest.raises(ConfigError, match="Ray does not start") as told:
        asyncio.run(Cluster(RayConfig()).open())
    assert "a cluster of our own: Exception: The current node timed out" in told.value.fields["found"]


def test_check_says_what_environment_servers_need_and_what_the_processes_take():
    def told(*sets, plugins="ray"):
        words = [word for text in ("executor.use=ray/ray", *sets) for word in ("--set", text)]
        command = [*COMPOSER_RUN, "--plugins", plugins, "check", str(FAKES), *words]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return found.returncode, found.stdout + found.stderr

    assert told()[0] == 0
    assert "worker of ray/ray" in told()[1]
    code, said = told("executor.environments=true")
    assert (code, "the plugin 'server' is not loaded" in said) == (2, True), said
    assert told("executor.environments=true", plugins="ray,server")[0] == 0


@pytest.mark.usefixtures("cluster")
def test_a_process_knows_the_address_that_ray_has_of_its_node():
    remote = start("probe", {"num_cpus": 0}, dict)
    found = asyncio.run(remote.found())
    (node,) = (one for one in ray.nodes() if one["NodeID"] == found.node)
    assert found.address == node["NodeManagerAddress"]
    remote.kill()


def test_an_evaluation_of_a_finished_run_gives_the_same_on_ray(cluster, undisturbed):
    def evaluated(*sets):
        words = [word for text in (*undisturbed.BASE, *sets) for word in ("--set", text)]
        command = ["--plugins", "ray", "eval", str(FAKES), "--run", str(undisturbed.folder), *words]
        process = subprocess.run([*COMPOSER_RUN, *command], capture_output=True, text=True, timeout=120, check=False)
        assert process.returncode == 0, process.stderr
        return json.loads(process.stdout)

    assert evaluated("executor.use=ray/ray", f"executor.address={cluster}") == evaluated()
