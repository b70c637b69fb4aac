"""The seven findings as data: the claim as published, what is run for it, and what its effects are.

An effect is a treated arm less an untreated one, paired by task; but for finding 5 both go on from the same checkpoint.
What is claimed of it is a direction, or a bound that it does not go below; `effects.py` says how it is judged.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from study.recipes import ROUNDS

BLOG = "https://cursor.com/blog"
REPORT = "Composer 2 technical report, arXiv 2603.24477"
NOT_WORSE = -0.05
"""Least mean difference in solve rate that counts as non-inferior (docs/RL.md, section 8)."""


@frozen
class Effect:
    """A difference between two arms, and what is claimed of it."""

    title: str
    column: str
    """Of what `reading` keeps of a task, such as "solved"."""
    treated: str
    """Arm, or "arm:before" for the evaluation before reinforcement learning."""
    untreated: str
    sign: int | None
    """1: claimed to be above 0, -1: below; 0: claimed to be no less than NOT_WORSE; None: told to compare with."""
    bugs: int | None = None
    """Only tasks with so many broken files."""
    less_bugs: int | None = None
    """Given, the effect is that at `bugs` less that at so many broken files."""


@frozen
class Finding:
    """One of the seven."""

    number: int
    title: str
    claim: str
    """As published, in our words."""
    source: str
    ran: str
    """What we ran, in a paragraph."""
    arms: Mapping[str, tuple[str, ...]]
    """Arm -> the runs that it is read from: the first one's evaluations and steps, the times of the others."""
    effects: tuple[Effect, ...] = ()
    plot: str = "effects"
    """Which figure: effects, scaling or pretraining."""


OVER = "calls beyond the fewest"


def _effort(arm: str, sign: int | None, no_loss: int | None) -> tuple[Effect, ...]:
    return (
        Effect(f"{arm}: {OVER}, one broken file", "over", arm, "none", sign, 1),
        Effect(f"{arm}: {OVER}, two", "over", arm, "none", sign, 2),
        Effect(f"{arm}: the first less the second", "over", arm, "none", sign, 1, 2),
        Effect(f"{arm}: the same where both solve, one", "excess", arm, "none", None, 1),
        Effect(f"{arm}: the same where both solve, two", "excess", arm, "none", None, 2),
        Effect(f"{arm}: solve rate", "solved", arm, "none", no_loss),
    )


