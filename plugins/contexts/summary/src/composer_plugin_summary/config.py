"""Settings of the contexts and of the probe. Thin.

Three contexts share most of them: what is asked for differs, what a window must have room for does not.
"""

from __future__ import annotations

from posixpath import normpath

from attrs import Attribute, field, frozen
from attrs.validators import deep_iterable, ge, gt, in_, min_len

from composer_core.trees import SCRATCH

STATE = ("count", "todos", "history")
REQUEST = "Summarize what you did, what you learned and what is left; you go on from the summary alone."
SECTIONS = """Your window is nearly full. Write a complete, structured record of the work so far.
You go on from this record alone. Use exactly these sections, in this order; write "none" where one has nothing to say:
1. Task: the request as it was made, with every constraint, in its own words where wording matters.
2. Intent: what the person who asked wants to have in the end, and how they would judge it.
3. Environment: commands, versions, settings and conventions of this workspace that matter.
4. Files: each file that was read or changed, with its path and the part of it that matters.
5. Findings: facts, names and values that were read, exactly as they were written.
6. Decisions: what was decided, why, and what was decided against.
7. Changes: each change that was made, with path, place and effect.
8. Errors: each error that was met, its cause, and how it was mended or got around.
9. Tests: what was run, what passed, what failed, and the message of what failed.
10. Open problems: what is not understood or does not work yet.
11. To-dos: what is left, in order, with what each step depends on.
12. Next step: what you were doing when you were interrupted, and the exact call that comes next."""


def _in_scratch(_instance: object, attribute: Attribute[str], path: str) -> None:
    if path != normpath(path) or not path.startswith(f"{SCRATCH}/"):
        raise ValueError(
            f"{attribute.name} must be a folder below {SCRATCH}, such as {SCRATCH}/history, found {path!r}"
        )


@frozen(kw_only=True)
class CompactionConfig:
    """What all contexts of this plugin have; abstract."""

    trigger_tokens: int = field(validator=gt(0))
    """Tokens of a branch at which it is left; looked at between turns, so a turn is never cut."""
    results: int = field(default=1, validator=ge(1))
    """Results of full length (`limits.output_chars`) in one turn that `check` keeps room for. A turn with more of them
    can fill the window, which ends the episode (stop: context)."""
    tokens_per_char: float = field(default=4.0, validator=gt(0))
    """Tokens that `check` counts for a character of a result or of the request. 4 holds for any text if the tokenizer
    gives at most a token for each byte, 1 if results are ASCII."""
    frame_tokens: int = field(default=32, validator=ge(0))
    """Tokens that the renderer writes around one message or result, at most; 3 for hf/xml."""
    state: tuple[str, ...] = field(default=STATE, validator=deep_iterable(in_(STATE)))
    """What a new branch is told beside the summary. count: how many branches were closed; todos: the open ones of
    code/todo_write; history: where closed branches can be searched."""
    history: str = field(default=f"{SCRATCH}/history", validator=_in_scratch)
    """Folder of the workspace in which each closed branch becomes a text file; below `.agent`, which no patch holds."""


@frozen(kw_only=True)
class SummaryConfig(CompactionConfig):
    """Settings of `summary/self`."""

    request: str = REQUEST
    """What is asked at the trigger."""
    summary_tokens: int = field(default=1024, validator=gt(0))
    """Most tokens of a summary that are carried over; of a longer one the first."""
    think_tokens: int = field(default=512, validator=ge(0))
    """Room to think before the summary, which is not carried over; 0 asks for no thought, and all is the summary."""
    think_end: str = field(default="</think>", validator=min_len(1))
    """What ends the thought, as text or as a control token of the tokenizer. Without it all is the summary."""
    untrained_in: tuple[str, ...] = ()
    """Names of stages in which the tokens of summaries, thoughts included, are context instead of trained."""

    @property
    def asked(self) -> str:
        """The request with the way to think, if there is one."""
        return (
            f"{self.request} Think first; end the thought with {self.think_end}" if self.think_tokens else self.request
        )

    @property
    def answer_tokens(self) -> int:
        """Most tokens of the answer, thought included."""
        return self.think_tokens + self.summary_tokens


@frozen(kw_only=True)
class PromptedConfig(SummaryConfig):
    """Settings of `summary/prompted`."""

    request: str = SECTIONS
    """What is asked at the trigger: a record of a dozen sections."""
    summary_tokens: int = field(default=5120, validator=gt(0))
    """Most tokens of a summary that are carried over; of a longer one the first."""


@frozen(kw_only=True)
class TruncateConfig(CompactionConfig):
    """Settings of `summary/truncate`."""

    keep_turns: int = field(default=2, validator=ge(1))
    """Latest turns of the closed branch whose words, calls and results are told again in the new one."""


@frozen
class ProbeConfig:
    """Settings of the probe `summary/kept`."""

    label: str = "facts"
    """Label of the task (`TaskView.labels`, never shown to the model) that holds the facts, one a line."""
    think_end: str = "</think>"
    """What ends a thought in this run's summaries; facts in a thought are not kept."""
