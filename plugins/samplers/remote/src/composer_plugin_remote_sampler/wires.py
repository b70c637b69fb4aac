"""What is asked of a server and what its answer means, as values; nothing here talks to anybody.

Sources: the request and response models of vLLM's OpenAI server (`return_token_ids`, `return_tokens_as_token_ids`,
`token_ids`, `prompt_token_ids`, `stop_reason`) and of SGLang's /generate (`input_ids`, `output_token_logprobs`,
`finish_reason`). An answer that lacks what training needs is a `SamplerError`, never a guess.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from attrs import frozen

from composer_core.columns import Column
from composer_core.errors import SamplerError
from composer_core.noise import uniform
from composer_core.protocols import Tokenizer
from composer_core.types import Completion, GenerateRequest, GenerateSettings

Json = dict[str, Any]
ID = re.compile(r"token_id:(\d+)")
SEEDS = 1 << 31
ENDS = ("stop", "length")
"""How a generation ends that nobody has broken off, as servers do when they swap weights or are told to."""
MOST_STOPS = 4
"""Texts that end a generation which the OpenAI API takes at most."""


@frozen
class Asked:
    """One generation as it was asked for."""

    ids: Sequence[int]
    settings: GenerateSettings
    request: GenerateRequest

    @property
    def seed(self) -> int:
        """A function of the attempt's noise and how far it is; what a server makes of it is its own."""
        return int(uniform(self.request.noise, self.request.position) * SEEDS)


