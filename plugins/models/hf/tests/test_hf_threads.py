"""Who loads a policy leaves no team of OpenMP threads behind: two teams on one machine make both slow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from composer_core import BuildContext
from composer_core.tensors import one_thread
from composer_plugin_hf.config import TinyMoeConfig
from composer_plugin_hf.presets import build_tiny_moe

LOADING = """
import os, sys, threading, time
from pathlib import Path
import torch
from composer_core import BuildContext
from composer_plugin_hf.config import CausalLMConfig
from composer_plugin_hf.presets import build_causal_lm
torch.set_num_threads(2)
def native():
    time.sleep(0.5)  # a thread of Python's leaves its task a moment after its name
    return len(os.listdir("/proc/self/task")) - threading.active_count()
build_causal_lm(CausalLMConfig(path=sys.argv[1]), BuildContext(Path()))
loaded = native()
torch.ones(1 << 20) + 1
print(native() - loaded, torch.get_num_threads())
"""


def test_loading_a_policy_starts_no_team_and_leaves_the_thread_its_number(tmp_path: Path) -> None:
    policy = build_tiny_moe(TinyMoeConfig(), BuildContext(tmp_path))
    policy.causal_lm.save_pretrained(tmp_path)
    command = [sys.executable, "-c", LOADING, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["1", "2"], "the first team is that of the sum"


def test_one_thread_puts_the_number_back_after_an_error() -> None:
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError), one_thread():
        assert torch.get_num_threads() == 1
        raise RuntimeError
    assert torch.get_num_threads() == before
