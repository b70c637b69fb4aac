"""`torch-sampler/continuous` over a small mixture of experts: the contract, residency, sharing, swaps, determinism."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from composer_core import BuildContext
from composer_core.errors import ConfigError, SamplerError, StoreError
from composer_core.noise import key_of
from composer_core.protocols import Sampler
from composer_core.records import resolve
from composer_core.tensors import signed, to_tensor, token_logprobs
from composer_core.types import Completion, GenerateRequest, GenerateSettings, WeightsRef
from composer_plugin_torch_sampler import sampler as sampler_module
from composer_plugin_torch_sampler.config import ContinuousConfig
from composer_plugin_torch_sampler.draw import draw
from composer_plugin_torch_sampler.engine import Engine
from composer_plugin_torch_sampler.jobs import Job
from composer_testing.contracts.samplers import RoutedSamplerContract, SamplerContract, flat

SHAPE = {"vocab_size": 64, "width": 32, "heads": 2, "kv_heads": 1, "expert_count": 8, "expert_width": 32}


def policy(*, seed: int = 0, deterministic: bool = False) -> Any:
    """A policy of the public preset, with weights large enough that tokens differ."""
    config = resolve("composer_plugin_hf.config:TinyMoeConfig")(**SHAPE, init_std=0.3)
    build = BuildContext(run_dir=Path(), seed=seed, deterministic=deterministic)
    return resolve("composer_plugin_hf.presets:build_tiny_moe")(config, build).eval()


def build(run_dir: Path, *, deterministic: bool = False, router_replay: bool = False, **settings: Any) -> Any:
    config = ContinuousConfig(**{"slots": 4, "context_tokens": 96, **settings})
    made = {"policy": lambda: policy(deterministic=deterministic)}
    shared = {"router_replay": router_replay}
    context = BuildContext(run_dir, deterministic=deterministic, get=lambda kind: made[kind](), settings=shared)
    return resolve("composer_plugin_torch_sampler.sampler:build")(config, context)


def written(folder: Path, version: int, state: dict[str, torch.Tensor] | None = None) -> tuple[WeightsRef, Path]:
    path = folder / f"weights-{version}.safetensors"
    save_file(policy(seed=version).state_dict() if state is None else state, path)
    return WeightsRef(version, str(path), hashlib.sha256(path.read_bytes()).hexdigest()), path


class TestContinuous(SamplerContract):
    def build(self, tmp_path: Path) -> Sampler:
        return build(tmp_path)  # type: ignore[no-any-return]

    def weights(self, tmp_path: Path, version: int) -> tuple[WeightsRef, Path]:
        return written(tmp_path, version)


class TestWithRouterReplay(RoutedSamplerContract):
    def build(self, tmp_path: Path) -> Sampler:
        return build(tmp_path, router_replay=True)  # type: ignore[no-any-return]

    def weights(self, tmp_path: Path, version: int) -> tuple[WeightsRef, Path]:
        return written(tmp_path, version)


class TestDeterministicRecompute(TestContinuous):
    logprob_tolerance = 0.0

    def build(self, tmp_path: Path) -> Sampler:
        return build(tmp_path, deterministic=True, kv_on_swap="recompute")  # type: ignore[no-any-return]


def play(engine: Engine, *rows: tuple[list[int], GenerateSettings, GenerateRequest]) -> list[Any]:
    """Generate all rows together; results in order."""
    results: dict[int, Any] = {}
    for index, (ids, settings, request) in enumerate(rows):
        engine.submit(Job(list(ids), settings, request, lambda result, index=index: results.update({index: result})))
    steps = 0
    while engine.busy:
        engine.step()
        steps += 1
        assert steps < 2000
    return [results[index] for index in range(len(rows))]


def engine(*, deterministic: bool = False, routes: bool = False, **settings: Any) -> Engine:
    config = ContinuousConfig(**{"slots": 8, "context_tokens": 96, **settings})
    return Engine(policy(deterministic=deterministic), config, routes=routes)


def ask(session: str, **fields: Any) -> GenerateRequest:
    return GenerateRequest(session=session, **{"noise": key_of("noise", session), **fields})


def prompt(length: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 64, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


TEN = GenerateSettings(max_tokens=10)


def test_log_probabilities_are_those_of_a_full_forward() -> None:
    model = policy()
    ids = prompt(20)
    settings = GenerateSettings(max_tokens=12, temperature=0.7)
    (completion,) = play(engine(), (ids, settings, ask("s")))
    row = torch.tensor([[*ids, *flat(completion)]])
    with torch.no_grad():
        logits_TV = model.logits(model.trunk(row, torch.tensor([row.shape[1]])).hidden_BTD[0, 19:-1])
    expected = token_logprobs(logits_TV, row[0, 20:], 0.7)
    torch.testing.assert_close(to_tensor(completion.logprobs), expected, rtol=0, atol=1e-5)


def test_the_next_turn_prefills_appended_ids_only() -> None:
    subject = engine()
    ids = prompt(20)
    (first,) = play(subject, (ids, TEN, ask("s")))
    assert subject.counts["prefill_tokens"] == 20
    grown = [*ids, *flat(first), *prompt(7, 1)]
    play(subject, (grown, TEN, ask("s", position=10)))
    assert subject.counts["prefill_tokens"] == 20 + 8, "7 appended ids and the last sampled one"
    assert subject.counts["reused_tokens"] == 29


def test_a_group_s_prompt_is_computed_once() -> None:
    subject, alone = engine(), engine()
    ids = prompt(40)
    members = [ask(f"m{index}", group="g") for index in range(6)]
    together = play(subject, *((ids, TEN, member) for member in members))
    assert subject.counts["prefill_tokens"] == 40
    assert subject.counts["shared_tokens"] == 5 * 39
    for member, completion in zip(members, together, strict=True):
        assert flat(completion) == flat(play(alone, (ids, TEN, ask(member.session)))[0])


def test_members_of_a_group_with_other_prompts_are_not_confused() -> None:
    subject, alone = engine(), engine()
    rows = [(prompt(20 + index, index), TEN, ask(f"m{index}", group="g")) for index in range(5)]
    rows.append(([*rows[0][0][:15], *prompt(4, 9)], TEN, ask("m9", group="g")))
    for (ids, _, member), completion in zip(rows, play(subject, *rows), strict=True):
        assert flat(completion) == flat(play(alone, (ids, TEN, ask(member.session)))[0])


def test_an_evicted_session_is_prefilled_again_and_draws_the_same() -> None:
    roomy, tight = engine(slots=8), engine(slots=2)
    results = []
    for subject in (roomy, tight):
        texts = {name: prompt(12, index) for index, name in enumerate("abcde")}
        for turn in range(3):
            rows = [(ids, TEN, ask(name, position=10 * turn)) for name, ids in texts.items()]
            for (ids, _, who), completion in zip(rows, play(subject, *rows), strict=True):
                texts[who.session] = [*ids, *flat(completion), 5]
        results.append(texts)
    assert results[0] == results[1]
    assert tight.stats()["evictions"] > 0 == roomy.stats()["evictions"]


def test_long_prompts_are_prefilled_in_passes() -> None:
    ids = prompt(70)
    whole, cut = (play(engine(prefill_tokens=size), (ids, TEN, ask("s")))[0] for size in (512, 16))
    assert flat(whole) == flat(cut)


def test_the_window_ends_a_generation() -> None:
    subject = engine()
    (completion,) = play(subject, (prompt(90), TEN, ask("s")))
    assert (completion.stop, len(completion.ids)) == ("context", 6)
    (full,) = play(subject, (prompt(96), TEN, ask("t")))
    assert (full.stop, len(full.ids)) == ("context", 0)


def test_one_session_generates_once_at_a_time() -> None:
    first, second = play(engine(), (prompt(5), TEN, ask("s")), (prompt(6), TEN, ask("s")))
    assert isinstance(first, Completion)
    assert isinstance(second, SamplerError)


@pytest.mark.parametrize("kv_on_swap", ["keep", "recompute"])
def test_a_swap_in_flight_keeps_or_recomputes_kv(kv_on_swap: str) -> None:
    subject, results = engine(kv_on_swap=kv_on_swap), []
    subject.submit(Job(prompt(20), GenerateSettings(max_tokens=12), ask("s"), results.append))
    for _ in range(5):
        subject.step()
    other = policy(seed=1)
    subject.swap(other, 4)
    while subject.busy:
        subject.step()
    completion = results[0]
    assert [version for version, _ in completion.versions] == [0, 4]
    assert completion.cache_version == 0
    first = completion.versions[0][1]
    row = torch.tensor([[*prompt(20), *flat(completion)]])
    with torch.no_grad():
        logits_TV = other.logits(other.trunk(row, torch.tensor([row.shape[1]])).hidden_BTD[0, 19 + first : -1])
    fresh = (to_tensor(completion.logprobs)[first:] - token_logprobs(logits_TV, row[0, 20 + first :])).abs().max()
    assert (float(fresh) <= 1e-5) == (kv_on_swap == "recompute")


def test_a_new_session_never_reuses_another_version_s_cache() -> None:
    subject = engine()
    ids = prompt(30)
    play(subject, (ids, TEN, ask("old", group="g")))
    subject.swap(policy(seed=1), 1)
    (completion,) = play(subject, (ids, TEN, ask("new", group="g")))
    assert subject.counts["shared_tokens"] == 0
    assert (completion.versions, completion.cache_version) == (((1, 10),), 1)
    (kept,) = play(subject, ([*ids, 1], TEN, ask("old", group="g")))
    assert kept.cache_version == 0, "tokens sampled over an older cache are flagged"


def test_not_a_number_is_a_sampler_error_of_its_own_row() -> None:
    subject = engine()
    broken = policy()
    with torch.no_grad():
        broken.model.embed_tokens.weight[7] = torch.nan
    subject.swap(broken, 1)
    bad, again = play(subject, ([1, 7, 2], TEN, ask("bad")), ([1, 7, 3], TEN, ask("again")))
    assert isinstance(bad, SamplerError) and isinstance(again, SamplerError)
    assert not subject.busy
    subject.swap(policy(), 2)
    assert isinstance(play(subject, ([1, 7, 2], TEN, ask("bad")))[0], Completion)


def test_a_failed_pass_ends_its_generations_and_leaves_the_sampler_usable(tmp_path: Path) -> None:
    async def main() -> None:
        sampler = build(tmp_path)
        with pytest.raises(SamplerError, match="engine failed"):
            await sampler.generate([1, 2, 9999], TEN, ask("bad"))
        assert len((await sampler.generate([1, 2, 3], TEN, ask("bad"))).ids) == 10
        await sampler.close()

    asyncio.run(main())


def test_a_command_that_raises_ends_what_is_under_way_and_leaves_the_sampler_usable(tmp_path: Path) -> None:
    async def main() -> None:
        sampler = build(tmp_path)
        running = asyncio.create_task(sampler.generate([1, 2, 3], GenerateSettings(90), ask("long")))
        await asyncio.sleep(0)
        await sampler.release([])  # no key at all: unhashable
        with pytest.raises(SamplerError, match="engine failed"):
            await asyncio.wait_for(running, 30)
        assert len((await asyncio.wait_for(sampler.generate([1, 2, 3], TEN, ask("s")), 30)).ids) == 10
        await sampler.close()

    asyncio.run(main())


def test_a_request_that_cannot_be_taken_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        sampler = build(tmp_path)
        monkeypatch.setattr(Engine, "submit", lambda self, job: 1 / 0)
        with pytest.raises(SamplerError, match="cannot be taken"):
            await asyncio.wait_for(sampler.generate([1, 2, 3], TEN, ask("s")), 30)
        await sampler.close()

    asyncio.run(main())


@pytest.mark.parametrize("moment", ["copying", "swapping"])
def test_a_cancelled_load_is_finished_before_the_next_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A caller that gives up must not leave a half-written model, or versions that name other weights."""
    reached, go_on = threading.Event(), threading.Event()

    def held(function: Any) -> Any:
        def wait(*arguments: Any) -> None:
            reached.set()
            assert go_on.wait(30)
            function(*arguments)

        return wait

    if moment == "copying":
        monkeypatch.setattr(sampler_module, "_copy", held(sampler_module._copy))
    else:
        monkeypatch.setattr(Engine, "swap", held(Engine.swap))

    async def main() -> None:
        sampler = build(tmp_path)
        first = asyncio.create_task(sampler.load(*written(tmp_path, 1)))
        assert await asyncio.to_thread(reached.wait, 30)
        first.cancel()
        second = asyncio.create_task(sampler.load(*written(tmp_path, 2)))
        await asyncio.sleep(0.05)
        assert not second.done()
        go_on.set()
        await second
        with pytest.raises(asyncio.CancelledError):
            await first
        assert sampler.stats()["version"] == 2
        expected = policy(seed=2).state_dict()
        assert all(torch.equal(value, expected[name]) for name, value in sampler._engine.policy.state_dict().items())
        await sampler.close()

    asyncio.run(main())


