"""The sampler `workshop/guide`: a demonstrator for any task set that knows its answers.

A demonstrator is a sampler like any other, so its episodes run in the same loop, sandbox and tools as the policy's.
It holds no model: each turn is rendered from a script to the ids that a policy would have sampled, and which turn is
due follows from how many tokens the episode has sampled so far. So nothing is remembered between calls, and an attempt
that is issued again gets the same turns. Other components of the run are reached by kind (`build.get`), never imported.

The run's tools must offer outline, read_file, write_file and finish.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from composer_core import BuildContext, Column, NoConfig, Patch
from composer_core.errors import SamplerError
from composer_core.types import Call, Completion, GenerateRequest, GenerateSettings, ParsedTurn, WeightsRef


class Guide:
    """`protocols.Sampler`; log-probabilities are 0 and the version is 0."""

    def __init__(self, config: NoConfig, build: BuildContext) -> None:
        self._build = build
        self._tokens = 0

    async def generate(self, ids: Sequence[int], settings: GenerateSettings, request: GenerateRequest) -> Completion:
        """The turn that is due.

        Raises:
            SamplerError: the script has ended and the episode has not.
        """
        tasks, renderer = self._build.get("tasks"), self._build.get("renderers")
        rest = request.position
        for turn in turns(tasks.gold(request.task_id)):
            rendered = renderer.render(turn)
            if rest < len(rendered):
                return self._complete(rendered[rest:], settings.max_tokens)
            rest -= len(rendered)
        raise SamplerError("workshop/guide has nothing left to say", fix="let tools.use hold code/finish")

    def _complete(self, ids: Sequence[int], most: int) -> Completion:
        given = list(ids[:most])
        self._tokens += len(given)
        return Completion(
            ids=Column.of("I32", given),
            logprobs=Column.of("F32", [0.0] * len(given)),
            versions=((0, len(given)),),
            stop="stop" if len(given) == len(ids) else "length",
        )

    async def load(self, weights: WeightsRef, path: Path) -> None:
        """A script has no weights."""

    async def release(self, session: str) -> None:
        """A script has no cache."""

    def stats(self) -> Mapping[str, float]:
        return {"tokens": float(self._tokens)}

    async def close(self) -> None:
        """Nothing is held."""


def turns(answer: Patch) -> Iterator[ParsedTurn]:
    """One call a turn: look at each file that the answer writes, write it, and finish."""
    for file in answer.writes:
        if file.path.endswith(".py"):
            yield call("outline", path=file.path)
        yield call("read_file", path=file.path)
        yield call("write_file", path=file.path, content=file.data.decode(errors="replace"))
    yield call("finish")


def call(name: str, **arguments: str) -> ParsedTurn:
    """A turn of one call and no words."""
    return ParsedTurn(text="", calls=(Call(id="0", name=name, arguments=arguments),))
