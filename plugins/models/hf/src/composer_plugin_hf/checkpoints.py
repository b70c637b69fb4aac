"""Checkpoints in transformers' own layout: config.json, model.safetensors, tokenizer files in one folder.

`AutoModelForCausalLM.from_pretrained(folder)` and `AutoTokenizer.from_pretrained(folder)` open it without this package,
and `hf/causal-lm` with `path` opens it as a policy. The weights a sampler loads are another thing: safetensors of the
policy's state dict, written by a trainer. The tokenizer's fingerprint is stored beside the weights and compared when a
policy is loaded together with a tokenizer, because ids mean nothing under another vocabulary.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from transformers.utils import logging

from composer_core.errors import ConfigError
from composer_core.protocols import BuildContext, Tokenizer
from composer_plugin_hf.policy import HFPolicy

FINGERPRINT = "composer.json"


def save_checkpoint(model: HFPolicy, tokenizer: Tokenizer, folder: Path) -> None:
    """Write `folder`; existing files of these names are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model.causal_lm.save_pretrained(folder)
    finally:
        if bars:
            logging.enable_progress_bar()
    tokenizer.save(folder)
    (folder / FINGERPRINT).write_text(json.dumps({"tokenizer": tokenizer.fingerprint}) + "\n")


def export(config: Any, build: BuildContext, weights: Path, folder: Path) -> None:
    """Published weights (a safetensors file of the state dict) as a checkpoint that plain transformers opens."""
    model: HFPolicy = build.get("policy")
    model.load_state_dict(load_file(weights))
    save_checkpoint(model, build.get("tokenizer"), folder)


def check_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Raises ConfigError when `folder` was written with another tokenizer; folders without a fingerprint pass."""
    stored = folder / FINGERPRINT
    if not stored.is_file():
        return
    expected = json.loads(stored.read_text())["tokenizer"]
    if expected != tokenizer.fingerprint:
        raise ConfigError(
            "the checkpoint was trained with another tokenizer",
            where=str(folder),
            expected=expected,
            found=tokenizer.fingerprint,
            fix="use the tokenizer that lies beside the checkpoint",
        )