def test_damaged_weights_are_refused_and_the_old_ones_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        sampler = build(tmp_path)
        ref, path = written(tmp_path, 3)
        path.write_bytes(path.read_bytes()[:-1] + b"!")
        with pytest.raises(StoreError, match="damaged"):
            await sampler.load(ref, path)
        assert (await sampler.generate([1, 2, 3], TEN, ask("s"))).versions == ((0, 10),)
        await sampler.close()

    asyncio.run(main())


def test_routes_of_a_model_without_routers_are_refused() -> None:
    dense = policy()
    dense.routes = None
    with pytest.raises(ConfigError, match="router_replay"):
        Engine(dense, ContinuousConfig(), routes=True)


def own_routes(ids: list[int], model: Any = None) -> torch.Tensor:
    """[T, L, K] of one full forward, each token's experts as a set."""
    row = torch.tensor([ids])
    with torch.no_grad():
        output = (model or policy()).trunk(row, torch.tensor([len(ids)]), want_routes=True)
    return output.routes_BTLK[0].sort(-1).values


def routes_of(completion: Completion) -> torch.Tensor:
    assert completion.routes is not None
    return to_tensor(completion.routes).sort(-1).values


@pytest.mark.parametrize("slots", [8, 2])
def test_routes_cover_every_forwarded_token_across_turns(slots: int) -> None:
    """Of a prompt shared in the group, of a kept session or one that was evicted, and of what is appended."""
    subject = engine(routes=True, slots=slots)
    ids = prompt(20)
    members = [ask(name, group="g", routes_from=0) for name in "abc"]
    first = play(subject, *((ids, TEN, member) for member in members))
    for completion in first:
        assert routes_of(completion).equal(own_routes([*ids, *flat(completion)][:-1]))
    assert subject.counts["shared_tokens"] > 0
    grown = [*ids, *flat(first[0]), *prompt(5, 3)]
    (second,) = play(subject, (grown, TEN, ask("a", position=10, routes_from=0)))
    assert second.routes is not None and second.routes.shape == (44, 2, 2)
    assert routes_of(second).equal(own_routes([*grown, *flat(second)][:-1]))
    assert (subject.stats()["evictions"] > 0) == (slots == 2)


