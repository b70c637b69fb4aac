"""The vocabulary of a run as frozen values: tasks, turns, traces, scores, requests and results.

Everything here is plain data that pickles and crosses processes; nothing does I/O or imports torch. A trace is a turn
log beside a token tree: a *branch* is one root-to-leaf row of token ids, a summary opens a new branch, and each
sampled token belongs to exactly one branch, the one it was sampled in (RL: trained there, context everywhere else).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from attrs import Factory, field, frozen
from attrs.validators import gt

from composer_core.columns import Blob, Column
from composer_core.trees import File, Patch, Tree, TreeRef

__all__ = [
    "Branch",
    "Call",
    "Completion",
    "EpisodeRequest",
    "EpisodeResult",
    "Fault",
    "GenerateRequest",
    "GenerateSettings",
    "Grading",
    "GradingRef",
    "GroupRewards",
    "Hint",
    "Limits",
    "Message",
    "Outcome",
    "ParsedTurn",
    "Runs",
    "Sampling",
    "Score",
    "SlotKey",
    "StepStats",
    "Stop",
    "Task",
    "TaskView",
    "ToolResult",
    "Trace",
    "TraceRef",
    "TrainBatch",
    "TrainSequence",
    "Turn",
    "Verdict",
    "WeightsRef",
]

Runs = tuple[tuple[int, int], ...]
"""Run-length coding of a row of integers: (value, count) pairs in order."""


class Stop(StrEnum):
    """How generation ended. All but CANCELLED are the policy's doing and are graded as they stand."""

    FINISHED = "finished"
    TURNS = "turns"
    TOKENS = "tokens"
    TIME = "time"
    CONTEXT = "context"
    NO_CALL = "no_call"
    CANCELLED = "cancelled"


class Outcome(StrEnum):
    SOLVED = "solved"
    FAILED = "failed"
    UNGRADED = "ungraded"
    VOID = "void"


@frozen
class Verdict:
    """What an episode was worth; `cause` is set for void only: host, sandbox, sampler, grader, lost or cancelled.

    Lost: a process under the episode vanished. That is no refill; the same attempt is asked for again.
    """

    outcome: Outcome
    cause: str | None = None

    @property
    def solved(self) -> bool:
        return self.outcome is Outcome.SOLVED

    @property
    def valid(self) -> bool:
        """Counts in its group's statistics and is trained."""
        return self.outcome in (Outcome.SOLVED, Outcome.FAILED)

    @property
    def lost(self) -> bool:
        return self.cause == "lost"


@frozen
class Limits:
    """What one episode may use; reaching one ends it with the `Stop` of that name."""

    turns: int = field(default=8, validator=gt(0))
    """Generations of the policy."""
    tokens: int = field(default=512, validator=gt(0))
    """Sampled tokens over the whole episode."""
    turn_tokens: int = field(default=256, validator=gt(0))
    """Sampled tokens in one turn."""
    context_tokens: int = field(default=1024, validator=gt(0))
    """Window: prompt, results and sampled tokens of one branch together."""
    wall_s: float = field(default=120.0, validator=gt(0))
    """Wall clock of the episode; not applied in deterministic mode."""
    command_s: float = field(default=10.0, validator=gt(0))
    """Wall clock of one command in the sandbox."""
    output_chars: int = field(default=4000, validator=gt(0))
    """Characters of one tool result that the model is shown."""


@frozen
class GradingRef:
    """Names how a task is graded without holding any of it; resolved by the task set, only while grading."""

    tasks: str
    """The component id of the task set, "plugin/name"."""
    key: str


@frozen
class TaskView:
    """All that episode, context and tools ever receive of a task."""

    id: str
    prompt: str
    workspace: TreeRef
    limits: Limits = Factory(Limits)
    needs: tuple[str, ...] = ()
    """Commands that the workspace's template must offer, such as "python3"."""
    labels: Mapping[str, str] = Factory(dict)
    """Free labels for reports (module, operator); never shown to the model."""


