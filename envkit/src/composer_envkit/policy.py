"""What an allow-list lets through.

A name that is allowed leads to public addresses only: who owns a name may let it lead anywhere, to a service of this
machine or of its network for instance. An address that is meant is named itself.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address

from composer_core.errors import BackendError
from composer_core.hosts import Address, Rule

TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
"""IPv6 addresses that stand for the IPv4 address in their last bytes (RFC 6052)."""


def rules_of(allow: Sequence[str]) -> tuple[Rule, ...]:
    """Raises BackendError for what is no entry."""
    try:
        return tuple(map(Rule.of, allow))
    except ValueError as error:
        raise BackendError(str(error), where="network.allow") from error


def is_public(address: Address) -> bool:
    """Whether it belongs to no machine's, no link's and no organization's own, by whatever way it is spelled."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if address in TRANSLATED:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)
