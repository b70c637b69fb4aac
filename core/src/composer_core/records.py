"""What a hook yields: one frozen record per component.

A record is data about a component, cheap to make and safe to list. Its factory is "module:attr", resolved only when
the component is chosen, or the object itself where its module is thin (stdlib, attrs and composer_core only).
`config` is an attrs class of the component's settings; unknown keys in the run file are errors. `capabilities` is what
the component *may* offer (names of `capabilities.CAPABILITIES`). `footprint` tells `check` what it takes.

Factories are called as `factory(config, build)`, where `build` is a `BuildContext`; the object must satisfy the
Protocol of its kind in `protocols`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, ClassVar

from attrs import field, fields, fields_dict, frozen

from composer_core.errors import PluginError, did_you_mean, pip_fix
from composer_core.footprint import Footprint

__all__ = [
    "SPECS",
    "AlgorithmSpec",
    "ContextSpec",
    "ExecutorSpec",
    "Factory",
    "KernelSpec",
    "ModelSpec",
    "NoConfig",
    "RendererSpec",
    "RewardSpec",
    "SamplerSpec",
    "SandboxSpec",
    "Spec",
    "StoreSpec",
    "TaskSpec",
    "ToolSpec",
    "TrackerSpec",
    "TrainerSpec",
    "resolve",
]

Factory = str | Callable[..., Any]


@frozen
class NoConfig:
    """Settings of a component that has none."""


def resolve(factory: Factory) -> Any:
    """The object behind "module:attr", or the object itself.

    Raises:
        PluginError: the text is not of that form or names nothing, or a module is not installed. Other errors of the
            imported module pass through.
    """
    if not isinstance(factory, str):
        return factory
    module, _, attribute = factory.partition(":")
    if not module or not attribute:
        raise PluginError("a factory is 'module:attr' or an object", found=repr(factory))
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        fix = pip_fix(error, module) or "correct 'module:attr' in its record, or reinstall its distribution"
        raise PluginError(f"{factory!r} cannot be imported", found=str(error), fix=fix) from error
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise PluginError(f"factory {factory!r} does not exist", expected=f"{name!r} in {module}")
        found = getattr(found, name)
    return found


def _lower_names(_instance: object, attribute: Any, value: str) -> None:
    if not value or not value.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise ValueError(f"{attribute.name} must be letters, digits, '-', '_' or '.', found {value!r}")


def _setting(spec: Spec, attribute: Any, name: str) -> None:
    if name and name not in fields_dict(spec.config):
        raise ValueError(f"{attribute.name} names no setting of {spec.config.__name__}: {name!r}")


def _one_of(*options: str) -> Callable[[object, Any, str], None]:
    def check(_instance: object, attribute: Any, value: str) -> None:
        if value not in options:
            raise ValueError(
                f"{attribute.name} is one of {', '.join(options)}, found {value!r}: {did_you_mean(str(value), options)}"
            )

    return check


def _of_an_episode(spec: RewardSpec, _attribute: object, outcome: bool) -> None:
    if outcome and spec.scope == "group":
        raise ValueError(
            'outcome=True needs scope="episode": a verdict is about one episode, before its group has ended'
        )


def _names(values: Iterable[str]) -> frozenset[str]:
    return frozenset(values)


@frozen(kw_only=True)
class Spec:
    """What all records share; abstract, hooks yield the records below."""

    kind: ClassVar[str] = ""
    name: str = field(validator=_lower_names)
    summary: str = ""
    """One line for `composer-run plugins`."""
    config: type = NoConfig
    capabilities: frozenset[str] = field(default=frozenset(), converter=_names)
    footprint: Factory | Footprint | None = None
    """What it takes in memory and files, or a thin function of its settings that tells; see `footprint`."""

    def factories(self) -> list[Any]:
        """The values of all fields that name an object or are one."""
        return [getattr(self, own.name) for own in fields(type(self)) if str(own.type).startswith("Factory")]


@frozen(kw_only=True)
class ToolSpec(Spec):
    """A typed function the model may call; the schema is made of its signature and docstring."""

    kind: ClassVar[str] = "tools"
    function: Factory
    effect: str = field(default="read", validator=_one_of("read", "write", "exec"))
    """read, write or exec. Consecutive reads of a turn run concurrently; writes and execs are barriers."""
    needs: tuple[str, ...] = ()
    """Commands the sandbox's template must offer, such as "rg"; installed by prepare or refused."""
    ends: bool = False
    """A call of this tool ends the episode with Stop.FINISHED."""

    @classmethod
    def of(cls, function: Callable[..., Any], **fields: Any) -> ToolSpec:
        """A record for `function`, named after it, its summary the first line of its docstring."""
        summary = (function.__doc__ or "").strip().partition("\n")[0]
        return cls(**{"name": function.__name__, "summary": summary, "function": function, **fields})


