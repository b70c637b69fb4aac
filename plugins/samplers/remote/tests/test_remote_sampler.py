"""Samplers behind a server: the contract over both protocols, what they refuse, and what `check` refuses."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve

from composer_core import BuildContext, RunView
from composer_core.errors import ConfigError, SamplerError, StoreError
from composer_core.types import Completion, GenerateRequest, GenerateSettings, WeightsRef
from composer_plugin_remote_sampler.config import OpenAiConfig, SglangConfig, TextConfig
from composer_plugin_remote_sampler.plugin import composer_check
from composer_plugin_remote_sampler.sampler import RemoteSampler, build_openai, build_sglang, build_text
from composer_plugin_remote_sampler.wires import Asked, Text
from composer_testing.contracts.hook_modules import HookModuleContract
from composer_testing.contracts.samplers import PROMPT, ServedSamplerContract
from composer_testing.fakes.text import ByteTokenizer

SETTINGS = GenerateSettings(max_tokens=4, stop_ids=frozenset({3}))


class TestHookModule(HookModuleContract):
    module = "composer_plugin_remote_sampler.plugin"


class Behind(ServedSamplerContract):
    """The contract over a server."""

    @pytest.fixture(autouse=True)
    def _served(self, served: Any) -> None:
        self.served = served

    def weights(self, tmp_path: Path, version: int) -> tuple[WeightsRef, Path]:
        path = tmp_path / f"{version}.safetensors"
        path.write_bytes(b"weights %d" % version)
        return WeightsRef(version, path.name, hashlib.sha256(path.read_bytes()).hexdigest()), path


class TestOpenAi(Behind):
    def build(self, tmp_path: Path) -> RemoteSampler:
        config = OpenAiConfig(base_url=self.served.url, model="m", folder=str(self.served.folder))
        return build_openai(config, BuildContext(tmp_path))


class TestSglang(Behind):
    def build(self, tmp_path: Path) -> RemoteSampler:
        config = SglangConfig(base_url=self.served.url, folder=str(self.served.folder))
        return build_sglang(config, BuildContext(tmp_path))


def use(sampler: RemoteSampler, body: Callable[[RemoteSampler], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        try:
            return await asyncio.wait_for(body(sampler), 30)
        finally:
            await sampler.close()

    return asyncio.run(main())


def openai(served: Any, **fields: Any) -> RemoteSampler:
    return build_openai(OpenAiConfig(base_url=served.url, **fields), BuildContext(Path()))


def sglang(served: Any, **fields: Any) -> RemoteSampler:
    return build_sglang(SglangConfig(base_url=served.url, **fields), BuildContext(Path()))


def once(sampler: RemoteSampler, settings: GenerateSettings = SETTINGS) -> Completion:
    return use(sampler, lambda one: one.generate(PROMPT, settings, GenerateRequest("s", noise=7, position=2)))


# --- what is asked


def test_ids_are_sent_and_nothing_is_left_to_the_servers_defaults(served: Any):
    once(openai(served, model="policy"))
    ((_, body),) = served.seen
    assert (body["prompt"], body["model"], body["stop_token_ids"]) == (PROMPT, "policy", [3])
    assert (body["top_p"], body["top_k"], body["min_p"], body["repetition_penalty"]) == (1.0, 0, 0.0, 1.0)
    assert body["return_token_ids"] and body["logprobs"] and body["ignore_eos"] and not body["add_special_tokens"]
    once(sglang(served))
    body = served.seen[1][1]
    assert body["input_ids"] == PROMPT and body["return_logprob"] and body["sampling_params"]["no_stop_trim"]


def test_the_seed_is_a_function_of_noise_and_position():
    def seed(**fields: Any) -> int:
        return Asked(PROMPT, SETTINGS, GenerateRequest("any", **fields)).seed

    assert seed(noise=7, position=2) == seed(noise=7, position=2)
    assert len({seed(noise=noise, position=position) for noise in range(3) for position in range(3)}) == 9


def test_the_api_key_comes_from_the_environment_and_is_missed_at_once(served: Any, monkeypatch: Any):
    monkeypatch.setenv("SERVER_KEY", "secret")
    once(openai(served, key_env="SERVER_KEY"))
    assert served.authorized == "Bearer secret"
    monkeypatch.delenv("SERVER_KEY")
    with pytest.raises(ConfigError, match="SERVER_KEY"):
        openai(served, key_env="SERVER_KEY")


def test_a_full_window_stops_with_context(served: Any):
    settings = evolve(SETTINGS, stop_ids=frozenset())
    found = once(openai(served, context_tokens=len(PROMPT) + 2), settings)
    assert (len(found.ids), found.stop) == (2, "context")
    found = once(openai(served, context_tokens=len(PROMPT)), settings)
    assert (len(found.ids), found.stop, len(served.seen)) == (0, "context", 1)


# --- what is refused


def without(*names: str) -> Callable[[Any], Any]:
    def alter(reply: Any) -> Any:
        (choice,) = reply["choices"]
        for name in names:
            holder = choice["logprobs"] if name in choice["logprobs"] else choice
            holder.pop(name)
        return reply

    return alter


REFUSED = {
    "no ids": (openai, without("token_ids", "tokens"), "no token ids"),
    "no log-probabilities": (openai, without("token_logprobs"), "no log-probability for each id"),
    "no logprobs at all": (openai, without("logprobs"), "no log-probability for each id"),
    "another prompt": (openai, lambda r: _put(r, "prompt_token_ids", [1, *PROMPT]), "continued another prompt"),
    "trimmed": (openai, lambda r: _put(_put(r, "stop_reason", 3), "token_ids", [1] * 4), "trims the id"),
    "no choice": (openai, lambda r: {"choices": []}, "no completion"),
    "an error": (openai, lambda r: {"error": "no such model"}, "no such model"),
    "sglang without ids": (sglang, lambda r: {"text": "hi", "meta_info": {"id": "x"}}, "no token ids"),
    "sglang gave up": (
        sglang,
        lambda r: {
            "meta_info": {"output_token_logprobs": [], "finish_reason": {"type": "abort", "message": "too long"}}
        },
        "too long",
    ),
    "vllm gave up": (openai, lambda r: _put(r, "finish_reason", "abort"), "gave the generation up"),
}


def _put(reply: Any, name: str, value: Any) -> Any:
    reply["choices"][0][name] = value
    if name == "token_ids":
        reply["choices"][0]["logprobs"]["token_logprobs"] = [-1.0] * len(value)
    return reply


@pytest.mark.parametrize("name", REFUSED)
def test_an_answer_that_cannot_be_trained_on_is_an_error(served: Any, name: str):
    build, served.alter, text = REFUSED[name]
    with pytest.raises(SamplerError, match=text):
        once(build(served))


def test_ids_spelled_as_tokens_do_as_well(served: Any):
    whole = once(openai(served))
    served.alter = without("token_ids", "prompt_token_ids")
    assert once(openai(served)).ids == whole.ids


def test_a_server_that_is_busy_is_asked_again_and_one_that_refuses_is_not(served: Any, monkeypatch: Any):
    monkeypatch.setattr("composer_plugin_remote_sampler.sampler.PAUSE_S", 0.001)
    served.refuse = [503, 429]
    sampler = openai(served)
    assert once(sampler).stop and sampler.stats()["retried"] == 2
    served.refuse = [500, 500, 500]
    with pytest.raises(SamplerError, match="no answer") as caught:
        once(openai(served))
    assert "500 not now" in str(caught.value)
    served.refuse = [400]
    with pytest.raises(SamplerError, match="refuses"):
        once(openai(served))
    with pytest.raises(SamplerError, match="no answer"):
        once(build_openai(OpenAiConfig(base_url="http://127.0.0.1:9", retries=0), BuildContext(Path())))


# --- weights


def test_weights_that_are_damaged_or_not_taken_are_refused(served: Any, tmp_path: Path):
    path = tmp_path / "w"
    path.write_bytes(b"w")
    ref = WeightsRef(1, "w", "0" * 64)
    folder = str(served.folder)
    with pytest.raises(StoreError, match="damaged"):
        use(openai(served, folder=folder), lambda one: one.load(ref, path))
    assert not list(served.folder.iterdir()) and not served.seen
    served.alter = lambda reply: {"success": False, "message": "shape"}
    with pytest.raises(StoreError, match="did not take"):
        use(sglang(served, folder=folder), lambda one: one.load(evolve(ref, checksum=""), path))
    with pytest.raises(StoreError, match="cannot be put"):
        use(openai(served, folder=str(tmp_path / "none")), lambda one: one.load(evolve(ref, checksum=""), path))


def test_vllm_forgets_its_prefixes_with_the_weights_that_made_them(served: Any, tmp_path: Path):
    path = tmp_path / "w"
    path.write_bytes(b"w")
    use(openai(served, folder=str(served.folder)), lambda one: one.load(WeightsRef(1, "w", ""), path))
    assert [where for where, _ in served.seen] == ["/collective_rpc", "/reset_prefix_cache"]


# --- text


def test_text_is_encoded_here_and_its_end_is_given_back(served: Any):
    tokenizer = ByteTokenizer()
    config = TextConfig(base_url=served.url)
    sampler = build_text(config, BuildContext(Path(), get={"tokenizer": tokenizer}.__getitem__))
    found = once(sampler, GenerateSettings(max_tokens=9, stop_ids=frozenset({256})))
    assert list(found.ids.values()) == [*b"words", 256]
    assert (found.stop, set(found.logprobs.values())) == ("stop", {0.0})


def test_control_tags_of_a_text_become_control_tokens():
    tokenizer: Any = SimpleNamespace(specials=lambda: {"<a>": 7, "<a>>": 8}, encode=lambda text: [0] * len(text))
    reply = {"choices": [{"text": "xy<a>>z<a>", "finish_reason": "length"}]}
    asked = Asked([1], GenerateSettings(max_tokens=9), GenerateRequest("s"))
    assert Text(tokenizer).answer(reply, asked).ids == [0, 0, 8, 0, 7]


# --- check


def checked(id: str, settings: Any, *stages: Any, samplers: dict[str, Any] | None = None) -> list[str]:
    choices = tuple(SimpleNamespace(stage=stage) for stage in stages)
    config: Any = SimpleNamespace(stages=choices, samplers=samplers or {})
    view = RunView(config, {"samplers": ((id, settings),)}, {})
    return [f"{problem.where}: {problem.message}" for problem in composer_check(view)]


URL = {"base_url": "http://a"}
RL = SimpleNamespace(name="rl", temperature=1.0)


def test_check_says_that_text_serves_evaluation_only():
    (text,) = checked("remote-sampler/text", TextConfig(**URL), RL)
    assert "evaluation only" in text
    assert not checked("remote-sampler/text", TextConfig(**URL))
    sft = SimpleNamespace(name="sft", sampler="teacher")
    found = checked("x/y", None, sft, samplers={"teacher": SimpleNamespace(use="remote-sampler/text")})
    assert found == ["stages.sft.sampler: remote-sampler/text is told no token ids: it serves evaluation only"]


def test_check_refuses_weights_that_do_not_travel_and_log_probabilities_of_another_temperature():
    (text,) = checked("remote-sampler/openai", OpenAiConfig(**URL), RL)
    assert "cannot be given the weights" in text
    warm = SimpleNamespace(name="rl", temperature=0.7)
    (text,) = checked("remote-sampler/openai", OpenAiConfig(**URL, folder="f"), warm)
    assert text.startswith("stages.rl.temperature")
    assert not checked("remote-sampler/openai", OpenAiConfig(**URL, folder="f", processed_logprobs=True), warm)
    assert not checked("remote-sampler/sglang", SglangConfig(**URL, folder="f"), warm)


def test_an_address_that_is_none_is_refused():
    for url in ("localhost:8000", "http://a/"):
        with pytest.raises(ValueError, match="base_url"):
            TextConfig(base_url=url)
