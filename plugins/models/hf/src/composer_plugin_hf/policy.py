"""Transformers causal language models as `composer_core.tensors.PolicyModel`: trunk, head, slots, routes.

Legend: B rows, T new tokens a row (right-padded), S cached positions, D width, N tokens, V vocabulary.

The modules are transformers' own and keep their names, so the state dict is that of `XForCausalLM` and a checkpoint
opens without this package. What is ours enters by transformers' public doors: an attention function, an experts
function, a cache, explicit positions and masks, hooks on the gates. A tied head is not a parameter of its own and is
absent from the state dict, as in transformers' checkpoints.

`deterministic` (RL.md section 5): rows padded to a multiple of 8, exact attention, row-padded experts; then a token's
values are a function of its own prefix, bit for bit, whatever shares the batch and wherever prefill was cut.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import nn

from composer_core.errors import ConfigError
from composer_core.tensors import Experts, PolicyOutput, RouteShape
from composer_plugin_hf import attention, experts
from composer_plugin_hf.architectures import inspect
from composer_plugin_hf.cache import SlotCache, round_up
from composer_plugin_hf.decoding import Decoder
from composer_plugin_hf.routing import RouteTape

ROWS = 8
"""Row counts that are multiples of this give bitwise equal rows in fp32 linear layers [measured, MKL]."""


class HFPolicy(nn.Module):
    """`causal_lm` driven through its trunk; built by `presets.build_tiny_moe` and `presets.build_causal_lm`."""

    def __init__(self, causal_lm: Any, kernel: Experts | None = None, deterministic: bool = False) -> None:
        super().__init__()
        found = inspect(causal_lm)
        self._whole = (causal_lm,)  # in a tuple, so that its modules are registered once, under their own names
        self.config = causal_lm.config
        self.deterministic = deterministic
        self.vocab_size: int = self.config.vocab_size
        self.model = causal_lm.model
        self.lm_head = None if self.config.tie_word_embeddings else causal_lm.lm_head
        self._stored = found.stored
        self._tape = RouteTape(found.gates, self.config.model_type)
        self.routes: RouteShape | None = self._tape.shape()
        self.config._attn_implementation = attention.NAME
        for module in found.attentions:
            module.composer_exact = deterministic
        if kernel is not None and not found.experts:
            raise ConfigError(
                "a dense model has no experts to compute",
                who="hf",
                where="model.experts.kernel",
                fix="leave the kernel out, or choose a mixture of experts",
            )
        if found.experts:
            self.config._experts_implementation = experts.NAME
            for module in found.experts:
                experts.install(module, kernel or (experts.padded if deterministic else experts.grouped))

    @property
    def causal_lm(self) -> Any:
        """The transformers model whose trunk and head these are."""
        return self._whole[0]

    @property
    def head(self) -> torch.Tensor:
        """[V, D] weights of the head."""
        weight: torch.Tensor = (self.model.embed_tokens if self.lm_head is None else self.lm_head).weight
        return weight

    @cached_property
    def _decoder(self) -> Decoder | None:
        """Found at the first pass over a cache, which may be another policy's: a sampler has two, and one cache."""
        return Decoder.of(self.model) if self.head.device.type == "cpu" and not self.deterministic else None

    def new_cache(self, rows: int, capacity: int) -> SlotCache:
        """Zeroed keys and values in the dtype and on the device of the weights."""
        return SlotCache(self._stored, rows, capacity, self.head.detach(), fixed=self.deterministic)

    def trunk(
        self,
        ids_BT: torch.Tensor,
        lengths_B: torch.Tensor,
        *,
        cache: SlotCache | None = None,
        slots_B: torch.Tensor | None = None,
        past_B: torch.Tensor | None = None,
        replay_BTLK: torch.Tensor | None = None,
        replay_tau: float = 0.0,
        want_routes: bool = False,
    ) -> PolicyOutput:
        """See `PolicyModel.trunk`."""
        rows, tokens = ids_BT.shape
        if self.deterministic:
            ids_BT, replay_BTLK = _pad_rows(ids_BT), None if replay_BTLK is None else _pad_rows(replay_BTLK)
        self._tape.begin(replay_BTLK, replay_tau, want_routes)
        if cache is None:
            positions_BT, mask = torch.arange(tokens, device=ids_BT.device).expand(ids_BT.shape), None
        else:
            assert slots_B is not None and past_B is not None, "a cache needs slots and pasts"
            if self.deterministic:
                slots_B, past_B, lengths_B = _pad_place(cache, slots_B, past_B, lengths_B, len(ids_BT))
            window = cache.place(slots_B, past_B, lengths_B, tokens)
            positions_BT = past_B[:, None] + torch.arange(tokens, device=ids_BT.device)
            mask = _mask(positions_BT, window.seen, self.head.dtype)
        if cache is not None and mask is not None and self._decoder is not None:
            hidden_BTD = self._decoder(ids_BT, positions_BT, mask, cache)
        else:
            hidden_BTD = self.model(
                input_ids=ids_BT,
                position_ids=positions_BT,
                attention_mask=mask,
                past_key_values=cache,
                use_cache=False,
            ).last_hidden_state
        routes_BTLK, own_BTLK = (ids if ids is None else ids[:rows] for ids in self._tape.end(len(ids_BT), tokens))
        return PolicyOutput(hidden_BTD[:rows], routes_BTLK, own_BTLK)

    def logits(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        """[N, V] in the model's dtype."""
        rows = hidden_ND.shape[0]
        if self.deterministic:
            hidden_ND = _pad_rows(hidden_ND)
        return nn.functional.linear(hidden_ND, self.head)[:rows]

    forward = trunk


def _mask(positions_BT: torch.Tensor, seen: int, dtype: torch.dtype) -> torch.Tensor:
    """[B, 1, T, S] additive: a token sees keys at its own position and before; padding sees at least the first."""
    hidden_BTS = torch.arange(seen, device=positions_BT.device) > positions_BT[:, :, None]
    mask_BTS = torch.zeros(hidden_BTS.shape, dtype=dtype, device=positions_BT.device)
    return mask_BTS.masked_fill_(hidden_BTS, torch.finfo(dtype).min)[:, None]


def _pad_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Zero rows appended up to a multiple of ROWS."""
    missing = round_up(tensor.shape[0], ROWS) - tensor.shape[0]
    return torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])]) if missing else tensor


def _pad_place(
    cache: SlotCache, slots_B: torch.Tensor, past_B: torch.Tensor, lengths_B: torch.Tensor, rows: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows of padding read slot 0 and write to the column past the capacity, which nobody reads."""
    extra = rows - slots_B.shape[0]
    if not extra:
        return slots_B, past_B, lengths_B
    slots_B = torch.cat([slots_B, slots_B.new_zeros(extra)])
    past_B = torch.cat([past_B, past_B.new_full((extra,), cache.capacity)])
    return slots_B, past_B, torch.cat([lengths_B, lengths_B.new_zeros(extra)])