@frozen(kw_only=True)
class SandboxSpec(Spec):
    """A provider of sandboxes (`protocols.SandboxProvider`)."""

    kind: ClassVar[str] = "sandboxes"
    factory: Factory
    isolation: str = field(default="none", validator=_one_of("none", "namespaces", "container", "vm"))
    """none, namespaces, container or vm."""
    relays: bool = False
    """It passes on what other providers offer: any of `capabilities`, none for certain; a run takes what is found."""


@frozen(kw_only=True)
class SamplerSpec(Spec):
    """Continues token ids (`protocols.Sampler`)."""

    kind: ClassVar[str] = "samplers"
    factory: Factory


@frozen(kw_only=True)
class RewardSpec(Spec):
    """A typed function whose parameters are injected by name: trace, task, patch, group, grading, config."""

    kind: ClassVar[str] = "rewards"
    function: Factory
    scope: str = field(default="episode", validator=_one_of("episode", "group"))
    """episode, or group: then it is called once with `group`, a tuple of traces, and returns a score for each."""
    range: tuple[float, float] = (0.0, 1.0)
    """Finite bounds; values outside are clipped and counted."""
    weight: float = 1.0
    """Factor of the value where the run file gives none; small for an auxiliary, to leave room for others."""
    pure: bool = False
    """The score depends on task and patch alone; each pair is scored once in a run."""
    outcome: bool = field(default=False, validator=_of_an_episode)
    """Decides the verdict: value >= 1 is solved. Exactly one reward of a run does; its scope is episode."""


@frozen(kw_only=True)
class KernelSpec(Spec):
    """An implementation of a kernel op (`composer_core.tensors.kernels`)."""

    kind: ClassVar[str] = "kernels"
    op: str
    factory: Factory
    reference: Factory
    """Plain torch implementation of the same op, against which `tolerance` is tested."""
    format: str = "fp32"
    tolerance: float = 0.0
    """Largest relative error of the output against the reference; 0 means equal bytes."""


@frozen(kw_only=True)
class TaskSpec(Spec):
    """A source of tasks (`protocols.TaskSet`)."""

    kind: ClassVar[str] = "tasks"
    factory: Factory


@frozen(kw_only=True)
class ModelSpec(Spec):
    """A policy network and its tokenizer: two factories, so workers can have the second without torch."""

    kind: ClassVar[str] = "models"
    tokenizer: Factory
    policy: Factory
    export: Factory | None = None
    """`export(config, build, weights, folder)`: write published weights in the model's own layout."""


@frozen(kw_only=True)
class RendererSpec(Spec):
    """Turns messages, tool schemas and results into ids, and sampled ids into calls (`protocols.Renderer`)."""

    kind: ClassVar[str] = "renderers"
    factory: Factory
    special_tokens: tuple[str, ...] = ()
    """Control tags that the tokenizer must hold as single tokens."""


@frozen(kw_only=True)
class AlgorithmSpec(Spec):
    """`advantage(group, config)` without torch and `objective(inputs, config)` in torch; see RL.md section 1."""

    kind: ClassVar[str] = "algorithms"
    advantage: Factory
    objective: Factory
    needs: frozenset[str] = field(default=frozenset({"behavior"}), converter=_names)
    """Which of behavior, old, ref the objective reads; the trainer computes no others."""
    clips: str | None = None
    """"behavior" or "old": which ratio a clip acts on, so that `check` can refuse one that never binds."""


@frozen(kw_only=True)
class TrainerSpec(Spec):
    """Turns batches into weights (`protocols.Trainer`)."""

    kind: ClassVar[str] = "trainers"
    factory: Factory
    stage_config: type = NoConfig
    """Settings a stage table may hold for this trainer (learning rate, batch sizes, ...)."""


@frozen(kw_only=True)
class ExecutorSpec(Spec):
    """Places components and runs episodes (`protocols.Executor`)."""

    kind: ClassVar[str] = "executors"
    factory: Factory
    in_flight: str = field(default="", validator=_setting)
    """Its setting that says how many episodes run at once at most; `check` shows it. "" if none says so."""


@frozen(kw_only=True)
class ContextSpec(Spec):
    """Decides before each turn how an episode goes on (`protocols.Context`)."""

    kind: ClassVar[str] = "contexts"
    factory: Factory


@frozen(kw_only=True)
class TrackerSpec(Spec):
    """Writes events down (`protocols.Tracker`)."""

    kind: ClassVar[str] = "trackers"
    factory: Factory


@frozen(kw_only=True)
class StoreSpec(Spec):
    """Holds blobs: traces, checkpoints, weights (`protocols.Store`)."""

    kind: ClassVar[str] = "stores"
    factory: Factory


SPECS: dict[str, type[Spec]] = {
    spec.kind: spec
    for spec in (
        ToolSpec,
        SandboxSpec,
        SamplerSpec,
        RewardSpec,
        KernelSpec,
        TaskSpec,
        ModelSpec,
        RendererSpec,
        AlgorithmSpec,
        TrainerSpec,
        ExecutorSpec,
        ContextSpec,
        TrackerSpec,
        StoreSpec,
    )
}