@frozen
class Task:
    """A prompt, a workspace reference, limits (`view`) and a reference to how it is graded."""

    view: TaskView
    grading: GradingRef
    split: str = "train"

    @property
    def id(self) -> str:
        return self.view.id


@frozen
class Grading:
    """How a task is graded, once resolved: what arrives in the fresh fork and what is run there."""

    hidden: Tree
    """Files laid over the patched workspace, after the agent's patch, before the command."""
    argv: tuple[str, ...]
    protected: tuple[str, ...] = ()
    """fnmatch patterns of paths whose changes by the agent are discarded."""
    names: tuple[str, ...] = ()
    """The tests that must all be reported as passed."""
    timeout_s: float = 10.0
    expected: Mapping[str, str] = Factory(dict)
    """Name of a test -> the value it must report, as text. Compared by the reward on the trusted side and never laid
    into the room, so code that runs there can neither read nor forge it. Empty when the command judges itself."""


@frozen
class Message:
    """One message of an opening or a request. `ids`, when given, are spliced as they are, never re-encoded."""

    role: str
    """system, user or summary."""
    text: str
    ids: Column | None = None


@frozen
class Call:
    """One tool call parsed out of a turn's ids."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    problem: str | None = None
    """malformed, truncated, unknown_tool or bad_arguments; such a call is not executed."""
    detail: str = ""
    """What the model is told about the problem."""
    repair: str = ""
    """What the renderer mended to read the call, which is executed; its ids stay as they were sampled."""


@frozen
class ParsedTurn:
    """What a renderer read out of sampled ids."""

    text: str
    """Words outside calls."""
    calls: tuple[Call, ...] = ()
    ended: bool = True
    """Whether the ids close the turn; if not, the renderer appends the end token with mask 0."""


@frozen
class ToolResult:
    """What came back from one call, in call order."""

    call_id: str
    tool: str
    text: str
    ok: bool = True
    problem: str | None = None
    """The call's problem, "tool" for an error the tool reported, "fault" for a tool that broke."""
    exit_code: int | None = None
    wall_s: float = 0.0
    cut_chars: int = 0
    """Characters left out of `text`, also stated inside it."""
    data: Mapping[str, Any] = Factory(dict)
    """Facts for rewards (paths read, diagnostics); never rendered."""


@frozen
class Turn:
    """One generation by the policy plus the results of the tool calls in it."""

    index: int
    branch: int
    start: int
    """Offset in its branch of the first sampled id; the sampled ids are [start, stop)."""
    stop: int
    text: str
    calls: tuple[Call, ...]
    results: tuple[ToolResult, ...] = ()
    sampler_stop: str = "stop"
    cache_version: int = 0
    """Oldest version of any KV this turn was sampled over; older than the token's own = left out of parity."""
    generate_s: float = 0.0
    tools_s: float = 0.0
    purpose: str = "act"
    """act, or summary for a turn that a context asked for."""


@frozen
class Branch:
    """A row of token ids with what is known about each; all columns have the length of `ids`."""

    ids: Column
    """I32 [T]."""
    sampled: Column
    """U8 [T]: 1 where the policy sampled the id in this branch (trained here), else 0, as for an answer that a context
    asked for untrained."""
    logprobs: Column
    """F32 [T]: behavior log-probability of sampled ids, 0 elsewhere."""
    versions: Runs
    """Version that sampled each id; -1 for ids that were not sampled."""
    parent: int | None = None
    """The branch this one follows on; None for the first."""
    routes: Column | Blob | None = None
    """U8 or U16 [F, L, K]: expert ids of the F forwarded tokens, all but the last sampled one and what stands behind
    it, per MoE layer; None when not recorded."""

    def __len__(self) -> int:
        return len(self.ids)


@frozen
class Score:
    """A reward's value with named parts and provenance."""

    reward: str
    """Component id, "plugin/name"."""
    version: str
    value: float
    parts: Mapping[str, float] = Factory(dict)
    note: str = ""
    weight: float = 1.0
    hints: Mapping[int, str] = Factory(dict)
    """Index of a turn -> what would have helped there, had it been said just before: text feedback makes use of it."""


