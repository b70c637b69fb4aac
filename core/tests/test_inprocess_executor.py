"""The built-in executor and context keep their contracts, on fakes."""

from pathlib import Path

import pytest

from composer_core.assembly import Assembly
from composer_core.config import load
from composer_core.context import Plain
from composer_core.evaluate import request_for
from composer_core.plugins import Plugins, select
from composer_core.protocols import BuildContext
from composer_core.records import NoConfig
from composer_core.types import SlotKey, WeightsRef
from composer_testing.contracts.contexts import ContextContract
from composer_testing.contracts.executors import ExecutorContract

FAKES = Path(__file__).resolve().parents[2] / "examples/fakes/run.toml"


class TestPlain(ContextContract):
    def build(self):
        return Plain(NoConfig(), BuildContext(Path()))


class TestInProcess(ExecutorContract):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.run_dir = tmp_path

    def build(self):
        config = load(FAKES)
        plugins = Plugins().load(select(config.plugins))
        self.assembly = Assembly(config, plugins.registry, self.run_dir)
        return self.assembly.get("executors"), self.assembly.get("stores")

    def request(self, attempt, *, broken=False):
        task = self.assembly.get("tasks").tasks("train")[attempt % 12]
        if broken:

            def fail(*args, **kwargs):
                raise OSError("broken")

            self.assembly.get("samplers")["policy"].generate = fail
        return request_for(task, SlotKey(task.id, attempt), 1, {})

    def weights(self, version):
        (self.run_dir / "weights").mkdir(exist_ok=True)
        path = self.run_dir / f"weights/{version}.safetensors"
        path.write_bytes(b"any")
        return WeightsRef(version, f"weights/{version}.safetensors", "")
