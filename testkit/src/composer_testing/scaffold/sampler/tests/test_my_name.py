"""The sampler keeps its kind's contract, and draws what its table says."""

import asyncio
import hashlib
import math
from collections import Counter
from types import SimpleNamespace

import pytest
from attrs import evolve

from composer_core import BuildContext, Column, NoConfig
from composer_core.columns import pack
from composer_core.errors import StoreError
from composer_core.noise import uniform
from composer_core.types import WeightsRef
from composer_plugin_my_name.sampler import TABLE, MyNameSampler, draw
from composer_testing.contracts.hook_modules import HookModuleContract
from composer_testing.contracts.samplers import SamplerContract

VOCAB = 12


def sampler(folder):
    tokenizer = SimpleNamespace(vocab_size=VOCAB)
    return MyNameSampler(NoConfig(), BuildContext(folder, get={"tokenizer": tokenizer}.__getitem__))


def weights(folder, version):
    """A table in which every row prefers other ids."""
    table = Column.of("F32", [2 * math.sin(version + 5 * place) for place in range(VOCAB**2)])
    path = folder / f"{version}.safetensors"
    path.write_bytes(pack({TABLE: Column("F32", (VOCAB, VOCAB), table.data)}, {}))
    return WeightsRef(version, path.name, hashlib.sha256(path.read_bytes()).hexdigest()), path


class TestHookModule(HookModuleContract):
    module = "composer_plugin_my_name.plugin"


class TestMyName(SamplerContract):
    def build(self, tmp_path):
        return sampler(tmp_path)

    def weights(self, tmp_path, version):
        return weights(tmp_path, version)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_ids_are_drawn_as_often_as_their_log_probabilities_say(temperature):
    logits = [0.0, 1.0, -math.inf, 2.0]
    drawn = [draw(logits, temperature, uniform(7, position)) for position in range(4000)]
    counts, logprobs = Counter(chosen for chosen, _ in drawn), dict(drawn)
    assert sum(math.exp(logprob) for logprob in logprobs.values()) == pytest.approx(1)
    for chosen, logprob in logprobs.items():
        assert counts[chosen] / len(drawn) == pytest.approx(math.exp(logprob), abs=0.03)


def test_weights_that_are_damaged_or_of_another_model_are_refused(tmp_path):
    ref, path = weights(tmp_path, 1)
    with pytest.raises(StoreError, match="damaged"):
        asyncio.run(sampler(tmp_path).load(evolve(ref, checksum="0" * 64), path))
    path.write_bytes(pack({"other": Column.of("F32", [0.0])}, {}))
    with pytest.raises(StoreError, match=TABLE):
        asyncio.run(sampler(tmp_path).load(evolve(ref, checksum=""), path))