@frozen
class Fault:
    """Something that broke beside or inside an episode, attributed."""

    where: str
    """sandbox, sampler, grader, tool, reward, host."""
    plugin: str
    error: str
    retryable: bool = False


@frozen
class SlotKey:
    """One attempt at one task: what an episode's noise and identity depend on."""

    task_id: str
    attempt: int
    stage: str = "rl"
    moment: str = ""
    """When, where one attempt is made several times (evaluations before and after); no part of the noise."""

    @property
    def episode_id(self) -> str:
        return "-".join(filter(None, (self.moment, self.stage, self.task_id, str(self.attempt))))

    def noise(self, run_seed: int) -> int:
        """The 64-bit key of this attempt's noise; re-issuing the attempt draws the same numbers."""
        text = f"{run_seed}\0{self.stage}\0{self.task_id}\0{self.attempt}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


@frozen
class Trace:
    """Everything one episode did; written once, by the worker that ran it."""

    key: SlotKey
    group: str
    opening: tuple[Message, ...]
    branches: tuple[Branch, ...]
    turns: tuple[Turn, ...]
    stop: Stop
    verdict: Verdict = Verdict(Outcome.UNGRADED)
    scores: tuple[Score, ...] = ()
    patch: Patch = Patch()
    originals: tuple[File, ...] = ()
    """The files that the patch replaces or deletes, as they were: patch and originals make a diff."""
    originals_whole: bool = True
    """Whether all of them were kept; they are up to a bound, since a policy may touch everything."""
    harness: str = ""
    """Stamp of the harness and limits the episode ran in (`harness.Harness.stamp`)."""
    faults: tuple[Fault, ...] = ()
    stats: Mapping[str, float] = Factory(dict)
    """Numbers with units in their names: wall_s, generate_s, tools_s, create_s, grade_s, ..."""
    labels: Mapping[str, str] = Factory(dict)

    def calls(self) -> list[Call]:
        return [call for turn in self.turns for call in turn.calls]

    def results(self) -> list[ToolResult]:
        return [result for turn in self.turns for result in turn.results]

    def sampled_tokens(self) -> int:
        return sum(turn.stop - turn.start for turn in self.turns)

    def oldest_version(self) -> int | None:
        """Version of the oldest trained token; None when nothing was sampled."""
        versions = [value for branch in self.branches for value, _ in branch.versions if value >= 0]
        return min(versions, default=None)


@frozen
class TraceRef:
    """Where a trace was written, and the checksum of its bytes."""

    uri: str
    sha256: str


@frozen
class Sampling:
    """How tokens are drawn. Training admits temperature only: the log-probability is of the distribution drawn from."""

    temperature: float = 1.0
    """0 is greedy."""
    routes: bool = False
    """Whether the trace records expert ids, for router replay."""


@frozen
class EpisodeRequest:
    """All that a worker needs to run one episode; holds no hidden-test byte and no live object."""

    key: SlotKey
    group: str
    task: TaskView
    grading: GradingRef
    run_seed: int = 0
    sampling: Sampling = Factory(Sampling)
    sampler: str = "policy"
    """Which hosted sampler generates: the policy, or a demonstrator named by a stage."""
    observations: str = "full"
    """full, or blank: tool results are replaced by blanks (a control of evaluation)."""
    graded: bool = True
    """Whether rewards run; demonstrations that are all kept need no verdict."""


@frozen
class EpisodeResult:
    """What a worker reports of one episode."""

    key: SlotKey
    group: str
    trace: TraceRef | None
    """None only when the episode is void before anything could be written."""
    verdict: Verdict
    scores: tuple[Score, ...] = ()
    reward: float = 0.0
    """Composed reward before group-scope rewards."""
    oldest_version: int | None = None
    stats: Mapping[str, float] = Factory(dict)
    stop: Stop | None = None
    faults: tuple[Fault, ...] = ()


@frozen
class GenerateSettings:
    """Settings of one generation."""

    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    temperature: float = 1.0


