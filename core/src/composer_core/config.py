"""The run file: TOML, `--set key.path=value`, and one error for every key that is unknown or would have no effect.

A component's table is `use = "plugin/name"` beside the settings of that component's config class; the class is known
only once its plugin is loaded, so `load` reads the shape that core knows and `settings_for` the rest. Defaults live in
the classes, and the resolved file that a run writes holds all of them. Config data knows nothing of serialization:
cattrs structures at this edge, with extra keys forbidden.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import GenericAlias
from typing import Any, TypeVar, get_args

import attrs
import cattrs
from attrs import Factory, field, frozen
from attrs.validators import ge, gt, in_, le, optional
from cattrs.gen import make_dict_structure_fn

from composer_core.errors import ConfigError, did_you_mean
from composer_core.hookspecs import Problem
from composer_core.hosts import Rule
from composer_core.problems import refuse
from composer_core.types import Limits

__all__ = ["InProcessConfig"]

T = TypeVar("T")


@frozen
class Component:
    """A chosen component: `use`, and the keys beside it as they stand in the file."""

    use: str
    """Component id, "plugin/name", or a bare name where it is unique."""
    settings: Mapping[str, Any] = Factory(dict)


@frozen
class RewardChoice:
    use: str
    """Component id, "plugin/name", or a bare name where it is unique."""
    weight: float | None = None
    """Factor of the clipped value in the episode's reward, the record's own if not set; the outcome's is its gap."""
    settings: Mapping[str, Any] = Factory(dict)
    """The keys beside these: the reward's own settings."""


@frozen
class ToolsConfig:
    use: tuple[str, ...] = ()
    """Tool ids, in the order the model is told about them."""
    settings: Mapping[str, Mapping[str, Any]] = Factory(dict)
    """Tool id -> its settings: `[tools.settings."code/read_file"]`."""
    without: Mapping[str, tuple[str, ...]] = Factory(dict)
    """Tool id -> optional arguments that this run does not offer: the model is not told of them, nor may give them."""
    strict: bool = False
    """Refuse arguments that only a guess makes fit (Python literals, padded numbers), and calls that were repaired."""


def _file_name(_owner: object, attribute: Any, name: str) -> None:
    """Runs, stages and evaluations name files, so no name may lead out of the run folder."""
    if not re.fullmatch(r"[\w-][\w.-]{0,99}", name):
        rule = "1 to 100 letters, digits, '-', '_' and '.', of which '.' is not the first"
        raise ValueError(f"{attribute.name!r} must be {rule}: found {name!r}")


@frozen
class PretrainStage:
    """Next-token training on packed windows of text."""

    name: str = field(validator=_file_name)
    """Unique among the stages; the kind when left out."""
    steps: int = field(validator=gt(0))
    """Optimizer steps."""
    source: str = field(default="texts", validator=in_(("texts", "copying")))
    """texts: the task set's documents; copying: random ids, repeated, until induction forms."""
    split: str = "train"
    """Name given to `TaskSet.texts`."""
    copying_share: float = field(default=0.0, validator=[ge(0), le(1)])
    """Share of each batch's windows that are the copying exercise, so that later text does not undo it."""
    window_tokens: int = field(default=256, validator=gt(1))
    """Tokens of one window."""
    batch_windows: int = field(default=16, validator=gt(0))
    """Windows of one step."""
    kind: str = "pretrain"
    """Always pretrain."""


@frozen
class SftStage:
    """Imitation of episodes that another sampler rolls out in the same loop; loss on that sampler's tokens only."""

    name: str = field(validator=_file_name)
    """Unique among the stages; the kind when left out."""
    steps: int = field(validator=gt(0))
    """Optimizer steps; the demonstrations are gone through epoch by epoch."""
    sampler: str
    """A key of [samplers], such as a scripted demonstrator."""
    episodes: int = field(default=1024, validator=gt(0))
    """Demonstrations rolled out, over the tasks of the split in order."""
    batch_episodes: int = field(default=32, validator=gt(0))
    """Demonstrations of one step."""
    split: str = "train"
    """Whose tasks are demonstrated."""
    keep: str = field(default="all", validator=in_(("all", "solved")))
    """Which demonstrations are trained on."""
    kind: str = "sft"
    """Always sft."""


