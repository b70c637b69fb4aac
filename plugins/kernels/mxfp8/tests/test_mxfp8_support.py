"""Where the kernels run is said once, and whoever lacks it is told what to install."""

import importlib
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import torch

from composer_plugin_mxfp8 import kernels, support

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


def dotted(versions):
    return [".".join(map(str, version)) for version in versions]


def test_the_project_asks_for_the_versions_that_are_enforced():
    first, beyond = dotted(support.TRITON)
    assert PROJECT["optional-dependencies"]["triton"] == [f"triton>={first},<{beyond}"]
    assert f"torch>={dotted(support.TORCH)[0]}" in PROJECT["dependencies"]


def test_the_versions_of_this_environment_are_supported():
    assert support.wrong_version() is None


@pytest.mark.parametrize(
    "name, found", [("triton", "3.5.1"), ("triton", "3.10.0"), ("torch", "2.10.0"), ("torch", "3.0")]
)
def test_a_version_outside_its_range_is_refused_with_what_to_install(monkeypatch, name, found):
    monkeypatch.setattr(metadata, "version", ({"triton": "3.9.0", "torch": "2.13.0+cpu"} | {name: found}).__getitem__)
    first, beyond = dotted({"triton": support.TRITON, "torch": support.TORCH}[name])
    expected = f"{name} {found} is outside the supported range; install '{name}>={first},<{beyond}'"
    assert support.wrong_version() == expected
    with pytest.raises(ImportError, match=r"outside the supported range.*choose implementation = 'reference'"):
        importlib.reload(kernels)


def test_a_gpu_without_products_of_bf16_is_refused(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "an old one")
    assert support.why_not(torch.device("cuda")) == "an old one has compute capability (7, 5), below (8, 0)"


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
