"""Composer's core: contracts and one loop. Everything that is public is named here or in a public module's `__all__`.

Importing this package imports none of its modules: a name is looked up where it is defined when it is first asked for
(PEP 562), so a command line that only says what it can do pays for none of the contracts. Nothing of core outside
`tensors` loads torch, ray, triton, docker, transformers or numpy; tests hold both.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_core.columns import Column
    from composer_core.errors import ComposerError, ToolError, boundary
    from composer_core.footprint import Footprint, ModelSize
    from composer_core.hookspecs import Problem, ProcessView, RunView, hookimpl
    from composer_core.protocols import BuildContext, ToolContext, ToolOutput
    from composer_core.records import (
        AlgorithmSpec,
        ContextSpec,
        ExecutorSpec,
        KernelSpec,
        ModelSpec,
        NoConfig,
        RendererSpec,
        RewardSpec,
        SamplerSpec,
        SandboxSpec,
        StoreSpec,
        TaskSpec,
        ToolSpec,
        TrackerSpec,
        TrainerSpec,
    )
    from composer_core.trees import File, Patch, Tree, TreeRef
    from composer_core.types import Score, Task, TaskView, Trace

API = 1
"""The contract's version; a hook module states the one it was written for as `COMPOSER_API`."""
__version__ = "0.1.0"

__all__ = [
    "API",
    "AlgorithmSpec",
    "BuildContext",
    "Column",
    "ComposerError",
    "ContextSpec",
    "ExecutorSpec",
    "File",
    "Footprint",
    "KernelSpec",
    "ModelSize",
    "ModelSpec",
    "NoConfig",
    "Patch",
    "Problem",
    "ProcessView",
    "RendererSpec",
    "RewardSpec",
    "RunView",
    "SamplerSpec",
    "SandboxSpec",
    "Score",
    "StoreSpec",
    "Task",
    "TaskSpec",
    "TaskView",
    "ToolContext",
    "ToolError",
    "ToolOutput",
    "ToolSpec",
    "Trace",
    "TrackerSpec",
    "TrainerSpec",
    "Tree",
    "TreeRef",
    "boundary",
    "hookimpl",
]

_HOME = {
    "Column": "columns",
    **dict.fromkeys(("ComposerError", "ToolError", "boundary"), "errors"),
    **dict.fromkeys(("Footprint", "ModelSize"), "footprint"),
    **dict.fromkeys(("Problem", "ProcessView", "RunView", "hookimpl"), "hookspecs"),
    **dict.fromkeys(("BuildContext", "ToolContext", "ToolOutput"), "protocols"),
    **dict.fromkeys(("File", "Patch", "Tree", "TreeRef"), "trees"),
    **dict.fromkeys(("Score", "Task", "TaskView", "Trace"), "types"),
}
"""Name -> the module that defines it; all others are records."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOME.get(name, 'records')}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