@frozen
class RlStage:
    """Reinforcement learning on groups of episodes."""

    name: str = field(validator=_file_name)
    """Unique among the stages; the kind when left out."""
    steps: int = field(validator=gt(0))
    """Optimizer steps; each makes one new version of the weights."""
    groups_per_step: int = field(default=8, validator=gt(0))
    """Groups that one step trains on."""
    group_size: int = field(default=8, validator=ge(2))
    """Episodes of one group, all of the same task."""
    split: str = "train"
    """Whose tasks are attempted, in an order shuffled epoch by epoch."""
    temperature: float = field(default=1.0, validator=gt(0))
    """Of sampling; log-probabilities are of the distribution sampled from."""
    max_staleness: int = field(default=0, validator=ge(0))
    """Versions between the trainer's and the oldest trained token's; 0 is synchronous."""
    staleness: str = field(default="wait", validator=in_(("wait", "drop")))
    """wait: the trainer waits rather than exceed it; drop: groups that are too old are dropped and counted."""
    min_valid: int | None = None
    """Valid members a group needs to be trained; default all, never under 2."""
    refills: int = field(default=2, validator=ge(0))
    """How often one slot is issued again after a void."""
    max_losses: int = field(default=8, validator=ge(0))
    """How often one slot is issued again because a process under it vanished; from then on that is a void, "lost"."""
    oversample: int = field(default=0, validator=ge(0))
    """Groups in flight beyond what staleness allows; a step drops up to so many slow ones instead of waiting for them.
    That favors short episodes and easy tasks; not in deterministic mode."""
    refill_flat_groups: bool = False
    """Replace groups of equal rewards by fresh ones instead of training steps that are partly empty."""
    router_replay: bool = False
    """Record which experts the sampler chose for every token, and train over the same ones; a mixture needs it."""
    max_voids_in_a_row: int = field(default=64, validator=gt(0))
    """This many voids with one cause, without a valid episode between them, stop the run."""
    stall_s: float = field(default=3600.0, validator=ge(0))
    """Seconds without a token, an episode or a step after which stacks and ledger are written down; 0 is never."""
    on_stall: str = field(default="stop", validator=in_(("stop", "report")))
    """stop: the run ends and names what it waited for, and can be resumed; report: it is told, and the run goes on."""
    evaluate_every: int = field(default=0, validator=ge(0))
    """Steps between evaluations of the sets whose `when` holds "during"; 0 is never."""
    kind: str = "rl"
    """Always rl."""


STAGES: dict[str, type] = {"pretrain": PretrainStage, "sft": SftStage, "rl": RlStage}
Stage = PretrainStage | SftStage | RlStage


@frozen
class StageChoice:
    """A stage: what core reads of its table, and the trainer's settings beside it."""

    stage: Stage
    settings: Mapping[str, Any] = Factory(dict)


def _moments(_set: object, _attribute: object, when: Sequence[str]) -> None:
    for word in set(when) - {"before", "during", "after"}:
        raise ValueError(f"'when' holds {word!r}: {did_you_mean(word, ('before', 'during', 'after'))}")
    if not when:
        raise ValueError("'when' is empty, so this is never measured; it holds some of before, during, after")


@frozen
class EvaluationSet:
    """One evaluation: tasks, attempts, how actions are drawn, and when it is run."""

    name: str = field(validator=_file_name)
    """main, greedy, best_of_8, new_function, blank and guess also fill summary.json's keys of that name."""
    split: str
    """Whose tasks are attempted, in order."""
    tasks: int = field(default=128, validator=gt(0))
    """How many tasks of the split."""
    attempts: int = field(default=4, validator=gt(0))
    """Attempts of each task."""
    temperature: float = field(default=1.0, validator=ge(0))
    """Of sampling; 0 is greedy."""
    sampler: str = "policy"
    """policy, or a key of [samplers]."""
    observations: str = field(default="full", validator=in_(("full", "blank")))
    """full, or blank: results of tools are replaced by blanks, a control."""
    when: tuple[str, ...] = field(default=("before", "after"), validator=_moments)
    """before (the first rl stage), during (every `evaluate_every` steps), after (the last stage)."""

    @property
    def conditions(self) -> str:
        """Names how an attempt goes: two sets of the same conditions ask for the same attempts of a task."""
        blank = "-blank" if self.observations == "blank" else ""
        return f"{self.sampler}-t{self.temperature!r}{blank}"


