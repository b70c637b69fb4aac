"""Where the kernels run is said once, and whoever lacks it is told what to install."""

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import torch

from composer_plugin_mxfp8 import support

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


def test_the_project_asks_for_the_range_of_triton_that_is_enforced():
    (first, beyond) = (".".join(map(str, version)) for version in support.TRITON)
    assert PROJECT["optional-dependencies"]["triton"] == [f"triton>={first},<{beyond}"]


def test_the_versions_of_this_environment_are_supported():
    assert support.wrong_version() is None


@pytest.mark.parametrize("found", ["3.5.1", "3.10.0", "4.0.0"])
def test_a_triton_outside_the_range_is_refused_with_what_to_install(monkeypatch, found):
    versions = {"triton": found, "torch": "2.13.0+cpu"}
    monkeypatch.setattr(metadata, "version", versions.__getitem__)
    assert support.wrong_version() == f"triton {found} is outside the supported range; install 'triton>=3.6,<3.10'"


def test_a_missing_triton_is_named_and_plain_torch_needs_none(monkeypatch):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    assert support.why_not(torch.device("cpu")).startswith("triton is not installed; install 'triton>=3.6")


def test_a_cpu_runs_the_kernels_only_when_they_are_interpreted(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert support.why_not(torch.device("cpu")) is None
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert "needs a CUDA device" in support.why_not(torch.device("cpu"))