def test_routes_that_the_caller_holds_are_not_sent_again() -> None:
    whole, parts = engine(routes=True), engine(routes=True)
    ids, held = prompt(20), []
    for turn in range(3):
        start = sum(map(len, held))
        (all_of_them,) = play(whole, (ids, TEN, ask("s", position=10 * turn, routes_from=0)))
        (later,) = play(parts, (ids, TEN, ask("s", position=10 * turn, routes_from=start)))
        held.append(routes_of(later))
        assert torch.cat(held).equal(routes_of(all_of_them))
        assert len(held[-1]) == (29 if turn == 0 else 10 + 5)
        ids = [*ids, *flat(later), *prompt(5, turn)]
    (none,) = play(parts, (ids, TEN, ask("s", position=30)))
    assert none.routes is None, "an evaluation does not ask"


@pytest.mark.parametrize("kv_on_swap", ["keep", "recompute"])
def test_routes_are_those_of_the_weights_that_computed_the_kv(kv_on_swap: str) -> None:
    subject, other, results = engine(routes=True, kv_on_swap=kv_on_swap), policy(seed=1), []
    job = Job(prompt(20), GenerateSettings(max_tokens=12), ask("s", routes_from=0), results.append)
    subject.submit(job)
    for _ in range(5):
        subject.step()
    subject.swap(other, 4)
    while subject.busy:
        subject.step()
    ids = [*prompt(20), *flat(results[0])][:-1]
    before = 20 + results[0].versions[0][1] - 1  # forwarded under the first weights
    new = own_routes(ids, other)
    assert not new[:before].equal(own_routes(ids)[:before])
    expected = new if kv_on_swap == "recompute" else own_routes(ids)
    assert routes_of(results[0])[:before].equal(expected[:before])
    assert len(routes_of(results[0])) == len(ids)