@frozen
class GenerateRequest:
    """Who asks for a generation: names what may be reused, and the noise to draw."""

    session: str
    """Calls of one session extend each other's ids; its KV may stay resident between them."""
    group: str = ""
    """Sessions of one group share a prefix, computed once."""
    noise: int = 0
    """64-bit key; the n-th token sampled by the episode is drawn with `noise.uniform(key, position)`."""
    position: int = 0
    """Tokens the episode has sampled before this generation."""
    task_id: str = ""
    attempt: int = 0
    routes_from: int | None = None
    """Tokens whose expert ids the caller holds already; those of all later ones are asked for. None: of none."""


@frozen
class Completion:
    """What a sampler returns. `ids` includes the stop id when one was sampled; nothing is trimmed."""

    ids: Column
    """I32 [T] sampled ids."""
    logprobs: Column
    """F32 [T], of the distribution each id was sampled from."""
    versions: Runs
    stop: str = "stop"
    """stop (a stop id), length (max_tokens) or context (the sampler's own window)."""
    cache_version: int = 0
    routes: Column | None = None
    """U8 or U16 [P, L, K]: expert ids of the forwarded tokens from `routes_from` on, which are all but the last sampled
    one; those of a prefix that was cached are returned with it."""


@frozen
class WeightsRef:
    """A set of weights, and how it travels."""

    version: int
    uri: str
    """Path of a safetensors file below the run folder, or a name that whoever ships weights knows."""
    checksum: str
    """sha256 of the safetensors file that a sampler loads, also where a difference to another one travels."""
    format: str = "safetensors"
    """safetensors for a whole file; a difference has a format of whoever made it."""
    base: int | None = None
    """Version that a difference is applied to; None for a whole file."""


@frozen
class Hint:
    """A turn of a sequence, and what would have helped there: text feedback makes a teacher of it."""

    start: int
    stop: int
    """The turn's sampled ids are [start, stop)."""
    text: str


@frozen
class TrainSequence:
    """One row to train on; a branch of an episode, a demonstration, or a window of text."""

    ids: Column
    """I32 [T]."""
    trained: Column
    """U8 [T]: 1 where the loss applies to predicting this id."""
    episode: int = 0
    """Index of the episode within the step."""
    segment: int = 0
    """Which branch of its episode this is; 0 unless a context opened new ones."""
    behavior: Column | None = None
    """F32 [T], the sampler's log-probabilities."""
    versions: Runs = ()
    routes: Column | Blob | None = None
    """U8 or U16 [F, L, K]: expert ids to replay, of every token that is forwarded."""
    comparable: Column | None = None
    """U8 [T]: 1 where parity with the sampler may be compared (RL.md section 4)."""
    temperature: float = 1.0
    hints: tuple[Hint, ...] = ()
    """What the rewards have said of its turns; several about one turn stand one after another."""


@frozen
class GroupRewards:
    """The valid members of one group: `rewards[i]` belongs to the batch's episode `episodes[i]`."""

    group: str
    episodes: tuple[int, ...]
    rewards: tuple[float, ...]


@frozen
class TrainBatch:
    """What one optimizer step consumes."""

    stage: str
    objective: str
    """Algorithm id, or "nll"."""
    sequences: tuple[TrainSequence, ...]
    episodes: int
    """E: admitted episodes of the step."""
    groups: tuple[GroupRewards, ...] = ()
    """Rewards from which the trainer computes advantages; empty for stages without rewards."""
    progress: float = 0.0
    """Share of the stage done before this step, for the learning-rate schedule."""
    settings: Mapping[str, Any] = Factory(dict)
    """The stage's settings that the trainer declared (learning rate, loss_scale_tokens, ...)."""
    probe: tuple[TrainSequence, ...] = ()
    """Rows that are compared with their sampler before the update and not trained; where no sequence may be compared,
    given to trainers that declare "trainer.parity"."""


@frozen
class StepStats:
    """What a step reports; `metrics` are finite floats with names that end in their unit where they have one."""

    metrics: Mapping[str, float]
    skipped: bool = False
    """The step was not applied: loss or gradient was not finite."""
