"""The public contract through real server processes: what a sandbox is behind a server, it is without one."""

from __future__ import annotations

import os
from typing import ClassVar

import pytest
from servers import envd

from composer_core.capabilities import CAPABILITIES
from composer_core.sandbox import Sandbox
from composer_plugin_server.plugin import composer_sandboxes
from composer_testing.contracts.hook_modules import HookModuleContract
from composer_testing.contracts.sandbox_commands import CommandContract
from composer_testing.contracts.sandboxes import SandboxContract
from composer_testing.engines import own_engine
from composer_testing.sandbox_suite import SandboxSuite

ALL = {name for name in CAPABILITIES if name.startswith("sandbox.")}
FILES = {"sandbox.forks", "sandbox.snapshots.files", "sandbox.changes", "sandbox.leases"}
OPTIONAL = {"sandbox.sessions", "sandbox.pauses", "sandbox.networks"}
LIMITS = {name for name in ALL if name.startswith("sandbox.limits.")}
CLAIMS = ["snapshots.files", "snapshots.full", "sessions"]
if os.environ.get("COMPOSER_SOAK"):
    CLAIMS += ["forks", "isolates", "networks"]


class TestHookModule(HookModuleContract):
    module = "composer_plugin_server.plugin"


class _Behind:
    """A server for all tests of a class; each test has a provider, and so a lease, of its own."""

    spec = next(iter(composer_sandboxes()))
    component: ClassVar[str]
    overrides: ClassVar[tuple[str, ...]] = ()

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def server(cls, tmp_path_factory):
        with envd(cls.component, tmp_path_factory.mktemp("envd"), *cls.overrides) as cls.running:
            yield

    def provider(self, tmp_path):
        return self.running.provider(wait_s=20, needs=())


class TestMemory(_Behind, SandboxContract):
    component = "fakes/memory"
    may_lack = ALL - FILES


class TestProcess(_Behind, CommandContract):
    component = "local/process"
    overrides = ("sandbox.trusted=true",)
    may_lack = ALL - {"sandbox.leases"}


class TestNamespaces(_Behind, CommandContract):
    component = "local/namespaces"
    may_lack = ALL - FILES - LIMITS - OPTIONAL - {"sandbox.isolates"}


class _Few(_Behind, SandboxSuite):
    """What takes another way behind a server, with sandboxes that take long to make: a handful of the contract."""

    run = SandboxContract.run
    test_what_is_probed_is_declared_and_what_is_not_probed_is_named = (
        SandboxContract.test_what_is_probed_is_declared_and_what_is_not_probed_is_named
    )
    test_input_and_output_are_bytes = SandboxContract.test_input_and_output_are_bytes
    test_the_patch_is_what_changed = SandboxContract.test_the_patch_is_what_changed
    test_destroying_leaves_no_file_descriptor_or_process = (
        SandboxContract.test_destroying_leaves_no_file_descriptor_or_process
    )

    @pytest.mark.parametrize("claim", CLAIMS)
    def test_what_is_declared_is_given_and_what_is_given_is_declared(self, claim: str) -> None:
        SandboxContract.test_what_is_declared_is_given_and_what_is_given_is_declared(self, f"sandbox.{claim}")


class TestDocker(_Few):
    component = "docker/docker"
    may_lack = ALL - FILES - LIMITS - OPTIONAL - {"sandbox.isolates"}

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def server(cls, tmp_path_factory):
        with own_engine() as address:
            cls.overrides = (f"sandbox.engine={address}",)
            with envd(cls.component, tmp_path_factory.mktemp("envd"), *cls.overrides) as cls.running:
                yield


class TestMachines(_Few):
    component = "microvm/qemu"
    may_lack = ALL - FILES - LIMITS - OPTIONAL - {"sandbox.isolates", "sandbox.snapshots.full"}


class TestWhatIsLacking(_Behind, SandboxSuite):
    component = "local/process"
    overrides = ("sandbox.trusted=true",)

    def test_what_the_provider_lacks_is_unsupported_and_named(self) -> None:
        async def act(sandbox: Sandbox, provider):
            with pytest.raises(Exception, match=r"do not offer 'sandbox\.sessions'"):
                await sandbox.session_exec("one", ["true"])
            with pytest.raises(Exception, match=r"do not offer 'sandbox\.pauses'"):
                await sandbox.pause()
            with pytest.raises(Exception, match=r"do not offer 'sandbox\.networks'"):
                await sandbox.set_network(["example.com"])

        self.act(act)
