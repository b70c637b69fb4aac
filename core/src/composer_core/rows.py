"""A branch while it grows, and a turn of it as the sampler returned it.

Columns grow in place, 9 bytes a token, and are frozen into a `Branch` where a trace is made. Sampled ids and context
are told apart by one byte each, the mask that training uses.
"""

from __future__ import annotations

from array import array
from itertools import groupby

from attrs import Factory, define, field

from composer_core.columns import Column
from composer_core.types import Branch, Completion, Turn


@define
class Row:
    """A branch while it grows: 9 bytes a token, since thousands of episodes wait for their turns at once."""

    ids: array[int]
    parent: int | None = None
    sampled: bytearray = field(init=False)
    logprobs: array[float] = field(init=False)
    versions: list[tuple[int, int]] = field(init=False)
    routes: list[Column] = Factory(list)
    """Expert ids of the first tokens, as they came."""

    def __attrs_post_init__(self) -> None:
        self.sampled = bytearray(len(self.ids))
        self.logprobs = array("f", bytes(4 * len(self.ids)))
        self.versions = [(-1, len(self.ids))]

    def append(self, ids: list[int]) -> None:
        """Context: ids that were not sampled here."""
        self.ids.extend(ids)
        self.sampled.extend(bytes(len(ids)))
        self.logprobs.frombytes(bytes(4 * len(ids)))
        self.versions.append((-1, len(ids)))

    def extend(self, completion: Completion, trained: bool) -> None:
        """Raises TypeError, and changes nothing, if the columns are not of the types that `Completion` names."""
        self.ids, self.logprobs = self.ids + completion.ids.values(), self.logprobs + completion.logprobs.values()
        self.sampled.extend(bytes([trained]) * len(completion.ids))
        self.versions.extend(completion.versions)
        self.routes += [completion.routes] if completion.routes else []

    @property
    def routed(self) -> int:
        """Tokens whose expert ids are held."""
        return sum(map(len, self.routes))

    def freeze(self) -> Branch:
        size = len(self.ids)
        return Branch(
            ids=Column.of("I32", self.ids),
            sampled=Column("U8", (size,), bytes(self.sampled)),
            logprobs=Column.of("F32", self.logprobs),
            versions=tuple(self.versions),
            parent=self.parent,
            routes=Column.joined(self.routes) if self.routes else None,
        )


def completion_of(branch: Branch, turn: Turn, routed: int) -> Completion:
    """What the sampler returned for a turn, for an episode that holds the expert ids of the first `routed` tokens."""
    versions = [version for version, count in branch.versions for _ in range(count)][turn.start : turn.stop]
    return Completion(
        ids=branch.ids.part(turn.start, turn.stop),
        logprobs=branch.logprobs.part(turn.start, turn.stop),
        versions=tuple((version, len(list(run))) for version, run in groupby(versions)),
        stop=turn.sampler_stop,
        cache_version=turn.cache_version,
        routes=branch.routes.part(routed, turn.stop - 1) if isinstance(branch.routes, Column) else None,
    )
