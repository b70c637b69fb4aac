"""Hook module: imported by every listing of plugins, so it imports nothing heavy."""

from collections.abc import Iterable

from attrs import frozen

from composer_core import Problem, RunView, SandboxSpec, hookimpl

COMPOSER_API = 1


@frozen
class MyNameConfig:
    """Settings beside `sandbox.use` in the run file."""

    trusted: bool = False
    """Say so if all that the policy may run is harmless: it runs as you."""


@hookimpl
def composer_sandboxes() -> Iterable[SandboxSpec]:
    """Declares what it is: no isolation, and copies of a sandbox as it stands."""
    yield SandboxSpec(
        name="my-name",
        factory="composer_plugin_my_name.sandbox:MyNameProvider",
        config=MyNameConfig,
        isolation="none",
        capabilities={"sandbox.forks", "sandbox.snapshots.files"},
        summary="folders and processes of this machine; isolates nothing",
    )


@hookimpl
def composer_check(run: RunView) -> Iterable[Problem]:
    """A policy's commands are hostile until someone says otherwise."""
    for id, config in run.settings.get("sandboxes", ()):
        if id == "my-name/my-name" and not config.trusted:
            yield Problem("sandbox.use", f"{id} isolates nothing", "use another, or set sandbox.trusted = true")