@frozen
class InProcessConfig:
    """Settings of `core/inprocess`."""

    max_concurrent: int = field(default=128, validator=gt(0))
    """Episodes in flight at once."""


@frozen
class CheckpointConfig:
    every_steps: int = field(default=1, validator=gt(0))
    """RL steps between commits; tokens of versions that were never committed are refused on resume."""
    supervised_every_steps: int = field(default=50, validator=gt(0))
    """The same for pretrain and sft stages."""
    keep: int = field(default=2, validator=ge(1))
    """Commits kept besides the best."""


@frozen
class SandboxLimits:
    """Caps of every sandbox; see protocols.TemplateSpec."""

    memory_bytes: int = field(default=512 << 20, validator=gt(0))
    """Memory that the commands of a sandbox may take."""
    processes: int = field(default=64, validator=gt(0))
    """Processes and threads at once."""
    file_bytes: int = field(default=16 << 20, validator=gt(0))
    """Largest file that may be written, and read whole."""
    disk_bytes: int = field(default=64 << 20, validator=gt(0))
    """Bytes that may be written in all."""


def _hosts(_network: object, _attribute: object, allow: Sequence[str]) -> None:
    for text in allow:
        Rule.of(text)


@frozen
class NetworkConfig:
    """What the sandboxes of episodes may reach; those that grade reach nothing."""

    allow: tuple[str, ...] = field(default=(), validator=_hosts)
    """Hosts: "name", "*.suffix" or an address, with ":port" or for all ports; see protocols.Networks. Default, none."""


@frozen
class RunConfig:
    """A run file with every default filled in."""

    name: str = field(validator=_file_name)
    """Names the run folder: runs/NAME, unless --run-dir says otherwise."""
    tasks: Component
    """The task set."""
    model: Component
    """The policy network and its tokenizer."""
    renderer: Component
    """Turns messages, tools and results into token ids."""
    sampler: Component
    """The policy's sampler."""
    trainer: Component
    """Turns batches into weights."""
    sandbox: Component
    """Where commands run."""
    seed: int = 0
    """Of everything that is drawn: noise, order of tasks, first weights."""
    deterministic: bool = False
    """Identical bytes, run to run, interrupted or not (RL.md section 5); slower."""
    plugins: tuple[str, ...] = ()
    """Plugins to load, in this order; exactly these."""
    algorithm: Component | None = None
    """Advantage and objective; rl stages need one."""
    executor: Component = Component("core/inprocess")
    """Places components and runs episodes."""
    context: Component = Component("core/plain")
    """Decides before each turn how an episode goes on."""
    store: Component = Component("core/folder")
    """Holds traces."""
    tools: ToolsConfig = ToolsConfig()
    """What the model may call."""
    rewards: tuple[RewardChoice, ...] = ()
    """What an episode is worth; exactly one decides the verdict."""
    trackers: tuple[Component, ...] = (Component("core/jsonl"), Component("core/console"))
    """Who writes events down."""
    samplers: Mapping[str, Component] = Factory(dict)
    """Further samplers by name: demonstrators and controls."""
    limits: Mapping[str, Any] = Factory(dict)
    """Overrides of each task's limits."""
    sandbox_limits: SandboxLimits = SandboxLimits()
    """Caps of every sandbox."""
    network: NetworkConfig = NetworkConfig()
    """What commands of an episode may reach."""
    stages: tuple[StageChoice, ...] = ()
    """What is trained, in order."""
    evaluations: tuple[EvaluationSet, ...] = ()
    """What is measured, and when."""
    checkpoints: CheckpointConfig = CheckpointConfig()
    """How often the run commits, and what it keeps."""
    threads: int | None = field(default=None, validator=optional(gt(0)))
    """Compute threads of the trainer; default one for each core. Samplers have settings of their own."""