def test_routes_that_nobody_keeps_cannot_be_asked_for() -> None:
    (found,) = play(engine(), (prompt(5), TEN, ask("s", routes_from=0)))
    assert isinstance(found, SamplerError) and "router_replay" in str(found)


# --- determinism ------------------------------------------------------------------------------------------------


def test_deterministic_results_do_not_depend_on_the_batch() -> None:
    rows = [(prompt(10 + 3 * index, index), TEN, ask(f"s{index}")) for index in range(7)]
    together = play(engine(deterministic=True), *rows)
    for row, completion in zip(rows, together, strict=True):
        (alone,) = play(engine(deterministic=True), row)
        assert (alone.ids, alone.logprobs) == (completion.ids, completion.logprobs)


def test_deterministic_log_probabilities_equal_a_teacher_forced_replay() -> None:
    subject = engine(deterministic=True)
    ids = prompt(15)
    rows = [(ids, TEN, ask(f"s{index}", group="g")) for index in range(3)]
    completion = play(subject, *rows)[1]
    sampled, noise = flat(completion), ask("s1").noise
    for position, logprob in enumerate(completion.logprobs.values()):
        who = GenerateRequest(session=f"replay-{position}", noise=noise, position=position)
        (replay,) = play(subject, ([*ids, *sampled[:position]], GenerateSettings(max_tokens=1), who))
        assert (flat(replay)[0], replay.logprobs.values()[0]) == (sampled[position], logprob)


