"""How a run and a sandbox's network policy name hosts: names, suffixes, addresses, ports."""

from __future__ import annotations

import ipaddress
import re
from ipaddress import IPv4Address, IPv6Address

from attrs import frozen

__all__ = [
    "Address",
    "Rule",
    "address_of",
    "canonical",
]

Address = IPv4Address | IPv6Address
NAME = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_]([a-z0-9_-]{0,62}))*", re.ASCII)
ENTRY = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+)|([0-9A-Fa-f:.]+:[0-9A-Fa-f:.]*))(?::(\d{1,5}))?", re.ASCII)
"""An address in brackets, a name or an IPv4 address, or a bare IPv6 address; a port."""
NUMBER = re.compile(r"(.*\.)?([0-9]+|0x[0-9a-f]*)", re.ASCII)
"""What resolvers may take for an address: no name of a host ends in a number (RFC 3696 section 2)."""


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
        """Raises ValueError."""
        found = ENTRY.fullmatch(text)
        host = (found[1] or found[2] or found[3]).lower() if found else ""
        below = host.startswith("*.")
        name = canonical(host.removeprefix("*."))
        port = int(found[4]) if found and found[4] else None
        if not name or (below and address_of(name)) or port == 0 or (port or 0) >= 1 << 16:
            expected = "a name, *.suffix or an address, perhaps with :port"
            raise ValueError(f"{text!r} is no host that could be allowed; it takes {expected}")
        return cls(name, below, port)

    def takes(self, host: str, port: int) -> bool:
        """Whether a canonical host is meant."""
        named = host.endswith(f".{self.host}") and not address_of(host) if self.below else host == self.host
        return named and self.port in (None, port)


def canonical(host: str) -> str:
    """A name or address as it is compared; "" for what is neither."""
    host = host.lower().removesuffix(".")
    if address := address_of(host):
        return str(address)
    return host if NAME.fullmatch(host) and not NUMBER.fullmatch(host) else ""


def address_of(host: str) -> Address | None:
    """The address that a text spells out, None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
