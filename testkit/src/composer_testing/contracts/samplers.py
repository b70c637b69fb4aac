"""What every sampler must do (`protocols.Sampler`). Subclass `SamplerContract`, override `build` and `weights`.

A sampler that cannot promise equal ids for equal noise subclasses `ServedSamplerContract`.

Plain asyncio, no torch: a sampler may live behind a process or a network.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from composer_core.columns import Column
from composer_core.errors import ComposerError
from composer_core.protocols import Sampler
from composer_core.types import Completion, GenerateRequest, GenerateSettings, WeightsRef

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def request(session: str = "s", **fields: Any) -> GenerateRequest:
    return GenerateRequest(**{"session": session, "noise": 0x9876543210FEDCBA, **fields})


def flat(completion: Completion) -> list[int]:
    return list(completion.ids.values())


class ServedSamplerContract:
    """For samplers that do not offer "sampler.deterministic", such as those behind a server that batches as it likes.

    Name your subclass `Test...`. The sampler's vocabulary must hold the ids 0 to 9.
    """

    def build(self, tmp_path: Path) -> Sampler:
        raise NotImplementedError("return a fresh sampler with room for at least 2 resident sessions")

    def weights(self, tmp_path: Path, version: int) -> tuple[WeightsRef, Path]:
        raise NotImplementedError("return weights other than the sampler starts with, and their local file")

    def run(self, tmp_path: Path, body: Callable[[Sampler], Awaitable[Any]]) -> Any:
        """Play `body` on a fresh sampler and close it, bounded in time."""

        async def main() -> Any:
            sampler = self.build(tmp_path)
            try:
                return await asyncio.wait_for(body(sampler), 60)
            finally:
                await sampler.close()

        return asyncio.run(main())

    def test_lengths_and_types_agree(self, tmp_path: Path) -> None:
        async def body(sampler: Sampler) -> Completion:
            return await sampler.generate(PROMPT, GenerateSettings(max_tokens=7), request())

        completion = self.run(tmp_path, body)
        assert (completion.ids.dtype, completion.logprobs.dtype) == ("I32", "F32")
        assert len(completion.ids) == len(completion.logprobs) == 7
        assert sum(count for _, count in completion.versions) == 7
        assert completion.stop == "length"
        assert all(math.isfinite(value) and value <= 0 for value in completion.logprobs.values())

    def test_the_stop_id_is_returned_and_ends_the_turn(self, tmp_path: Path) -> None:
        async def body(sampler: Sampler) -> tuple[list[int], Completion]:
            free = flat(await sampler.generate(PROMPT, GenerateSettings(max_tokens=12), request("a")))
            settings = GenerateSettings(max_tokens=12, stop_ids=frozenset({free[4]}))
            return free, await sampler.generate(PROMPT, settings, request("b"))

        free, stopped = self.run(tmp_path, body)
        end = free.index(free[4]) + 1
        assert flat(stopped) == free[:end]
        assert stopped.stop == "stop"

    def test_other_noise_draws_other_ids(self, tmp_path: Path) -> None:
        async def body(sampler: Sampler) -> list[list[int]]:
            settings = GenerateSettings(max_tokens=16)
            who = [request(f"s{index}", noise=index) for index in range(4)]
            return [flat(await sampler.generate(PROMPT, settings, one)) for one in who]

        assert len({tuple(ids) for ids in self.run(tmp_path, body)}) > 1

    def test_a_session_may_go_on_from_other_ids(self, tmp_path: Path) -> None:
        async def body(sampler: Sampler) -> tuple[list[int], list[int]]:
            settings = GenerateSettings(max_tokens=6, temperature=0.0)
            await sampler.generate([*PROMPT, 8, 8], settings, request("s"))
            changed = flat(await sampler.generate([*PROMPT, 7], settings, request("s")))
            return changed, flat(await sampler.generate([*PROMPT, 7], settings, request("fresh")))

        changed, fresh = self.run(tmp_path, body)
        assert changed == fresh

    def test_greedy_needs_no_noise(self, tmp_path: Path) -> None:
        async def body(sampler: Sampler) -> list[list[int]]:
            settings = GenerateSettings(max_tokens=8, temperature=0.0)
            who = [request(f"s{index}", noise=index) for index in range(3)]
            return [flat(await sampler.generate(PROMPT, settings, one)) for one in who]

        first, second, third = self.run(tmp_path, body)
        assert first == second == third

    def test_cancelling_frees_what_the_generation_held(self, tmp_path: Path) -> None:
        async def body(sampler: Sampler) -> None:
            for number in range(4):
                long = [
                    asyncio.create_task(
                        sampler.generate(PROMPT, GenerateSettings(max_tokens=10_000), request(f"{number}-{index}"))
                    )
                    for index in range(3)
                ]
                await asyncio.sleep(0.02)
                for task in long:
                    task.cancel()
                await asyncio.gather(*long, return_exceptions=True)
            short = [
                sampler.generate(PROMPT, GenerateSettings(max_tokens=2), request(f"after-{index}"))
                for index in range(2)
            ]
            assert [len(completion.ids) for completion in await asyncio.gather(*short)] == [2, 2]

        self.run(tmp_path, body)

    def test_tokens_carry_the_version_that_sampled_them(self, tmp_path: Path) -> None:
        async def body(sampler: Sampler) -> tuple[Completion, Completion, Completion]:
            settings = GenerateSettings(max_tokens=4)
            before = await sampler.generate(PROMPT, settings, request("a"))
            await sampler.load(*self.weights(tmp_path, 7))
            after = await sampler.generate(PROMPT, settings, request("b"))
            grown = [*PROMPT, *flat(before), 2]
            return before, after, await sampler.generate(grown, settings, request("a", position=4))

        before, after, continued = self.run(tmp_path, body)
        assert before.versions == ((0, 4),)
        assert (after.versions, after.cache_version) == (((7, 4),), 7)
        assert continued.versions == ((7, 4),)
        assert before.logprobs != after.logprobs

    def test_a_swap_in_flight_loses_no_generation(self, tmp_path: Path) -> None:
        async def body(sampler: Sampler) -> list[Completion]:
            runs = [
                asyncio.create_task(sampler.generate(PROMPT, GenerateSettings(max_tokens=60), request(f"s{index}")))
                for index in range(2)
            ]
            await asyncio.sleep(0.01)
            await sampler.load(*self.weights(tmp_path, 3))
            return [await run for run in runs]

        for completion in self.run(tmp_path, body):
            versions = [version for version, _ in completion.versions]
            assert sum(count for _, count in completion.versions) == len(completion.ids)
            assert versions in ([0], [3], [0, 3])

    def test_releasing_an_unknown_session_is_nothing(self, tmp_path: Path) -> None:
        async def body(sampler: Sampler) -> list[int]:
            await sampler.release("never seen")
            await sampler.generate(PROMPT, GenerateSettings(max_tokens=2), request("s"))
            await sampler.release("s")
            await sampler.release("s")
            return flat(await sampler.generate(PROMPT, GenerateSettings(max_tokens=2), request("s")))

        assert len(self.run(tmp_path, body)) == 2

    def test_stats_count_sampled_tokens(self, tmp_path: Path) -> None:
        async def body(sampler: Sampler) -> float:
            await sampler.generate(PROMPT, GenerateSettings(max_tokens=5), request("s"))
            return sampler.stats()["tokens"]

        assert self.run(tmp_path, body) == 5

    def test_closing_twice_is_safe_and_ends_what_is_in_flight(self, tmp_path: Path) -> None:
        async def body(sampler: Sampler) -> None:
            task = asyncio.create_task(sampler.generate(PROMPT, GenerateSettings(max_tokens=10_000), request()))
            await asyncio.sleep(0.01)
            await sampler.close()
            await sampler.close()
            outcome = (await asyncio.gather(task, return_exceptions=True))[0]
            assert isinstance(outcome, ComposerError) or isinstance(getattr(outcome, "ids", None), Column)
            with pytest.raises(ComposerError):
                await sampler.generate(PROMPT, GenerateSettings(max_tokens=1), request())

        self.run(tmp_path, body)


class SamplerContract(ServedSamplerContract):
    """For samplers that offer "sampler.deterministic": ids are a function of weights, prompt and noise."""

    logprob_tolerance = 1e-4
    """Largest difference of a log-probability between two batch compositions."""

    def test_equal_noise_draws_equal_ids_alone_and_in_company(self, tmp_path: Path) -> None:
        async def body(sampler: Sampler) -> tuple[Completion, list[Completion]]:
            settings = GenerateSettings(max_tokens=10)
            alone = await sampler.generate(PROMPT, settings, request("alone"))
            company = [request("again"), *(request(f"other-{index}", noise=index) for index in range(5))]
            prompts = [PROMPT, *([7] * (index + 2) for index in range(5))]
            runs = [sampler.generate(ids, settings, who) for ids, who in zip(prompts, company, strict=True)]
            return alone, list(await asyncio.gather(*runs))

        alone, together = self.run(tmp_path, body)
        assert flat(together[0]) == flat(alone)
        for one, other in zip(together[0].logprobs.values(), alone.logprobs.values(), strict=True):
            assert abs(one - other) <= self.logprob_tolerance

    def test_a_turn_may_be_cut_anywhere(self, tmp_path: Path) -> None:
        """Noise is a function of the position: continuing by position draws what one long turn draws."""

        async def body(sampler: Sampler) -> tuple[list[int], list[int]]:
            whole = flat(await sampler.generate(PROMPT, GenerateSettings(max_tokens=12), request("whole")))
            parts: list[int] = []
            for _ in range(3):
                who = request("parts", position=len(parts))
                parts += flat(await sampler.generate([*PROMPT, *parts], GenerateSettings(max_tokens=4), who))
            return whole, parts

        whole, parts = self.run(tmp_path, body)
        assert whole == parts


class RoutedSamplerContract(SamplerContract):
    """For samplers that offer "sampler.routes", built over a mixture as a run with router replay builds them."""

    def grow(self, tmp_path: Path, held: list[int | None], **fields: Any) -> tuple[list[int], list[Completion]]:
        """A session of a turn for each entry of `held`, the tokens whose expert ids it holds; with all ids at last."""

        async def body(sampler: Sampler) -> tuple[list[int], list[Completion]]:
            ids, turns = list(PROMPT), []
            for number, held_tokens in enumerate(held):
                asked = request(position=6 * number, routes_from=held_tokens, **fields)
                turns.append(await sampler.generate(ids, GenerateSettings(max_tokens=6), asked))
                ids = [*ids, *flat(turns[-1]), *PROMPT[:3]]
            return ids[:-3], turns

        found: tuple[list[int], list[Completion]] = self.run(tmp_path, body)
        return found

    def test_every_forwarded_token_but_the_last_sampled_one_has_expert_ids(self, tmp_path: Path) -> None:
        """A cached prefix too: its ids come back with it."""
        ids, turns = self.grow(tmp_path, [0, 0, 0])
        for number, turn in enumerate(turns):
            assert turn.routes is not None and turn.routes.dtype in ("U8", "U16")
            assert len(turn.routes) == len(PROMPT) + 6 + 9 * number - 1
        assert len(turns[-1].routes or ()) == len(ids) - 1

    def test_expert_ids_that_the_caller_holds_are_not_sent_again(self, tmp_path: Path) -> None:
        _, whole = self.grow(tmp_path, [0, 0, 0])
        _, parts = self.grow(tmp_path, [0, len(PROMPT) + 5, len(PROMPT) + 14])
        assert [len(turn.routes or ()) for turn in parts] == [len(PROMPT) + 5, 9, 9]
        assert Column.joined([turn.routes for turn in parts if turn.routes]) == whole[-1].routes

    def test_expert_ids_are_sent_to_whoever_asks(self, tmp_path: Path) -> None:
        _, turns = self.grow(tmp_path, [None, None])
        assert [turn.routes for turn in turns] == [None, None]
