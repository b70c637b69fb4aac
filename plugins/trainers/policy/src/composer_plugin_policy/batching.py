"""From a TrainBatch to padded micro-batches.

Legend: B rows of a micro-batch, T padded tokens, N trained tokens of it, L MoE layers, K experts per token.

A row is forwarded only up to the input of its last trained token: nothing later can change a trained log-probability
under causal attention, it costs time, and the last sampled token has no recorded route (RL.md section 4), so every
forwarded token of a recorded row has one. Rows are length-bucketed and right-padded under a token budget instead of
packed: on a CPU a packed row would build a dense L x L mask. In order mode (deterministic runs) rows keep the order of
the batch. Either way the micro-batches are a pure function of the batch, and no result depends on how it was cut.

The first id of a row has nothing before it to be predicted from, so a `trained` flag on it has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from attrs import frozen

from composer_core.columns import Blob, Column
from composer_core.errors import TrainerError
from composer_core.tensors import RouteShape, to_tensor
from composer_core.types import TrainSequence


@frozen(eq=False)
class Row:
    """One sequence, ready to be forwarded."""

    index: int
    """Its place in the batch."""
    sequence: TrainSequence
    positions_N: torch.Tensor
    """int64: which ids are trained, each predicted from the position before it."""
    tokens: int
    """Forwarded tokens: up to the input of the last trained one."""
    advantage: float = 0.0

    @property
    def temperature(self) -> float:
        """Greedy tokens carry log-probabilities at temperature 1 (see `token_logprobs`)."""
        return self.sequence.temperature or 1.0


@frozen(eq=False)
class MicroBatch:
    """Padded tensors of a few rows; N counts their trained tokens, row by row."""

    rows: tuple[Row, ...]
    ids_BT: torch.Tensor
    lengths_B: torch.Tensor
    row_N: torch.Tensor
    """Row of each trained token."""
    input_N: torch.Tensor
    """Position whose hidden state predicts it."""
    targets_N: torch.Tensor
    advantage_N: torch.Tensor
    episode_N: torch.Tensor
    behavior_N: torch.Tensor | None
    comparable_N: torch.Tensor
    replay_BTLK: torch.Tensor | None
    temperature: float


def make_rows(sequences: Sequence[TrainSequence]) -> list[Row]:
    """A row for every sequence that trains at least one token.

    Raises:
        TrainerError: a column's length differs from that of the ids.
    """
    rows = []
    for index, sequence in enumerate(sequences):
        _check_lengths(index, sequence)
        positions_N = to_tensor(sequence.trained).nonzero().flatten()
        positions_N = positions_N[positions_N > 0]
        if len(positions_N):
            rows.append(Row(index, sequence, positions_N, tokens=int(positions_N[-1])))
    return rows


def _check_lengths(index: int, sequence: TrainSequence) -> None:
    for name in ("trained", "behavior", "comparable"):
        column: Column | None = getattr(sequence, name)
        if column is not None and len(column) != len(sequence.ids):
            raise TrainerError(
                f"{name} and ids of a sequence differ in length",
                where=f"sequence {index} of the batch",
                expected=str(len(sequence.ids)),
                found=str(len(column)),
            )


def cut(rows: Iterable[Row], budget_tokens: int, *, in_order: bool) -> list[tuple[Row, ...]]:
    """Rows grouped so that each group's padded size stays under the budget (a longer row stands alone).

    Rows of one group share a temperature, and either all or none of them have routes.
    """
    ordered = list(rows) if in_order else sorted(rows, key=lambda row: (*_kind(row), -row.tokens, row.index))
    groups: list[list[Row]] = []
    longest = 0
    for row in ordered:
        widest = max(longest, row.tokens)
        fits = groups and _kind(groups[-1][0]) == _kind(row) and widest * (len(groups[-1]) + 1) <= budget_tokens
        if fits:
            groups[-1].append(row)
            longest = widest
        else:
            groups.append([row])
            longest = row.tokens
    return [tuple(group) for group in groups]


def _kind(row: Row) -> tuple[float, bool]:
    return row.temperature, row.sequence.routes is not None


def collate(
    rows: tuple[Row, ...], device: torch.device, routes: RouteShape | None, read: Callable[[Blob], Column]
) -> MicroBatch:
    """Pad rows to the longest of them and gather what is known of their trained tokens; `read` fetches blobs."""
    width = max(row.tokens for row in rows)
    ids = [to_tensor(row.sequence.ids).long() for row in rows]
    counts = torch.tensor([len(row.positions_N) for row in rows])
    input_N = torch.cat([row.positions_N - 1 for row in rows])
    has_behavior = all(row.sequence.behavior is not None for row in rows)
    return MicroBatch(
        rows=rows,
        ids_BT=torch.stack([_padded(row_ids[: row.tokens], width) for row_ids, row in zip(ids, rows, strict=True)]).to(
            device
        ),
        lengths_B=torch.tensor([row.tokens for row in rows], device=device),
        row_N=torch.repeat_interleave(torch.arange(len(rows)), counts).to(device),
        input_N=input_N.to(device),
        targets_N=torch.cat([row_ids[row.positions_N] for row_ids, row in zip(ids, rows, strict=True)]).to(device),
        advantage_N=torch.repeat_interleave(torch.tensor([row.advantage for row in rows]), counts).to(device),
        episode_N=torch.repeat_interleave(torch.tensor([row.sequence.episode for row in rows]), counts).to(device),
        behavior_N=_gathered(rows, "behavior").to(device) if has_behavior else None,
        comparable_N=_gathered(rows, "comparable").bool().to(device),
        replay_BTLK=_replay(rows, width, device, routes, read) if rows[0].sequence.routes is not None else None,
        temperature=rows[0].temperature,
    )


def _padded(ids_T: torch.Tensor, width: int) -> torch.Tensor:
    return torch.nn.functional.pad(ids_T, (0, width - len(ids_T)))


def _gathered(rows: tuple[Row, ...], name: str) -> torch.Tensor:
    """A column's values at the trained tokens; zeros for a row that lacks it."""
    parts = []
    for row in rows:
        column: Column | None = getattr(row.sequence, name)
        parts.append(torch.zeros(len(row.positions_N)) if column is None else to_tensor(column)[row.positions_N])
    return torch.cat(parts)


def _replay(
    rows: tuple[Row, ...],
    width: int,
    device: torch.device,
    shape: RouteShape | None,
    read: Callable[[Blob], Column],
) -> torch.Tensor:
    """Recorded expert ids; padding holds distinct valid ids, since it is routed as well."""
    if shape is None:
        raise TrainerError("a batch carries routes, the policy has no experts", where="TrainSequence.routes")
    filler_K = torch.arange(shape.top_k).to(shape.dtype)
    replay_BTLK = filler_K.repeat(len(rows), width, shape.layers, 1)
    for place, row in enumerate(rows):
        routes = row.sequence.routes
        assert routes is not None, "`cut` puts rows with and without routes apart"
        routes_TLK = to_tensor(read(routes) if isinstance(routes, Blob) else routes)
        if routes_TLK.shape[1:] != (shape.layers, shape.top_k) or len(routes_TLK) < row.tokens:
            raise TrainerError(
                "routes do not fit the sequence or the policy",
                where=f"sequence {row.index} of the batch",
                expected=f"at least {row.tokens} tokens x {shape.layers} layers x {shape.top_k} experts",
                found=str(tuple(routes_TLK.shape)),
            )
        replay_BTLK[place, : row.tokens] = routes_TLK[: row.tokens]
    return replay_BTLK.to(device)
