"""Settings of `server/remote`, the client's side."""

from __future__ import annotations

from attrs import field, frozen, validators

TOKEN_VARIABLE = "COMPOSER_ENVD_TOKEN"
"""Holds the bearer token where no file is named."""
TOKEN_FILE = "~/.config/composer/envd.token"
"""Where the token is looked for, and where a server writes one, if nothing else is said."""


@frozen(kw_only=True)
class RemoteConfig:
    """Settings of `server/remote`."""

    urls: tuple[str, ...] = ("http://127.0.0.1:7077",)
    """Servers that sandboxes are asked of, one for each node; the less loaded of two is asked first."""
    token_file: str = ""
    """File with the bearer token, readable by its owner alone; default, the variable COMPOSER_ENVD_TOKEN, else
    ~/.config/composer/envd.token."""
    lease: str = ""
    """A lease to join, so that this process reaches another's sandboxes; default, one of its own on each node."""
    lease_s: float = field(default=60.0, validator=[validators.ge(1), validators.le(3600)])
    """A server destroys what this process has made if it has not heard from it for so long."""
    wait_s: float = field(default=120.0, validator=validators.ge(0))
    """Seconds that a creation may wait for room in a server's queue before it is told that there is none."""
    group: int = field(default=0, validator=[validators.ge(0), validators.le(256)])
    """Sandboxes of each recent template that a server keeps ready: the episodes of a group; 0 for none."""
    starts: int = field(default=256, validator=validators.ge(1))
    """Creations that may stand in one server's queue at once, each on a connection; more wait here."""
