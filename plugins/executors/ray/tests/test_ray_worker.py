"""A worker and a replica as ordinary objects of one process: no Ray, only what would travel."""

import asyncio
import pickle

import pytest

import composer_plugin_ray.worker as worker_module
from composer_core import Column
from composer_core.assembly import Assembly
from composer_core.config import structure, to_data
from composer_core.errors import ConfigError, WorkLost
from composer_core.evaluate import request_for
from composer_core.plugins import Plugins, select
from composer_core.rundir import RunDir
from composer_core.types import GenerateRequest, GenerateSettings, SlotKey, WeightsRef
from composer_plugin_ray.blueprint import Blueprint
from composer_plugin_ray.figures import Figures
from composer_plugin_ray.line import Line
from composer_plugin_ray.replica import SamplerReplica
from composer_plugin_ray.worker import RolloutWorker
from composer_testing.contracts.executors import RUN


class Near:
    """Stands for a handle of an actor; what crosses is pickled as it would be."""

    def __init__(self, made):
        self._made, self.gone = made, False

    async def exchange(self, batch):
        if self.gone:
            raise WorkLost("process replica-0.0 is gone")
        return pickle.loads(pickle.dumps(await self._made.exchange(pickle.loads(pickle.dumps(batch)))))


@pytest.fixture
def build(tmp_path):
    config = structure({**RUN, "samplers": {"broken": {"use": "fakes/learner", "void_share": 1.0}}}, "test")
    plugins = Plugins().load(select(config.plugins))
    RunDir(tmp_path / "run").create(to_data(config), plugins.manifest())
    (tmp_path / "run/weights/7.safetensors").write_bytes(b"any")
    return Assembly(config, plugins.registry, tmp_path / "run").build_context()


def request_of(build, attempt):
    task = build.get("tasks").tasks("train")[0]
    return request_for(task, SlotKey(task.id, attempt), 1, {})


def played(build, main):
    async def whole():
        blueprint, events = Blueprint.of(build), []
        replica = SamplerReplica(blueprint, 0, "")
        worker = RolloutWorker(blueprint, 0, "worker-0.0", 8)
        await asyncio.gather(replica.start(), worker.start(None))
        near = Near(replica)
        await worker.use({"replica-0.0": near})
        figures = Figures(events.append)
        line = Line("controller", Near(worker).exchange, figures.worker("worker-0.0"))
        try:
            return await asyncio.wait_for(main(line, replica, near, figures, events), 20)
        finally:
            await line.close()
            await worker.close()
            await replica.close()

    return asyncio.run(whole())


def test_an_episode_runs_in_the_worker_with_the_replicas_weights_and_tells_of_itself(build):
    async def main(line, replica, near, figures, events):
        await replica.load(WeightsRef(7, "weights/7.safetensors", ""))
        result = await line.call("run", request_of(build, 0), "replica-0.0", False)
        assert result.verdict.valid
        assert result.oldest_version == 7
        assert build.get("stores").get(result.trace.uri)
        assert [type(event).__name__ for event in events][:2] == ["EpisodeStarted", "TurnEnded"]
        assert figures.stats()["sampler/tokens"] == result.stats["tokens"]
        assert figures.stats()["sandboxes_created"] >= 1

    played(build, main)


def test_what_a_long_episode_does_is_told_before_it_ends(build, monkeypatch):
    monkeypatch.setattr(worker_module, "FRESH_S", 0.0)

    async def main(line, replica, near, figures, events):
        sampler, stuck = replica._samplers["policy"]._made, asyncio.Event()
        generate = sampler.generate

        async def stops_at_the_second_turn(ids, settings, request):
            if request.position:
                await stuck.wait()
            return await generate(ids, settings, request)

        sampler.generate = stops_at_the_second_turn
        running = asyncio.ensure_future(line.call("run", request_of(build, 3), "replica-0.0", False))
        while "TurnEnded" not in [type(event).__name__ for event in events]:
            await asyncio.sleep(0.001)
        assert figures.stats()["sampler/tokens"] > 0, "what the watchdog takes for progress"
        assert not running.done()
        stuck.set()
        assert (await running).verdict.valid

    played(build, main)


def test_an_episode_whose_replica_is_gone_is_lost_and_no_fault_of_the_sampler(build):
    async def main(line, replica, near, figures, events):
        near.gone = True
        result = await line.call("run", request_of(build, 1), "replica-0.0", False)
        assert result.verdict.lost
        result = await line.call("run", request_of(build, 1), "replica-0.9", False)
        assert result.verdict.lost

    played(build, main)


def test_a_worker_that_is_gone_leaves_no_session_in_a_replica(build):
    async def main(line, replica, near, figures, events):
        released = []
        sampler = replica._samplers["policy"]._made
        sampler.release = lambda session: asyncio.sleep(0, released.append(session))
        orders = Line("worker-0.1", near.exchange)
        request = request_of(build, 2)

        ids = Column.of("I32", build.get("tokenizer").encode(request.task.prompt))
        asked = GenerateRequest("episode#0", noise=1, task_id=request.task.id)
        await orders.call("generate", "policy", ids, GenerateSettings(64), asked)
        await replica.forget("worker-0.1")
        assert released == ["episode#0"]

    played(build, main)


def test_samplers_live_in_workers_when_their_record_names_no_torch(build):
    assert Blueprint.of(build).heavy == ("policy",)


def test_a_process_that_sees_another_run_folder_refuses_and_says_where(build):
    blueprint = Blueprint.of(build)
    (build.run_dir / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="does not see the run folder"):
        blueprint.open("worker", 0)
