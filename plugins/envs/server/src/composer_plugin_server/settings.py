"""What the TOML of `composer-run envd` may say, a table for each class below.

plugins = ["local"]

[sandbox]
use = "local/namespaces"      # and the settings of that component

[server]
port = 7077
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from attrs import Factory, evolve, field, frozen
from attrs.validators import ge, gt, le

from composer_plugin_server.machine import Pressure


def _node_name(_owner: object, _attribute: object, name: str) -> None:
    """It stands in front of ids, which stand in URLs."""
    if name and not re.fullmatch(r"[a-z0-9]{1,16}", name):
        raise ValueError(f"a node's name is 1 to 16 small letters and digits: found {name!r}")


@frozen(kw_only=True)
class Server:
    """`[server]`: where it listens, who may ask, what it keeps."""

    host: str = "127.0.0.1"
    """Address to listen on; one that others can reach needs `certificate` and `key`, or `plain`."""
    port: int = field(default=7077, validator=[ge(0), le(65535)])
    """0 takes a free one, which is printed."""
    certificate: str = ""
    """PEM file of the certificate chain, for HTTPS."""
    key: str = ""
    """PEM file of the certificate's key."""
    plain: bool = False
    """Listen beyond this machine without HTTPS: behind a proxy or on a trusted wire only, the token is readable."""
    token_file: str = ""
    """File with the bearer token, mode 0600; made with a fresh one if it is missing. Default as for clients."""
    state: str = "~/.local/state/composer/envd"
    """Folder of the ledger; one server at a time."""
    node: str = field(default="", validator=_node_name)
    """Name in ids and figures; default, a random one that the state folder keeps."""
    nodes: tuple[str, ...] = ()
    """URLs of other nodes' servers that the page shows too; they are asked with this server's token."""
    body_bytes: int = field(default=256 << 20, validator=ge(1 << 20))
    """Largest body of a request, a workspace with all its files."""
    answers_bytes: int = field(default=64 << 20, validator=ge(0))
    """Memory for answers that are kept for clients which lost their connection."""
    answers_s: float = field(default=120.0, validator=ge(0))
    """How long an answer is kept."""
    grace_s: float = field(default=10.0, validator=ge(0))
    """What a client asked for is cancelled so long after its connection was lost."""
    reconcile_s: float = field(default=30.0, validator=gt(0))
    """Time between two comparisons of what should exist with what the provider knows."""


@frozen(kw_only=True)
class Admission:
    """`[admission]`: how much a node takes on."""

    sandboxes: int = field(default=0, validator=ge(0))
    """Live sandboxes at most; 0 is 64 for each core."""
    memory_bytes: int = field(default=0, validator=ge(0))
    """Memory that all live sandboxes may be counted with; 0 is four fifths of the machine's, or its control group's."""
    reserve: float = field(default=0.25, validator=[gt(0), le(1)])
    """Share of its memory limit that a sandbox is counted with: commands rarely peak together."""
    free_bytes: int = field(default=512 << 20, validator=ge(0))
    """Nothing starts while the machine has less memory available."""
    starts: int = field(default=0, validator=ge(0))
    """Sandboxes that are being made at once; 0 is two for each core."""
    queue: int = field(default=20_000, validator=ge(0))
    """Creations that may wait; more are refused at once."""
    wait_s: float = field(default=600.0, validator=ge(0))
    """Longest wait that a client may ask for."""
    memory_pressure: float = field(default=10.0, validator=[gt(0), le(100)])
    """Nothing starts while all tasks stood still for memory so many percent of the last 10 s (PSI "full")."""
    cpu_pressure: float = field(default=90.0, validator=[gt(0), le(100)])
    """One start at a time while a task waited for a core so many percent of the last 10 s (PSI "some")."""

    def on(self, machine: Pressure) -> Admission:
        """The same with what depends on the machine filled in."""
        return evolve(
            self,
            sandboxes=self.sandboxes or 64 * machine.cores,
            starts=self.starts or 2 * machine.cores,
            memory_bytes=self.memory_bytes or machine.total_bytes * 4 // 5,
        )


@frozen(kw_only=True)
class Pools:
    """`[pools]`: sandboxes made before they are asked for, as many as a client's group."""

    templates: int = field(default=4, validator=ge(0))
    """Templates that have a pool, the most recently used; 0 for no pools."""
    most: int = field(default=64, validator=ge(0))
    """Largest group that a client may have kept ready."""
    idle_s: float = field(default=120.0, validator=gt(0))
    """A pool that nobody took from for so long is emptied."""


@frozen(kw_only=True)
class Sandboxes:
    """`[sandbox]`: the provider that makes them."""

    use: str
    """Component id, such as "local/namespaces"."""
    settings: Mapping[str, Any] = Factory(dict)
    """The keys beside it: the component's own settings."""


@frozen(kw_only=True)
class Settings:
    """The whole file."""

    sandbox: Sandboxes
    """The provider."""
    plugins: tuple[str, ...] = ()
    """Plugins to load; exactly these."""
    server: Server = Server()
    admission: Admission = Admission()
    pools: Pools = Pools()
