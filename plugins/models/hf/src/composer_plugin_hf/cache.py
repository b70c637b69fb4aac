"""Keys and values of many sequences in fixed rows ("slots"), as a transformers cache.

Legend: R rows, B rows of one forward pass, H key/value heads, C capacity, S positions seen by a pass, T new tokens,
W head width. transformers' own static cache holds one length for a whole batch; here each row has its own past, so
rows that are at different places decode together, and a row's entries stay where they are between turns.

Keys are stored transposed, [R, H, W, C]: the product of one query with all of them then runs along neighbors, which
takes a fifth to a third less time at 96 rows. What a layer stores is up to the architecture: keys and values of equal
width, or the two latents of MLA. When the rows of a pass are neighbors, attention reads them in place; otherwise they
are gathered (measured 3 to 4 times slower).
"""

from __future__ import annotations

from typing import Any

import torch
from attrs import frozen
from transformers.cache_utils import Cache

BUCKET = 32
"""S is rounded up to a multiple of this, so shapes repeat and vector lanes are full."""


@frozen
class Stored:
    """What one layer stores for each token: heads and width of the two tensors given to `Cache.update`."""

    key_heads: int
    key_width: int
    value_heads: int
    value_width: int


@frozen
class Window:
    """Where one forward pass reads and writes."""

    rows: slice | torch.Tensor
    """The pass's rows of the cache: neighbors as a slice, others as int64 [B]."""
    slots_B1: torch.Tensor
    positions_BT: torch.Tensor
    """Where each new token is stored; padding is sent to the column past the capacity, which nobody reads."""
    seen: int
    """S: positions that attention reads."""


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


class SlotCache(Cache):  # type: ignore[misc]
    """`rows` sequences of up to `capacity` tokens. Not thread-safe: one forward pass at a time."""

    def __init__(self, layers: list[Stored], rows: int, capacity: int, like: torch.Tensor, fixed: bool) -> None:
        super().__init__(layers=[])
        self.rows = rows
        self.capacity = capacity
        self.fixed = fixed
        self.window: Window | None = None
        length = round_up(capacity + 1, BUCKET)
        new = like.new_zeros
        self.keys = [new(rows, layer.key_heads, layer.key_width, length) for layer in layers]
        self.values = [new(rows, layer.value_heads, length, layer.value_width) for layer in layers]

    def place(self, slots_B: torch.Tensor, past_B: torch.Tensor, lengths_B: torch.Tensor, new_tokens: int) -> Window:
        """Open the window of a forward pass. A `fixed` cache reads every position whatever the rows hold.

        Rows without new tokens (length 0) do not count for S; give them a past of `capacity` and nothing is lost.
        """
        slots = slots_B.tolist()
        first, count = slots[0], len(slots)
        neighbors = slots == list(range(first, first + count))
        step_T = torch.arange(new_tokens, device=past_B.device)
        positions_BT = past_B[:, None] + step_T
        if new_tokens > 1:
            positions_BT = torch.where(step_T < lengths_B[:, None], positions_BT, self.capacity)
        length = self.keys[0].shape[3]
        longest = int(past_B.masked_fill(lengths_B == 0, 0).max()) + new_tokens
        seen = length if self.fixed else min(length, round_up(longest, BUCKET))
        rows = slice(first, first + count) if neighbors else slots_B
        self.window = Window(rows, slots_B[:, None], positions_BT.clamp(max=self.capacity), seen)
        return self.window

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store [B, H, T, W] new entries; returns [B, H, S, W] of each row."""
        window = self.window
        assert window is not None, "place() opens the window of a pass"
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        keys[window.slots_B1, :, :, window.positions_BT] = key_states.transpose(1, 2)
        values[window.slots_B1, :, window.positions_BT] = value_states.transpose(1, 2)
        keys_BHSW = keys[window.rows, :, :, : window.seen].transpose(2, 3)
        return keys_BHSW, values[window.rows, :, : window.seen]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Rows have lengths of their own; the adapter gives positions and masks explicitly."""
        return 0

    def copy(self, source: int, targets: list[int], tokens: int) -> None:
        """Copy the first `tokens` entries of row `source` over those of `targets`."""
        for keys, values in zip(self.keys, self.values, strict=True):
            keys[targets, :, :, :tokens] = keys[source, :, :, :tokens]
            values[targets, :, :tokens] = values[source, :, :tokens]