@frozen
class Answer:
    """What a server sampled."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    stop: str

    def completion(self, version: int) -> Completion:
        runs = ((version, len(self.ids)),) if self.ids else ()
        ids, logprobs = Column.of("I32", self.ids), Column.of("F32", self.logprobs)
        return Completion(ids, logprobs, runs, self.stop, cache_version=version)


class Wire(Protocol):
    """One protocol of servers."""

    @property
    def path(self) -> str:
        """Where a generation is asked for."""
        ...

    def body(self, asked: Asked) -> Json:
        """What is posted to `path`."""
        ...

    def answer(self, reply: Any, asked: Asked) -> Answer:
        """Raises SamplerError if the reply is not what was asked for."""
        ...

    def reloads(self, folder: str) -> Sequence[tuple[str, Json]]:
        """Paths and bodies that make the server read the weights of `folder` again."""
        ...


@frozen
class OpenAi:
    """/v1/completions of a server that returns ids."""

    model: str = ""
    path: str = "/v1/completions"

    def body(self, asked: Asked) -> Json:
        return {
            **({"model": self.model} if self.model else {}),
            "prompt": list(asked.ids),
            "max_tokens": asked.settings.max_tokens,
            "temperature": asked.settings.temperature,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "seed": asked.seed,
            "logprobs": 1,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "skip_special_tokens": False,
            "add_special_tokens": False,
            "ignore_eos": True,
            "stop_token_ids": sorted(asked.settings.stop_ids),
        }

    def answer(self, reply: Any, asked: Asked) -> Answer:
        choice = _choice(reply)
        logprobs = choice.get("logprobs") or {}
        spelled = [ID.fullmatch(str(token)) for token in logprobs.get("tokens") or ()]
        ids = choice.get("token_ids")
        if ids is None and spelled and all(spelled):
            ids = [int(found[1]) for found in spelled if found]
        if ids is None:
            raise SamplerError(
                "the server returns no token ids",
                expected="choices[0].token_ids (return_token_ids), or logprobs.tokens as token_id:N",
                found=", ".join(sorted(choice)),
                fix="use a server that does, or remote-sampler/text, which serves evaluation only",
            )
        sent = choice.get("prompt_token_ids")
        if sent is not None and list(sent) != list(asked.ids):
            raise SamplerError("the server continued another prompt", expected=f"{len(asked.ids)} ids", found=len(sent))
        return _whole(ids, logprobs.get("token_logprobs"), choice, asked)

    def reloads(self, folder: str) -> Sequence[tuple[str, Json]]:
        return [("/collective_rpc", {"method": "reload_weights"}), ("/reset_prefix_cache", {})]


@frozen
class Sglang:
    """/generate of SGLang."""

    path: str = "/generate"

    def body(self, asked: Asked) -> Json:
        settings = asked.settings
        sampling = {
            "max_new_tokens": settings.max_tokens,
            "temperature": settings.temperature,
            "top_p": 1.0,
            "top_k": 1 if settings.temperature == 0 else -1,
            "stop_token_ids": sorted(settings.stop_ids),
            "skip_special_tokens": False,
            "no_stop_trim": True,
        }
        return {"input_ids": list(asked.ids), "sampling_params": sampling, "return_logprob": True, "stream": False}

    def answer(self, reply: Any, asked: Asked) -> Answer:
        meta = reply.get("meta_info", {}) if isinstance(reply, Mapping) else {}
        rows = meta.get("output_token_logprobs")
        if not isinstance(rows, list):
            raise SamplerError(
                "the server returns no token ids",
                expected="meta_info.output_token_logprobs (return_logprob)",
                found=", ".join(sorted(meta)) or type(reply).__name__,
            )
        finish = meta.get("finish_reason") or {}
        choice = {"finish_reason": finish.get("type"), "stop_reason": finish.get("matched"), **finish}
        return _whole([row[1] for row in rows], [row[0] for row in rows], choice, asked)

    def reloads(self, folder: str) -> Sequence[tuple[str, Json]]:
        return [("/update_weights_from_disk", {"model_path": folder, "flush_cache": True})]


@frozen
class Text:
    """/v1/completions of any server: text out and text in, of which ids are made here."""

    tokenizer: Tokenizer
    model: str = ""
    path: str = "/v1/completions"

    def body(self, asked: Asked) -> Json:
        stops = [self.tokenizer.decode([stop]) for stop in sorted(asked.settings.stop_ids)]
        return {
            **({"model": self.model} if self.model else {}),
            "prompt": self.tokenizer.decode(asked.ids),
            "max_tokens": asked.settings.max_tokens,
            "temperature": asked.settings.temperature,
            "seed": asked.seed,
            "stop": stops[:MOST_STOPS],
        }

    def answer(self, reply: Any, asked: Asked) -> Answer:
        choice = _choice(reply)
        ids = self._ids(str(choice.get("text", "")))[: asked.settings.max_tokens]
        stops = sorted(asked.settings.stop_ids)
        stopped = choice.get("finish_reason") == "stop" and bool(stops)
        if stopped and (not ids or ids[-1] not in stops):
            ids = [*ids[: asked.settings.max_tokens - 1], stops[0]]  # a text that stops is returned without what it
        return Answer(ids, [0.0] * len(ids), "stop" if stopped else "length")

    def _ids(self, text: str) -> list[int]:
        """Control tags in the text are control tokens, as far as the tokenizer tells which it has."""
        told: Mapping[str, int] = getattr(self.tokenizer, "specials", dict)()
        if not told:
            return self.tokenizer.encode(text)
        pieces = re.split("(" + "|".join(map(re.escape, sorted(told, key=len, reverse=True))) + ")", text)
        return [id for piece in pieces for id in ([told[piece]] if piece in told else self.tokenizer.encode(piece))]

    def reloads(self, folder: str) -> Sequence[tuple[str, Json]]:
        return ()


def _choice(reply: Any) -> Mapping[str, Any]:
    choices = reply.get("choices") if isinstance(reply, Mapping) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], Mapping):
        raise SamplerError("the server's answer is no completion", expected="one choice", found=str(reply)[:200])
    found: Mapping[str, Any] = choices[0]
    return found


def _whole(ids: Any, logprobs: Any, choice: Mapping[str, Any], asked: Asked) -> Answer:
    """The answer, if it was sampled to its end, with a log-probability for each id, and its stop id was not trimmed."""
    if choice.get("finish_reason") not in ENDS:
        told = choice.get("message") or choice.get("finish_reason")
        raise SamplerError("the server gave the generation up", expected=" or ".join(ENDS), found=str(told))
    numbers = [value for value in logprobs or () if isinstance(value, (int, float)) and math.isfinite(value)]
    if len(numbers) != len(ids):
        raise SamplerError(
            "the server returns no log-probability for each id",
            expected=f"{len(ids)} finite numbers",
            found=str(len(numbers)),
            fix="let it return log-probabilities, or use remote-sampler/text, which serves evaluation only",
        )
    stops, last = asked.settings.stop_ids, ids[-1] if ids else None
    if choice.get("stop_reason") in stops and last != choice["stop_reason"]:
        raise SamplerError("the server trims the id that ended the turn", found=f"id {choice['stop_reason']} is gone")
    stop = "length" if choice.get("finish_reason") == "length" and last not in stops else "stop"
    return Answer(list(ids), [min(0.0, float(value)) for value in numbers], stop)
