"""Settings of the two tiers."""

from __future__ import annotations

from attrs import field, frozen, validators


@frozen(kw_only=True)
class NamespacesConfig:
    """Settings of `local/namespaces`."""

    bwrap: str = "bwrap"
    """bubblewrap's command, a name on PATH or a path; 0.8 or newer."""
    commands: int = field(default=32, validator=validators.ge(1))
    """Commands that may run at once; more wait their turn, which does not count as their time."""
    store_bytes: int = field(default=2 << 30, validator=validators.ge(1 << 20))
    """Memory that all templates and frozen layers of one provider may take together."""
    cgroups: bool = True
    """Use control groups where they are writable; without, the memory limit is each process's own."""


@frozen(kw_only=True)
class ProcessConfig:
    """Settings of `local/process`."""

    trusted: bool = False
    """Say true if every command may do what you may do on this machine; a run is refused otherwise."""
    commands: int = field(default=16, validator=validators.ge(1))
    """Commands that may run at once; more wait their turn."""
