"""What a sandbox backend needs and its author should not have to write.

Importing this package imports none of its modules (PEP 562), so that what lies in `agent` can be used, and sent to
where commands run, without anything of core.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_envkit.folders import FolderProvider, FolderSandbox
    from composer_envkit.networks import Network
    from composer_envkit.patience import Patience
    from composer_envkit.processes import Processes
    from composer_envkit.providers import Provider, check_workspace
    from composer_envkit.repositories import committed, packed
    from composer_envkit.walls import WalledSandbox
    from composer_envkit.workspaces import copy, lay, remove

__all__ = [
    "FolderProvider",
    "FolderSandbox",
    "Network",
    "Patience",
    "Processes",
    "Provider",
    "WalledSandbox",
    "check_workspace",
    "committed",
    "copy",
    "lay",
    "packed",
    "remove",
]

_HOME = {
    **dict.fromkeys(("FolderProvider", "FolderSandbox"), "folders"),
    **dict.fromkeys(("copy", "lay", "remove"), "workspaces"),
    "Network": "networks",
    "Patience": "patience",
    "Processes": "processes",
    **dict.fromkeys(("Provider", "check_workspace"), "providers"),
    **dict.fromkeys(("committed", "packed"), "repositories"),
    "WalledSandbox": "walls",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
