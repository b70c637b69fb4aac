"""The scripted sampler says its script, tags versions and takes time only from the clock it was given.

As `fakes/scripted` it calls the tools that a run file lists, in a run without weights.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from composer_core import cli
from composer_core.errors import SamplerError
from composer_core.traces import decode
from composer_core.types import GenerateRequest, GenerateSettings, Stop, WeightsRef
from composer_testing.fakes.clock import FakeClock
from composer_testing.fakes.sampler import LOGPROB, ScriptedSampler

TURNS = {"t": [[1, 2, 9, 4], [5, 6]]}
SETTINGS = GenerateSettings(max_tokens=10, stop_ids=frozenset({9}))


def ask(session: str = "s", task: str = "t") -> GenerateRequest:
    return GenerateRequest(session=session, task_id=task)


def test_each_session_plays_its_task_s_turns() -> None:
    async def body() -> None:
        sampler = ScriptedSampler(TURNS)
        first = await sampler.generate([0], SETTINGS, ask())
        assert (list(first.ids.values()), first.stop) == ([1, 2, 9], "stop")
        assert list(first.logprobs.values()) == [LOGPROB] * 3
        other = await sampler.generate([0], GenerateSettings(max_tokens=2), ask("other"))
        assert (list(other.ids.values()), other.stop) == ([1, 2], "length")
        assert list((await sampler.generate([0, 1], SETTINGS, ask())).ids.values()) == [5, 6]
        with pytest.raises(SamplerError, match="nothing to say"):
            await sampler.generate([0], SETTINGS, ask())
        assert [ids for _, ids in sampler.requests] == [(0,), (0,), (0, 1), (0,)]

    asyncio.run(body())


def test_a_function_sees_the_request_and_the_ids() -> None:
    async def body() -> None:
        sampler = ScriptedSampler(lambda request, ids: [len(ids), len(request.session)])
        assert list((await sampler.generate([7, 7], SETTINGS, ask("abc"))).ids.values()) == [2, 3]

    asyncio.run(body())


def test_tokens_carry_the_version_that_was_loaded() -> None:
    async def body() -> None:
        sampler = ScriptedSampler(TURNS)
        await sampler.load(WeightsRef(4, "uri", "sha"), Path("none"))
        completion = await sampler.generate([0], SETTINGS, ask())
        assert (completion.versions, sampler.stats()["version"], len(sampler.loaded)) == (((4, 3),), 4.0, 1)

    asyncio.run(body())


def test_time_passes_on_the_given_clock_alone() -> None:
    async def body() -> None:
        clock = FakeClock()
        sampler = ScriptedSampler(TURNS, delay_s=5.0, sleep=clock.sleep)
        task = asyncio.create_task(sampler.generate([0], SETTINGS, ask()))
        await clock.run(4.0)
        assert not task.done()
        await clock.run(1.0)
        assert (await task).stop == "stop"

    asyncio.run(body())


def test_a_closed_sampler_generates_nothing() -> None:
    async def body() -> None:
        sampler = ScriptedSampler(TURNS)
        await sampler.release("unknown")
        await sampler.close()
        await sampler.close()
        with pytest.raises(SamplerError, match="closed"):
            await sampler.generate([0], SETTINGS, ask())

    asyncio.run(body())


FAKES = Path(__file__).resolve().parents[2] / "examples/fakes/run.toml"


def train(run: Path, calls: str) -> int | str | None:
    """Exit code of a run of the fakes whose policy makes these calls (TOML)."""
    script = f'sampler={{use="fakes/scripted", calls=[{calls}]}}'
    with pytest.raises(SystemExit) as ended:
        cli.main(["train", str(FAKES), "--run-dir", str(run), "--set", script, "--set", "evaluations=[]"])
    return ended.value.code


def test_calls_of_the_run_file_are_made_in_order_and_end_every_episode(tmp_path):
    calls = (
        '{name="read", arguments={path="answer.txt"}}',
        '{name="write", arguments={path="answer.txt", text="42"}}',
        '{name="wrte"}',
        '{name="read", arguments={path="answer.txt"}}',
    )
    assert not train(tmp_path / "run", ", ".join(calls))
    traces = [decode(path.read_bytes()) for path in (tmp_path / "run/traces").glob("rl-*")]
    assert len(traces) == 5 * 3 * 4
    for trace in traces:
        texts = [result.text for turn in trace.turns for result in turn.results]
        assert texts == ["?", "written", "unknown tool 'wrte': did you mean 'write'?", "42"]
        assert (len(trace.turns), trace.stop) == (5, Stop.NO_CALL)
        assert trace.patch.writes[0].data == b"42"


def test_a_call_that_is_misspelt_in_the_run_file_is_refused(tmp_path, capsys):
    assert train(tmp_path / "run", '{tool="read"}') == 2
    assert "sampler.calls" in capsys.readouterr().err
