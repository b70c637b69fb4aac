"""What an allow-list lets through: names, suffixes, addresses, ports.

A name that is allowed leads to public addresses only: who owns a name may let it lead anywhere, to a service of this
machine or of its network for instance. An address that is meant is named itself.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address

from attrs import frozen

from composer_core.errors import BackendError

Address = IPv4Address | IPv6Address
NAME = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_]([a-z0-9_-]{0,62}))*", re.ASCII)
ENTRY = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+)|([0-9A-Fa-f:.]+:[0-9A-Fa-f:.]*))(?::(\d{1,5}))?", re.ASCII)
"""An address in brackets, a name or an IPv4 address, or a bare IPv6 address; a port."""
TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
"""IPv6 addresses that stand for the IPv4 address in their last bytes (RFC 6052)."""


@frozen
class Rule:
    """One entry of an allow-list."""

    host: str
    """A name in lower case, or an address."""
    below: bool = False
    """Whether it is the names below `host` that are meant."""
    port: int | None = None
    """None for all."""

    @classmethod
    def of(cls, text: str) -> Rule:
        """Raises BackendError."""
        found = ENTRY.fullmatch(text)
        host = (found[1] or found[2] or found[3]).lower() if found else ""
        below = host.startswith("*.")
        name = canonical(host.removeprefix("*."))
        port = int(found[4]) if found and found[4] else None
        if not name or (below and address_of(name)) or port == 0 or (port or 0) >= 1 << 16:
            expected = "a name, *.suffix or an address, perhaps with :port"
            raise BackendError(f"{text!r} is no host that could be allowed", expected=expected, where="network.allow")
        return cls(name, below, port)

    def takes(self, host: str, port: int) -> bool:
        """Whether a canonical host is meant."""
        named = host.endswith(f".{self.host}") and not address_of(host) if self.below else host == self.host
        return named and self.port in (None, port)


def rules_of(allow: Sequence[str]) -> tuple[Rule, ...]:
    """Raises BackendError for what is no entry."""
    return tuple(map(Rule.of, allow))


def canonical(host: str) -> str:
    """A name or address as it is compared; "" for what is neither."""
    host = host.lower().removesuffix(".")
    if address := address_of(host):
        return str(address)
    return host if NAME.fullmatch(host) else ""


def address_of(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_public(address: Address) -> bool:
    """Whether it belongs to no machine's, no link's and no organization's own, by whatever way it is spelled."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if address in TRANSLATED:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)
