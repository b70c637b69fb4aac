"""What a sandbox backend needs and its author should not have to write."""

from composer_envkit.folders import FolderProvider, FolderSandbox
from composer_envkit.processes import Processes
from composer_envkit.providers import Provider
from composer_envkit.workspaces import copy, lay, remove

__all__ = ["FolderProvider", "FolderSandbox", "Processes", "Provider", "copy", "lay", "remove"]
