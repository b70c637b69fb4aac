"""Who holds what, and until when. A lease is found by its secret, a sandbox through its lease alone.

Secrets are kept as digests: a look-up then takes a time that tells nothing of them, and no figure or log can show one.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterator

from attrs import define, field

from composer_core.protocols import SandboxBackend, SnapshotRef
from composer_plugin_server.gate import Ticket
from composer_plugin_server.wire import LeaseGone

LONGEST_S = 3600.0


@define(eq=False)
class Owned:
    """A live sandbox: whose, how large, and what it is doing."""

    id: str
    backend: SandboxBackend
    ticket: Ticket
    memory_bytes: int
    offers: tuple[str, ...]
    source: str
    made_s: float
    running: int = 0
    """Calls that are in it now."""
    paused: bool = False
    until_s: float | None = None
    """When its own lease ends; None while only the client's does."""

    @property
    def state(self) -> str:
        return "paused" if self.paused else "busy" if self.running else "idle"


@define(eq=False)
class Lease:
    """A client."""

    digest: str
    client: str
    lease_s: float
    group: int
    until_s: float
    sandboxes: dict[str, Owned] = field(factory=dict)
    snapshots: dict[str, tuple[SnapshotRef, int]] = field(factory=dict)
    """Our id -> the provider's, and the memory of a sandbox made of it."""
    ended: bool = False


@define(eq=False)
class Leases:
    _by_digest: dict[str, Lease] = field(factory=dict)

    def open(self, client: str, lease_s: float, group: int) -> tuple[str, Lease]:
        """A fresh secret and its lease."""
        secret = secrets.token_urlsafe(24)
        lease_s = min(max(lease_s, 1.0), LONGEST_S)
        lease = Lease(_digest(secret), client[:64], lease_s, group, time.monotonic() + lease_s)
        self._by_digest[lease.digest] = lease
        return secret, lease

    def find(self, secret: str) -> Lease:
        """Raises LeaseGone. Finding it is a sign of life."""
        lease = self._by_digest.get(_digest(secret))
        if lease is None or lease.ended:
            raise LeaseGone("there is no such lease: it ended, or the server was restarted")
        lease.until_s = time.monotonic() + lease.lease_s
        return lease

    def late(self) -> list[Lease]:
        """Leases that were not kept."""
        now = time.monotonic()
        return [lease for lease in self._by_digest.values() if now > lease.until_s]

    def remove(self, lease: Lease) -> None:
        lease.ended = True
        self._by_digest.pop(lease.digest, None)

    def __iter__(self) -> Iterator[Lease]:
        return iter(list(self._by_digest.values()))

    def __len__(self) -> int:
        return len(self._by_digest)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()