def load(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run file and apply `key.path=value` overrides.

    Raises:
        ConfigError: the file is missing or no TOML, a key is unknown, or a value has the wrong type.
    """
    return structure(read(path, overrides), str(path))


def read(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The file's tables with the overrides applied."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("the run file cannot be read", where=str(path), found=error.strerror) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        fix = "see https://toml.io for the syntax"
        raise ConfigError("the run file is no TOML", where=str(path), found=str(error), fix=fix) from error
    for text in overrides:
        override(data, text)
    return data


def override(data: dict[str, Any], text: str) -> None:
    """Apply one `a.b[0].c=value`; the value is TOML, or else a plain string."""
    path, sign, raw = text.partition("=")
    parts = re.findall(r'"([^"]*)"|([^.\[\]"]+)|\[(\d+)\]', path.strip())
    if not sign or not parts:
        raise ConfigError("--set takes key.path=value", where="--set", found=text)
    *above, last = [int(index) if index else quoted or plain for quoted, plain, index in parts]
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw
    target: Any = data
    for key in above:
        place = _place(target, key, text)
        target = target.setdefault(place, {}) if isinstance(target, dict) else target[place]
    target[_place(target, last, text)] = value


def _place(target: Any, key: str | int, text: str) -> Any:
    """The key or index of `target` that `key` means: [[stages]] have names, [[rewards]] those of their components."""
    if isinstance(target, dict) and isinstance(key, str):
        return key
    if not isinstance(target, list):
        raise ConfigError(f"{key!r} is below a value that is no table", where="--set", found=text)
    places: dict[str | int, int] = {number: number for number in range(len(target))}
    for number, entry in enumerate(target):
        for name in _names(entry) if isinstance(entry, dict) else ():
            places.setdefault(name, number)
    if key not in places:
        known = did_you_mean(str(key), map(str, places))
        raise ConfigError(f"there is no entry {key!r} to set", where="--set", found=text, fix=known)
    return places[key]


def _names(entry: Mapping[str, Any]) -> list[str]:
    use = str(entry.get("use", ""))
    return [name for name in (use, use.partition("/")[2], str(entry.get("name", entry.get("kind", "")))) if name]


def structure(data: Mapping[str, Any], where: str = "run") -> RunConfig:
    """Tables to `RunConfig`.

    Raises:
        ConfigError: something does not fit; all of it in one message.
    """
    return _structure(data, RunConfig, "", where)


def restructure(data: Mapping[str, Any], where: Path) -> RunConfig:
    """A resolved config.json back to a RunConfig."""
    clean = {key: value for key, value in data.items() if value is not None}
    clean["stages"] = [{k: v for k, v in stage.items() if v is not None} for stage in data["stages"]]
    return structure(clean, str(where))


def sound(data: Mapping[str, Any]) -> tuple[RunConfig | None, list[Problem]]:
    """The configuration without the tables that do not fit, for whoever looks at the others, and what does not fit.

    None where no run is left, or one without its plugins.
    """
    try:
        return _CONVERTER.structure(data, RunConfig), []
    except MISFITS as error:
        problems = _misfits(error, "")
    kept = {a.name for a in attrs.fields(RunConfig)} & data.keys() - {_TABLE.split(one.where)[0] for one in problems}
    with suppress(*MISFITS):
        if "plugins" in kept:
            return _CONVERTER.structure({key: data[key] for key in kept}, RunConfig), problems
    return None, problems


def settings_for(cls: type[T], settings: Mapping[str, Any], where: str) -> T:
    """A component's settings as its config class.

    Raises:
        ConfigError: a key is unknown to the component (it would have no effect) or a value does not fit.
    """
    return _structure(settings, cls, where, where)


def limits_for(limits: Limits, overrides: Mapping[str, Any]) -> Limits:
    """A task's limits under the run's overrides."""
    return settings_for(Limits, {**attrs.asdict(limits), **overrides}, "limits")


def to_data(value: Any) -> Any:
    """Plain data of a config, for the resolved file; a component's table is flat again."""
    if isinstance(value, StageChoice):
        return {**to_data(value.stage), **to_data(value.settings)}
    if isinstance(value, Component | RewardChoice):
        weight = getattr(value, "weight", None)
        extra = {} if weight is None else {"weight": weight}
        return {"use": value.use, **extra, **to_data(value.settings)}
    if attrs.has(type(value)):
        return {a.name: to_data(getattr(value, a.name)) for a in attrs.fields(type(value))}
    if isinstance(value, Mapping):
        return {str(key): to_data(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_data(entry) for entry in value]
    return value


# --- structuring ----------------------------------------------------------------------------------------------


MISFITS = (cattrs.BaseValidationError, ValueError, TypeError, KeyError)
_TABLE = re.compile(r"[.\[]")


def _structure(data: Mapping[str, Any], cls: type[T], at: str, where: str) -> T:
    try:
        return _CONVERTER.structure(data, cls)
    except MISFITS as error:
        refuse(_misfits(error, at), where, ConfigError)
        raise


def _misfits(error: Exception, at: str) -> list[Problem]:
    """Everything that does not fit, with its place below `at`."""
    lines = (line.rpartition(" @ ") for line in cattrs.transform_error(error, at, _explain))
    return [Problem(place.removeprefix("."), message) for message, _, place in lines]


def _explain(error: BaseException, hint: type | None) -> str:
    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        known = [a.name for a in attrs.fields(error.cl)]
        return "; ".join(f"unknown key {key}: {did_you_mean(key, known)}" for key in sorted(error.extra_fields))
    if isinstance(error, KeyError):
        return f"required key {error} is missing"
    if isinstance(error, ConfigError):
        return error.message
    if type(error) is ValueError and error.args:  # a validator of attrs gives its text, then what it looked at
        return str(error.args[0])
    return str(error) if isinstance(error, ValueError | TypeError) else cattrs.v.format_exception(error, hint)


def _strict(cls: type) -> Any:
    return make_dict_structure_fn(cls, _CONVERTER, _cattrs_forbid_extra_keys=True)


def _component(data: Any, cls: type) -> Any:
    if isinstance(data, str):
        data = {"use": data}
    if not isinstance(data, Mapping) or not isinstance(data.get("use"), str):
        raise ConfigError(f'a component is chosen by use = "plugin/name", found {data!r}')
    own = {a.name for a in attrs.fields(cls)} - {"settings"}
    settings = {key: value for key, value in data.items() if key not in own}
    return cls(**{key: data[key] for key in own if key in data}, settings=settings)


def _stage(data: Any, _cls: type) -> StageChoice:
    if not isinstance(data, Mapping) or data.get("kind") not in STAGES:
        kind = data.get("kind") if isinstance(data, Mapping) else data
        raise ConfigError(f"a stage's kind is one of {', '.join(STAGES)}, found {kind!r}")
    cls: type[Any] = STAGES[data["kind"]]
    own = {a.name for a in attrs.fields(cls)}
    missing = [a.name for a in attrs.fields(cls) if a.default is attrs.NOTHING and a.name not in {"name", *data}]
    near = {key: hint for key in sorted(set(data) - own) if (hint := did_you_mean(key, missing)).startswith("did")}
    if near:
        hints = "; ".join(f"{key}: {hint}" for key, hint in near.items())
        raise ConfigError(f"required key {', '.join(map(repr, missing))} is missing; {hints}")
    stage = _CONVERTER.structure({"name": data["kind"], **{k: v for k, v in data.items() if k in own}}, cls)
    return StageChoice(stage, {key: value for key, value in data.items() if key not in own})


def _plain(data: Any, cls: type) -> Any:
    """No silent casts: a string is not a number, and 3 is a float but "3" is not."""
    if cls is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if type(data) is not cls:
        raise TypeError(f"expected {cls.__name__}, found {data!r}")
    return data


def _list(data: Any, cls: Any) -> Any:
    """A text is no list of its letters."""
    if not isinstance(data, list | tuple):
        raise TypeError(f"expected a list, found {data!r}")
    items: Any = GenericAlias(list, get_args(cls)[0])
    return tuple(_CONVERTER.structure(data, items))


def _make_converter() -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=True)
    for plain in (int, float, str, bool):
        converter.register_structure_hook(plain, _plain)
    return converter


_CONVERTER = _make_converter()
_CONVERTER.register_structure_hook(Component, _component)
_CONVERTER.register_structure_hook(RewardChoice, _component)
_CONVERTER.register_structure_hook(StageChoice, _stage)
_CONVERTER.register_structure_hook_func(lambda cls: get_args(cls)[1:] == (...,), _list)
_CONVERTER.register_structure_hook_factory(
    lambda cls: attrs.has(cls) and cls not in (Component, RewardChoice, StageChoice), _strict
)
