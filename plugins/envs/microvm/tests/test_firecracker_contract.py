"""Machines of Firecracker keep the public contract: through its API and over vsock, a strict server in its place.

Agent, provider and sandbox are those of machines of QEMU, which are held to every case; claims of what the agent alone
enforces wait for `make soak`, as does the one of forks, which makes some fifteen machines: what is special about forks
here has tests of its own.
"""

from __future__ import annotations

import os

import pytest

from composer_core.records import SandboxSpec
from composer_plugin_microvm.config import FirecrackerConfig
from composer_plugin_microvm.plugin import composer_sandboxes
from composer_testing.contracts.sandboxes import SandboxContract

SPECS: dict[str, SandboxSpec] = {spec.name: spec for spec in composer_sandboxes()}
CLAIMS = ["snapshots.files", "snapshots.full", "sessions", "pauses"]
if os.environ.get("COMPOSER_SOAK"):
    CLAIMS += ["forks", "isolates", "networks", "limits.disk"]


class TestFirecracker(SandboxContract):
    spec = SPECS["firecracker"]

    @pytest.fixture(autouse=True)
    def _booted(self, booted: FirecrackerConfig) -> None:
        type(self).config = booted

    @pytest.mark.parametrize("claim", [f"sandbox.{name}" for name in CLAIMS])
    def test_what_is_declared_is_given_and_what_is_given_is_declared(self, claim: str) -> None:
        super().test_what_is_declared_is_given_and_what_is_given_is_declared(claim)
