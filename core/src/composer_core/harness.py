"""The harness: everything between a policy and its sandbox that decides which ids the policy is shown.

A policy is trained for one harness and is worth little in another. The run folder keeps the harness as `harness.json`,
every trace carries a stamp of harness and limits, and whatever uses the policy later (a resumed run, `composer-run
agent`) compares before it samples. With equal stamps and the plugins of `plugins.json`, equal sampled ids in an equal
sandbox are met by equal prompts and equal results, byte for byte.

Versions of plugins are no part of the stamp: one may be mended without the policy seeing any of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from attrs import asdict, field, frozen

from composer_core.errors import ConfigError
from composer_core.types import Limits


@frozen
class Harness:
    """Plain data, equal when the policy sees the same."""

    tools: tuple[Mapping[str, Any], ...] = ()
    """Of each tool, in the order the model is told: id, name, description, parameters, effect, settings."""
    renderer: Mapping[str, Any] = field(factory=dict)
    """Id and settings of the renderer, and the control tokens it asks for."""
    context: Mapping[str, Any] = field(factory=dict)
    """Id and settings of the context."""
    tokenizer: str = ""
    """Fingerprint of the tokenizer that gives the ids their meaning."""

    @cached_property
    def digest(self) -> str:
        """sha256 of all of the above."""
        return _sha256(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """What harness.json holds."""
        return asdict(self)

    def stamp(self, limits: Limits) -> str:
        """16 hexadecimal digits that name this harness under these limits."""
        return _sha256([self.digest, asdict(limits)])[:16]

    def refuse_other(self, recorded: Mapping[str, Any], where: str) -> None:
        """Compare with the harness.json of the run whose policy is to go on acting.

        Raises:
            ConfigError: they differ; names the parts that do.
        """
        before, now = (json.loads(json.dumps(one)) for one in (recorded, self.to_json()))
        parts = [f"{key}: {part}" for key in now for part in _differing(before.get(key), now[key])]
        if not parts:
            return
        raise ConfigError(
            "the harness is not the one this policy was trained in",
            where=where,
            expected="the tools, renderer, context and tokenizer of harness.json",
            found="; ".join(parts),
            fix="use the plugin versions of plugins.json, or train with the tools as they are now",
        )


def _differing(recorded: Any, now: Any) -> list[str]:
    """The entries that differ, each by its id; of a single value, the value."""
    if recorded == now:
        return []
    if not isinstance(now, list) or not isinstance(recorded, list):
        return [_name(now)]
    before = {_name(entry): entry for entry in recorded}
    after = {_name(entry): entry for entry in now}
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return names or ["another order"]


def _name(entry: Any) -> str:
    return str(entry.get("id", entry)) if isinstance(entry, Mapping) else str(entry)


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