# --- drawing ----------------------------------------------------------------------------------------------------


def test_draws_follow_the_distribution() -> None:
    logits_V = torch.tensor([0.0, 1.0, -torch.inf, 2.0])
    count = 20_000
    ids_N, _ = draw(logits_V.expand(count, 4), [2.0] * count, [signed(2**63 + 5)] * count, list(range(count)))
    shares = torch.bincount(ids_N, minlength=4) / count
    torch.testing.assert_close(shares, (logits_V / 2).softmax(-1), rtol=0, atol=0.015)
    assert shares[2] == 0


def test_rows_of_different_temperatures_are_drawn_apart() -> None:
    logits_NV = torch.randn(6, 64, generator=torch.Generator().manual_seed(0)) * 3
    temperatures = [1.0, 0.0, 0.5, 1.0, 0.0, 0.5]
    ids_N, logprobs_N = draw(logits_NV, temperatures, list(range(6)), [3] * 6)
    for row, temperature in enumerate(temperatures):
        one, logprob = draw(logits_NV[row : row + 1], [temperature], [row], [3])
        assert (int(one), float(logprob)) == (int(ids_N[row]), pytest.approx(float(logprobs_N[row]), abs=1e-6))
        expected = token_logprobs(logits_NV[row : row + 1], one, temperature or 1.0)
        assert float(logprob) == float(expected)
    assert ids_N[1] == logits_NV[1].argmax()
