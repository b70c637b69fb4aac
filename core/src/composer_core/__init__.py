"""Composer's core: contracts and one loop. Everything that is public is named here or in a public module's `__all__`.

Importing this package loads no torch, ray, triton, docker, transformers or numpy; a test holds that.
"""

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
