"""Hook module: imported by every listing of plugins, so it imports nothing heavy."""

from collections.abc import Sequence

from composer_core import RewardSpec, TaskView, Trace, hookimpl

COMPOSER_API = 1


def my_name(group: Sequence[Trace], task: TaskView) -> list[float]:
    """For each member of a group the share of its token limit left unused, if it solved the task; 0 if it did not.

    An attempt that fails early must not look better than one that fails late, or giving up would pay.
    """
    left = [1 - trace.sampled_tokens() / task.limits.tokens for trace in group]
    return [share if trace.verdict.solved else 0.0 for share, trace in zip(left, group, strict=True)]


@hookimpl
def composer_rewards() -> list[RewardSpec]:
    """Scope "group": called when all attempts have ended and their verdicts are known; returns a value for each."""
    return [RewardSpec(name="my-name", function=my_name, scope="group", range=(0.0, 1.0), summary="short, if solved")]
