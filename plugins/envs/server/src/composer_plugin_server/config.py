"""Settings of `server/remote`, the client's side."""

from __future__ import annotations

from attrs import field, frozen, validators

from composer_core.capabilities import CAPABILITIES
from composer_core.errors import did_you_mean

TOKEN_VARIABLE = "COMPOSER_ENVD_TOKEN"
"""Holds the bearer token where no file is named."""
TOKEN_FILE = "~/.config/composer/envd.token"
"""Where the token is looked for, and where a server writes one, if nothing else is said."""


WALLS = ("isolates", "limits.memory", "limits.processes", "limits.file_size", "limits.disk")


def _capabilities(_owner: object, _attribute: object, names: tuple[str, ...]) -> None:
    known = [name.removeprefix("sandbox.") for name in CAPABILITIES if name.startswith("sandbox.")]
    for name in names:
        if name not in known:
            raise ValueError(f"no capability of sandboxes is called {name!r}: {did_you_mean(name, known)}")


@frozen(kw_only=True)
class RemoteConfig:
    """Settings of `server/remote`."""

    urls: tuple[str, ...] = ("http://127.0.0.1:7077",)
    """Servers that sandboxes are asked of, one for each node; the less loaded of two is asked first."""
    token_file: str = ""
    """File with the bearer token, readable by its owner alone; default, the variable COMPOSER_ENVD_TOKEN, else
    ~/.config/composer/envd.token."""
    needs: tuple[str, ...] = field(default=WALLS, validator=_capabilities)
    """Capabilities that every server must offer, or the run is refused; [] if its commands may do anything there."""
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
