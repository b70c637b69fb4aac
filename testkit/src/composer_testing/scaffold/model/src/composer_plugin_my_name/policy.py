"""A policy that runs on its own embedding and on the mean of all embeddings so far.

Legend: B rows, T new tokens a row (right-padded), R rows of a cache, C its capacity, D width, N tokens, V vocabulary.

What a token needs of its past is one sum, so the cache holds the sum of the first n embeddings for every n. Any place
of any row can be gone on from, and copying a prefix is copying a slice: the same holds for keys and values.
"""

import torch
from torch import nn

from composer_core import BuildContext
from composer_core.errors import CapabilityError
from composer_core.tensors import PolicyOutput
from composer_plugin_my_name.plugin import MyNameConfig


class SumCache:
    """`tensors.KVCache`: `sums_RCD[r, n]` is the sum of the first n embeddings of row r."""

    def __init__(self, rows: int, capacity: int, like: torch.Tensor) -> None:
        self.rows, self.capacity = rows, capacity
        self.sums_RCD = like.new_zeros(rows, capacity + 2, like.shape[-1])  # the last place is for padding

    def copy(self, source: int, targets: list[int], tokens: int) -> None:
        """The first `tokens` tokens of row `source` become those of `targets`."""
        self.sums_RCD[targets, : tokens + 1] = self.sums_RCD[source, : tokens + 1]


class MyNamePolicy(nn.Module):
    """`tensors.PolicyModel`, dense: it has no routes."""

    routes = None

    def __init__(self, vocab_size: int, width: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.embed = nn.Embedding(vocab_size, width)
        self.mix = nn.Sequential(nn.Linear(2 * width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)

    def new_cache(self, rows: int, capacity: int) -> SumCache:
        """An empty cache, in the dtype and on the device of the weights."""
        return SumCache(rows, capacity, self.embed.weight.detach())

    def trunk(
        self,
        ids_BT: torch.Tensor,
        lengths_B: torch.Tensor,
        *,
        cache: SumCache | None = None,
        slots_B: torch.Tensor | None = None,
        past_B: torch.Tensor | None = None,
        replay_BTLK: torch.Tensor | None = None,
        replay_tau: float = 0.0,
        want_routes: bool = False,
    ) -> PolicyOutput:
        """Hidden states [B, T, D]. Padding stands behind a row's real tokens, which therefore never see it."""
        if replay_BTLK is not None:
            raise CapabilityError("a dense model has no experts to replay", who="my-name")
        x_BTD = self.embed(ids_BT)
        sums_BTD, count_BT = x_BTD.cumsum(1), torch.arange(1, ids_BT.shape[1] + 1, device=ids_BT.device)[None]
        if cache is not None:
            assert slots_B is not None and past_B is not None, "a cache needs slots and pasts"
            sums_BTD = sums_BTD + cache.sums_RCD[slots_B, past_B, None]
            count_BT = count_BT + past_B[:, None]
            place_BT = count_BT.clamp(max=cache.capacity + 1)
            cache.sums_RCD[slots_B[:, None], place_BT] = sums_BTD.detach()
        mean_BTD = sums_BTD / count_BT[..., None]
        return PolicyOutput(self.norm(x_BTD + self.mix(torch.cat([x_BTD, mean_BTD], dim=-1))))

    def logits(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        """[N, V]."""
        logits_NV: torch.Tensor = self.head(hidden_ND)
        return logits_NV


def build(config: MyNameConfig, build: BuildContext) -> MyNamePolicy:
    """Factory of a fresh policy: equal seeds give equal weights, and the process's own generator is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(build.seed)
        return MyNamePolicy(build.get("tokenizer").vocab_size, config.width)
