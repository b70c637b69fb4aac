"""Hook module of `policy`: the trainer, its algorithms, and what `check` refuses of their settings.

Thin: nothing here or in `config` and `algorithms` imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from composer_core import AlgorithmSpec, Problem, RunView, TrainerSpec, hookimpl
from composer_plugin_policy import algorithms
from composer_plugin_policy.config import (
    RL_KEYS,
    CispoConfig,
    DapoConfig,
    GrpoConfig,
    GspoConfig,
    PolicyGradientConfig,
    PolicyTrainerConfig,
    PpoClipConfig,
    StageSettings,
)

COMPOSER_API = 1
TRAINER = "policy/policy"
OBJECTIVE = "composer_plugin_policy.objectives:pg_tis"
NEEDS = frozenset({"behavior", "old"})


@hookimpl
def composer_trainers() -> Iterator[TrainerSpec]:
    """The trainer."""
    yield TrainerSpec(
        name="policy",
        summary="pretrain, sft and rl on accelerate; one update for each batch",
        factory="composer_plugin_policy.trainer:PolicyTrainer",
        config=PolicyTrainerConfig,
        stage_config=StageSettings,
        footprint="composer_plugin_policy.footprint:footprint",
        capabilities={"trainer.deterministic", "trainer.routes", "trainer.reference", "trainer.parity"},
    )


@hookimpl
def composer_algorithms() -> Iterator[AlgorithmSpec]:
    """Three advantages with one objective, and four that clip."""
    yield AlgorithmSpec(
        name="dr_grpo",
        summary="reward minus the group's mean; truncated importance sampling",
        advantage=algorithms.dr_grpo,
        objective=OBJECTIVE,
        needs=NEEDS,
        config=PolicyGradientConfig,
    )
    yield AlgorithmSpec(
        name="grpo",
        summary="dr_grpo divided by the group's deviation",
        advantage=algorithms.grpo,
        objective=OBJECTIVE,
        needs=NEEDS,
        config=GrpoConfig,
    )
    yield AlgorithmSpec(
        name="rloo",
        summary="reward minus the mean of the other members",
        advantage=algorithms.rloo,
        objective=OBJECTIVE,
        needs=NEEDS,
        config=PolicyGradientConfig,
    )
    yield from _clipped()


def _clipped() -> Iterator[AlgorithmSpec]:
    """Those that clip the ratio to the sampler; see `clipped`."""
    for name, summary, advantage, objective, config in (
        ("ppo_clip", "PPO's clipped surrogate over centered rewards", algorithms.dr_grpo, "ppo", PpoClipConfig),
        ("dapo", "grpo's advantage, clipped less tightly above than below", algorithms.grpo, "ppo", DapoConfig),
        ("gspo", "grpo's advantage, clipped by the ratios of whole sequences", algorithms.grpo, "gspo", GspoConfig),
        ("cispo", "grpo's advantage, its weight clipped and every token kept", algorithms.grpo, "cispo", CispoConfig),
    ):
        yield AlgorithmSpec(
            name=name,
            summary=summary,
            advantage=advantage,
            objective=f"composer_plugin_policy.clipped:{objective}",
            needs={"behavior"},
            clips="behavior",
            config=config,
        )


@hookimpl
def composer_check(run: RunView) -> Iterator[Problem]:
    """Refuse what would have no effect under this trainer."""
    if run.config.trainer.use != TRAINER:
        return
    yield from _clipping(run)
    for choice in run.config.stages:
        where = f"stages.{choice.stage.name}"
        settings = choice.settings
        if choice.stage.kind != "rl":
            yield from _rl_only(where, settings)
        if settings.get("kl", "k1") != "k1" and not settings.get("beta"):
            yield Problem(f"{where}.kl", "kl has no effect at beta = 0", "set beta above 0 or leave kl out")
        if "replay_tau" in settings and not getattr(choice.stage, "router_replay", False):
            message = "replay_tau has no effect without router_replay"
            yield Problem(f"{where}.replay_tau", message, "set router_replay = true or leave replay_tau out")
        hinting = any("reward.hints" in record.capabilities for _, record in run.records.get("rewards", ()))
        if settings.get("feedback") and not hinting:
            message = "feedback has no effect: no reward of the run says what would have helped"
            yield Problem(f"{where}.feedback", message, "add one that does, such as behavior/broken_calls")
        if settings.get("schedule", "constant") == "constant" and "final_learning_rate_share" in settings:
            message = "final_learning_rate_share has no effect with a constant schedule"
            yield Problem(f"{where}.final_learning_rate_share", message, 'set schedule to "linear" or "cosine"')


def _clipping(run: RunView) -> Iterator[Problem]:
    for id, record in run.records.get("algorithms", ()):
        if record.clips == "old":
            message = (
                f"{id} clips the ratio to the trainer's own recomputation, which is 1 by construction: "
                f"{TRAINER} makes one update for each batch"
            )
            yield Problem("algorithm.use", message, "choose an algorithm that does not, such as policy/dr_grpo")
        for stage in (choice.stage for choice in run.config.stages if choice.stage.kind == "rl"):
            if record.clips == "behavior" and stage.max_staleness == 0:
                message = (
                    f"{id} clips the ratio to the sampler, which is 1 by construction up to rounding: "
                    "at max_staleness = 0 a step trains the very weights that sampled its tokens"
                )
                fix = (
                    "set max_staleness to 1 or more, or choose an algorithm that does not clip, such as policy/dr_grpo"
                )
                yield Problem(f"stages.{stage.name}.max_staleness", message, fix)


def _rl_only(where: str, settings: Mapping[str, object]) -> Iterator[Problem]:
    for key in RL_KEYS:
        if key in settings:
            yield Problem(f"{where}.{key}", f"{key} has an effect in rl stages only", f"leave {key} out of this stage")
