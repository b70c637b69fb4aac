"""`traces/recorded`: a sampler that says what was recorded, turn by turn, for tasks that it has episodes of.

It samples nothing, so it offers no log-probabilities: an sft stage may use it, an rl stage may not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from composer_core import BuildContext, Column
from composer_core.errors import ConfigError, SamplerError
from composer_core.protocols import Renderer
from composer_core.types import Completion, GenerateRequest, GenerateSettings, ParsedTurn, WeightsRef
from composer_plugin_traces.atif import check_atif, from_atif
from composer_plugin_traces.episodes import Act, Episode
from composer_plugin_traces.plugin import RecordedConfig


def build(config: RecordedConfig, build: BuildContext) -> RecordedSampler:
    """Raises ConfigError if the file cannot be read, or no episode of it can be played."""
    return RecordedSampler(read(Path(config.path), config.token_ids), build.get("renderers"), config.token_ids)


def read(path: Path, token_ids: bool) -> dict[str, list[Episode]]:
    """The episodes that can be played, by task."""
    fix = "make it with `composer-run import FILE OUT`"
    try:
        documents = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise ConfigError("recorded episodes cannot be read", where=str(path), found=str(error), fix=fix) from error
    for number, document in enumerate(documents, 1):
        if problems := check_atif(document):
            raise ConfigError("no recorded episode", where=f"{path}, line {number}", found=str(problems[0]), fix=fix)
    found: dict[str, list[Episode]] = {}
    for episode in map(from_atif, documents):
        if all(act.tokens for act in episode.acts) if token_ids else episode.playable:
            found.setdefault(episode.task, []).append(episode)
    if not found:
        expected = "token ids of every turn" if token_ids else "calls that can be rendered"
        raise ConfigError("no recorded episode can be played", where=str(path), expected=expected, fix=fix)
    return found


class RecordedSampler:
    """`protocols.Sampler`; attempt n of a task plays the n-th of its episodes, round and round."""

    def __init__(self, episodes: Mapping[str, Sequence[Episode]], renderer: Renderer, token_ids: bool) -> None:
        self._episodes, self._renderer, self._token_ids = episodes, renderer, token_ids
        self._played: dict[str, int] = {}
        self._tokens = 0
        self._closed = False

    async def generate(self, ids: Sequence[int], settings: GenerateSettings, request: GenerateRequest) -> Completion:
        """The next recorded turn of the session, cut at `max_tokens`; without one, a turn that only ends."""
        if self._closed:
            raise SamplerError("the sampler is closed")
        known = self._episodes.get(request.task_id)
        if not known:
            raise SamplerError(f"no episode of task {request.task_id!r} is recorded", fix="leave its task out")
        acts = known[request.attempt % len(known)].acts
        turn = self._played.get(request.session, 0)
        self._played[request.session] = turn + 1
        row = self._ids(acts[turn]) if turn < len(acts) else self._renderer.render(ParsedTurn(""))
        row = row[: settings.max_tokens]
        self._tokens += len(row)
        stop = "stop" if row and row[-1] in settings.stop_ids else "length"
        runs = ((0, len(row)),) if row else ()
        return Completion(Column.of("I32", row), Column.of("F32", [0.0] * len(row)), runs, stop)

    def _ids(self, act: Act) -> list[int]:
        if self._token_ids and act.tokens:
            return list(act.tokens.completion)
        return self._renderer.render(ParsedTurn(act.text, act.calls))

    async def load(self, weights: WeightsRef, path: Path) -> None:
        """What was recorded does not change."""

    async def release(self, session: str) -> None:
        self._played.pop(session, None)

    def stats(self) -> Mapping[str, float]:
        """Counters since the start."""
        return {"tokens": float(self._tokens)}

    async def close(self) -> None:
        self._closed = True