FINDINGS: Mapping[str, Finding] = {
    "scaling": Finding(
        1,
        "Reward and best of 16 rise with the logarithm of tokens",
        "In reinforcement learning the mean reward and the best of 16 attempts both go on rising, about as the "
        "logarithm of what is spent on it.",
        f"{REPORT}, section 4; the curve is also in S. Rush's Ray Summit talk (2025).",
        "Half of the tasks have two broken files, and imitation's usual repair is a stub, so those are hardly ever "
        "solved at the start. 24 steps of 8 groups of 16; each group is a new task, so its mean and its best of 16 are "
        "measured on what reinforcement learning has not used yet. Slopes are per doubling of the tokens sampled "
        "before a step. 48 held-out tasks x 16 attempts before and after are the check.",
        {"trained": ("scaling",)},
        (
            Effect("held out: solve rate", "solved", "trained", "trained:before", 1),
            Effect("held out: best of 16", "best", "trained", "trained:before", 1),
            Effect("held out, two broken files: solve rate", "solved", "trained", "trained:before", None, 2),
        ),
        "scaling",
    ),
    "effort": Finding(
        2,
        "A concave penalty on effort shortens easy tasks more than hard ones",
        "A penalty on effort whose slope falls with what was spent already makes a model quick where a task is easy "
        "and lets it work longer where it is hard, at no loss of correctness.",
        f"{REPORT}, section 4.2; its constants are not published.",
        "Imitation shows up to four superfluous calls, as many in easy tasks (one broken file) as in hard ones (two). "
        "Then the same reinforcement learning without a penalty, with a linear one (q = 0) and with a concave one "
        "(q = 4), both on calls alone; a call costs about as much in either, in the mean over both kinds of tasks. The "
        "fewest are a read and an edit for each broken file and one to end.",
        {name: (f"effort-{name}",) for name in ("none", "linear", "concave")},
        (
            *_effort("concave", -1, 0),
            *_effort("linear", None, None),  # told to compare with: nothing was published of it
            Effect("concave against linear: one file less two", "over", "concave", "linear", -1, 1, 2),
        ),
    ),
    "parallel": Finding(
        3,
        "A price on turns brings calls in parallel, and shorter critical paths",
        "Without being told to, the model learned to make more calls at once: the penalty on effort counts turns. "
        "Critical path and time of a task fall.",
        f"{REPORT}, section 4.2; more parallel calls over training: {BLOG}/composer (2025-10-29).",
        "Tasks name three independent broken files. In three demonstrations of five all are read in one turn and "
        "edited in one, which makes a fifth of the turns, and a superfluous call is made on the average; an imitation "
        "of its own teaches both ways, since a price can favor only what succeeds. Then reinforcement learning with "
        "and without a penalty on turns alone. The critical path is the number of turns; times are of episodes that "
        "run alone, 16 tasks x 4 attempts, the median of three rounds in which the arms take turns.",
        {
            name: (f"parallel-{name}", *(f"parallel-{name}-alone-{turn}" for turn in ROUNDS))
            for name in ("none", "effort")
        },
        (
            Effect("reads, or writes, of a turn that has any", "width", "effort", "none", 1),
            Effect("turns of a task", "turns", "effort", "none", -1),
            Effect("seconds of a task, alone", "alone_s", "effort", "none", -1),
            Effect(OVER, "over", "effort", "none", None),
            Effect("solve rate", "solved", "effort", "none", 0),
        ),
    ),
    "evidence": Finding(
        4,
        "Reads and searches before the first edit rise, and needless edits fall",
        "In training the model came to search and read more before it edits, and to make fewer edits without grounds.",
        f"S. Rush, Ray Summit 2025; {BLOG}/composer (2025-10-29). That a reward of its own was behind it is not said.",
        "Requests name functions and no files. Half of the demonstrations write files whole from memory, and half of "
        "these a spare one too; the others search, read and edit. Then reinforcement learning with `evidence` and with "
        "the outcome alone: only what goes beyond the latter counts as the reward's doing.",
        {"none": ("evidence-none",), "evidence": ("evidence-reward",)},
        (
            Effect("reads and searches before the first edit", "looks", "evidence", "none", 1),
            Effect("needless edits", "needless", "evidence", "none", -1),
            Effect("files edited blindly", "blind", "evidence", "none", -1),
            Effect("solve rate", "solved", "evidence", "none", 0),
        ),
    ),
    "pretraining": Finding(
        5,
        "More pre-training lowers the loss on agent traces and raises the reward",
        "Of three amounts of continued pre-training, followed by the same imitation and reinforcement learning, the "
        "loss after imitation foretells the reward.",
        f"{REPORT}, section 3 (a proxy study on Qwen3-Coder-30B-A3B).",
        "Pre-training on text at 0.25, 1 and 4 times 528 steps, then the same imitation and the same reinforcement "
        "learning; findings 1 to 4 and 7 begin with 4 times. Loss is what the policy has after imitation on "
        "demonstrations of 64 held-out tasks, the same for every amount; reward is the solve rate on held-out tasks "
        "after reinforcement learning.",
        {name: (f"pretraining-{name}",) for name in ("quarter", "one", "four")},
        (
            Effect("loss after imitation, 4 against 0.25", "figure:imitation_nll", "four", "quarter", -1),
            Effect("loss after imitation, 1 against 0.25", "figure:imitation_nll", "one", "quarter", -1),
            Effect("loss after imitation, 4 against 1", "figure:imitation_nll", "four", "one", -1),
            Effect("solve rate, 4 against 0.25", "solved", "four", "quarter", 1),
            Effect("solve rate, 1 against 0.25", "solved", "one", "quarter", 1),
            Effect("solve rate, 4 against 1", "solved", "four", "one", 1),
        ),
        "pretraining",
    ),
    "summary": Finding(
        6,
        "Self-summaries lose less than prompted ones, in a fifth of the tokens",
        "An agent that is trained to sum up its own work has half of the compaction error of one that is told how by a "
        "long prompt, with a fifth of the tokens.",
        f"{BLOG}/self-summarization (2026-03-17).",
        "Read from the runs of `examples/long_horizon`, whose page (`long_horizon.md`) says what they are: books of "
        "four times the window. Its minutes are of the arms, without the run that all of them go on from.",
        {"unlimited": (), "prompted": (), "self": ()},
        (
            Effect("self against prompted: solve rate", "solved", "self", "prompted", 1),
            Effect("self against prompted: tokens of a summary", "figure:summary_tokens", "self", "prompted", -1),
            Effect("prompted against an unlimited window: solve rate", "solved", "prompted", "unlimited", None),
        ),
    ),
    "precision": Finding(
        7,
        "Training and sampling in one low precision leave nothing to correct",
        "Trained and sampled in MXFP8 alike, a model needs no quantization afterwards and stays on-policy; trained in "
        "bf16 and quantized where it is sampled, it does not.",
        f"{BLOG}/composer (2025-10-29) and {BLOG}/kernels (2025-08).",
        "The same reinforcement learning with experts in MXFP8 in trainer and sampler, and with experts in bf16 in the "
        "trainer and in MXFP8 in the sampler; all else is fp32 in both arms. Emulated on a CPU: the numbers are those "
        "of the format, not the speed. Weights count after their cap of 2.",
        {"both": ("precision-both",), "sampler": ("precision-sampler",)},
        (
            Effect("distance of log-probabilities, median", "figure:parity_median", "both", "sampler", -1),
            Effect("distance of log-probabilities, 99.9 %", "figure:parity_p999", "both", "sampler", -1),
            Effect(
                "importance weights: share that is effective", "figure:weight_effective_share", "both", "sampler", 1
            ),
            Effect("solve rate", "solved", "both", "sampler", 0),
        ),
    ),
}
"""Key, as on the command line -> finding."""
