"""`check`: everything that can be found wrong before anything is built, and with probing, what a task set does not
have and a machine cannot do.

Settings that need something of another component name the capability; a record declares what its component may do, a
probe what it can do here. Both are errors when unmet: a setting is never ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import evolve

from composer_core.assembly import Assembly
from composer_core.capabilities import unknown
from composer_core.choices import SINGLE
from composer_core.config import PretrainStage, RlStage, RunConfig, SftStage
from composer_core.errors import ComposerError, ConfigError, SandboxError, boundary, did_you_mean
from composer_core.hookspecs import Problem
from composer_core.plugins import Plugins
from composer_core.problems import told
from composer_core.protocols import Describes, TaskSet
from composer_core.records import ToolSpec, resolve
from composer_core.schema import schema_of
from composer_core.scoring import excess_of_auxiliaries


def needs_of(config: RunConfig) -> list[tuple[str, str, str]]:
    """(kind, capability, the setting that needs it)."""
    needs = []
    rl = [choice.stage for choice in config.stages if isinstance(choice.stage, RlStage)]
    if rl:
        needs += [("samplers", "sampler.logprobs", "an rl stage"), ("samplers", "sampler.versions", "an rl stage")]
    if any(stage.max_staleness > 0 for stage in rl):
        needs.append(("samplers", "sampler.swaps", "max_staleness > 0"))
    if any(stage.router_replay for stage in rl):
        needs += [(f"{who}s", f"{who}.routes", "router_replay") for who in ("model", "sampler", "trainer")]
    if config.network.allow:
        needs.append(("sandboxes", "sandbox.networks", "network.allow"))
    if config.deterministic:
        needs.append(("samplers", "sampler.deterministic", "deterministic"))
        needs.append(("trainers", "trainer.deterministic", "deterministic"))
    return needs


def problems_of(assembly: Assembly, plugins: Plugins) -> list[Problem]:
    """All problems of a run; configuration that cannot even be structured raises ConfigError instead.

    The modules of chosen components are imported, torch with them where a component needs it: a run that could not
    import one would end where it builds it, which may be after hours.
    """
    config, unresolved = assembly.config, [*_unresolved(assembly)]
    return [
        *unresolved,
        *_capabilities(assembly),
        *_samplers(config),
        *([] if unresolved else _rewards(assembly)),  # which asks the functions themselves
        *_actions(assembly),
        *_moments(config),
        *_oversampling(config),
        *plugins.check(assembly.choices.view()),
    ]


def _unresolved(assembly: Assembly) -> Iterator[Problem]:
    for one in assembly.choices.chosen():
        for factory in one.entry.spec.factories():
            try:
                with boundary(one.entry.spec.kind, one.entry.id):
                    found = resolve(factory)
                    if isinstance(one.entry.spec, ToolSpec) and factory is one.entry.spec.function:
                        without = assembly.config.tools.without.get(one.entry.id, ())
                        schema_of(evolve(one.entry.spec, function=found), without)  # what a model could not be told
            except ComposerError as error:
                error.fields.setdefault("where", one.key)
                yield from told(error)


def _capabilities(assembly: Assembly) -> Iterator[Problem]:
    for kind, capability, why in needs_of(assembly.config):
        entry = assembly.choices.entry(kind)
        if entry and capability not in entry.spec.capabilities:
            yield Problem(
                where=f"{SINGLE[kind]}.use",
                message=f"{entry.id} does not offer {capability}, which {why} needs",
                fix=f"choose another component of kind {kind}",
            )
    for entry in assembly.registry:
        for name in unknown(entry.spec.capabilities):
            yield Problem(where=entry.id, message=f"declares an unknown capability {name!r}")


def _oversampling(config: RunConfig) -> Iterator[Problem]:
    for choice in config.stages if config.deterministic else ():
        if isinstance(choice.stage, RlStage) and choice.stage.oversample:
            message = "the groups that end last are dropped, so what is trained would depend on the machine's pace"
            where = f"stages.{choice.stage.name}.oversample"
            yield Problem(where=where, message=message, fix="set oversample = 0, or deterministic = false")


def _samplers(config: RunConfig) -> Iterator[Problem]:
    names = {"policy", *config.samplers}
    if "policy" in config.samplers:
        yield Problem(where="samplers.policy", message="'policy' names the sampler of the run itself")
    for choice in config.stages:
        if isinstance(choice.stage, SftStage) and choice.stage.sampler not in names:
            where = f"stages.{choice.stage.name}.sampler"
            yield Problem(where=where, message=f"no sampler {choice.stage.sampler!r}", fix="add it to [samplers]")
    used = {c.stage.sampler for c in config.stages if isinstance(c.stage, SftStage)}
    for set_ in config.evaluations:
        used.add(set_.sampler)
        if set_.sampler not in names:
            where = f"evaluations.{set_.name}.sampler"
            yield Problem(where=where, message=f"no sampler {set_.sampler!r}", fix="add it to [samplers]")
    for name in sorted(set(config.samplers) - used):
        yield Problem(where=f"samplers.{name}", message="no stage or evaluation uses this sampler", fix="remove it")


def _rewards(assembly: Assembly) -> Iterator[Problem]:
    rewards = assembly.get("rewards")
    outcomes = [reward for reward in rewards if reward.spec.outcome]
    graded = any(isinstance(choice.stage, RlStage) for choice in assembly.config.stages) or assembly.config.evaluations
    if graded and len(outcomes) != 1:
        yield Problem(
            where="rewards",
            message=f"{len(outcomes)} rewards decide the verdict; exactly one must",
            fix="choose one with outcome=True, such as hidden-tests/hidden-tests",
        )
    excess = excess_of_auxiliaries(rewards)
    if outcomes and excess >= 0:
        yield Problem(
            where="rewards",
            message=f"auxiliary rewards can outweigh the outcome by {abs(excess):.3g}",
            fix="lower their weights until the sum of |weight| x range is below the outcome's weight",
        )
    for reward in rewards:
        low, high = reward.spec.range
        if not (float("-inf") < low < high < float("inf")):
            yield Problem(where=reward.id, message=f"range {reward.spec.range} is not finite and increasing")


def _actions(assembly: Assembly) -> Iterator[Problem]:
    config = assembly.config
    if config.algorithm is None and any(isinstance(choice.stage, RlStage) for choice in config.stages):
        yield Problem(
            where="algorithm.use",
            message="an rl stage needs an algorithm, and the run has none",
            fix=f"choose one; {did_you_mean('', (entry.id for entry in assembly.registry.of('algorithms')))}",
        )
    acts = config.evaluations or any(not isinstance(choice.stage, PretrainStage) for choice in config.stages)
    if acts and not config.tools.use:
        yield Problem(
            where="tools.use",
            message="an agent without tools can change nothing and cannot finish",
            fix="list tools, one of them such as code/finish",
        )


def _moments(config: RunConfig) -> Iterator[Problem]:
    rl = [choice.stage for choice in config.stages if isinstance(choice.stage, RlStage)]
    for stage in rl:
        if stage.evaluate_every >= stage.steps:
            yield Problem(
                where=f"stages.{stage.name}.evaluate_every",
                message=f"is {stage.evaluate_every}, but the stage has {stage.steps} steps, so it would never come",
                fix='fewer than the steps; the end of the last stage is measured by evaluations with "after"',
            )
    looks = any(stage.evaluate_every for stage in rl)
    for set_ in config.evaluations:
        if "during" in set_.when and not looks:
            yield Problem(
                where=f"evaluations.{set_.name}.when",
                message='holds "during", but no rl stage has evaluate_every > 0, so it would never be measured',
                fix='set evaluate_every of the rl stage, or leave "during" out',
            )


def splits_among(tasks: TaskSet, asked: Sequence[str], where: str) -> Sequence[str]:
    """The splits that are asked for, or all where none is.

    Raises:
        ConfigError: the task set has no such split.
    """
    known = tasks.splits()
    for split in set(asked) - set(known):
        raise ConfigError(
            f"the task set has no split {split!r}", where=where, found=split, fix=did_you_mean(split, known)
        )
    return asked or tuple(known)


def _splits(config: RunConfig, tasks: TaskSet) -> Iterator[Problem]:
    """Tasks that are asked for and do not exist; a pretrain stage names texts instead, which are no tasks."""
    stages = [choice.stage for choice in config.stages if not isinstance(choice.stage, PretrainStage)]
    wanted = [(f"stages.{stage.name}", "split", stage.split, 1) for stage in stages]
    wanted += [(f"evaluations.{set_.name}", "tasks", set_.split, set_.tasks) for set_ in config.evaluations]
    known = tasks.splits()
    count = {split: len(tasks.tasks(split)) for split in {split for _, _, split, _ in wanted} & set(known)}
    for at, key, split, least in wanted:
        if split not in known:
            yield Problem(f"{at}.split", f"the task set has no split {split!r}", did_you_mean(split, known))
        elif count[split] < least:
            yield Problem(
                where=f"{at}.{key}",
                message=f"asks for {least} of split {split!r}, which has {count[split]}",
                fix="ask for fewer, or choose another split",
            )


async def probe(assembly: Assembly) -> list[Problem]:
    """Tasks that the built task set does not have, and what the chosen sandbox declares and cannot do here."""
    problems = [*_splits(assembly.config, assembly.get("tasks"))]
    entry = assembly.choices.entry("sandboxes")
    if entry is None:
        return problems
    try:
        found = await assembly.get("sandboxes").probe()
    except SandboxError as error:
        return [*problems, *(evolve(one, where=one.where or "sandbox.use") for one in told(error))]
    certain = frozenset() if getattr(entry.spec, "relays", False) else entry.spec.capabilities
    return problems + [
        Problem(where="sandbox.use", message=f"{entry.id} cannot offer {name} on this machine")
        for name in sorted(certain - found)
    ]


def described(assembly: Assembly) -> str:
    """What the probed sandbox says of itself, if it does."""
    entry = assembly.choices.entry("sandboxes")
    provider = assembly.get("sandboxes").provider if entry else None
    if not entry or not isinstance(provider, Describes):
        return ""
    with boundary("sandboxes", entry.id):
        return provider.describe()
