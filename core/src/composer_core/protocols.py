"""What each built object must do: one Protocol per kind, the contract in its docstring.

Shared rules. Whatever does I/O or computes longer than a millisecond is async here; hooks, contexts, renderers and
advantages are synchronous and pure. `close()` is safe twice and after a failed start. Objects raise ordinary
exceptions or those of `errors`; the framework attributes them. Only data crosses a process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from attrs import Factory, field, frozen

from composer_core.columns import Column
from composer_core.errors import BackendError
from composer_core.events import Event
from composer_core.trees import Patch, Tree, TreeRef
from composer_core.types import (
    Completion,
    EpisodeRequest,
    EpisodeResult,
    GenerateRequest,
    GenerateSettings,
    Grading,
    GradingRef,
    Limits,
    Message,
    ParsedTurn,
    StepStats,
    Task,
    TaskView,
    ToolResult,
    Trace,
    TrainBatch,
    WeightsRef,
)

__all__ = [
    "Algorithm",
    "Ask",
    "BuildContext",
    "Changes",
    "Context",
    "ContextView",
    "Continue",
    "Created",
    "Describes",
    "Entry",
    "ExecRequest",
    "ExecResult",
    "Executor",
    "Failed",
    "Forks",
    "FullSnapshots",
    "GradingRoom",
    "KeepsSegments",
    "Leases",
    "Networks",
    "NewBranch",
    "OpenGrading",
    "Pauses",
    "Releases",
    "Renderer",
    "Sampler",
    "SandboxBackend",
    "SandboxHandle",
    "SandboxProvider",
    "Sessions",
    "SnapshotRef",
    "Store",
    "TaskSet",
    "TemplateRef",
    "TemplateSpec",
    "Tokenizer",
    "ToolContext",
    "ToolOutput",
    "ToolSchema",
    "Tracker",
    "Trainer",
]


@frozen
class BuildContext:
    """What a factory may know about the run it is built for."""

    run_dir: Path
    """Folder the component may write below, in a folder of its own name."""
    seed: int = 0
    deterministic: bool = False
    get: Callable[[str], Any] = Factory(lambda: _nothing)
    """`get(kind)` is the run's component of another kind ("tasks", "tokenizer", "renderers", "stores", "tools",
    "policy" for a fresh PolicyModel, "kernels" for the chosen kernel or None), built on first use."""
    settings: Mapping[str, Any] = Factory(dict)
    """Facts of the run that several kinds share: special_tokens, limits, threads, temperature, max_staleness,
    router_replay."""
    emit: Callable[[Event], None] = lambda event: None
    """Tell the run's trackers; an executor passes on what happens in its other processes."""


def _nothing(kind: str) -> Any:
    raise LookupError(f"this build context holds no {kind}")


# --- tools ------------------------------------------------------------------------------------------------------


class SandboxHandle(Protocol):
    """What tools and rewards see: the framework's final `sandbox.Sandbox`, whatever the backend.

    Paths are relative to the workspace. Errors are `errors.SandboxError`.
    """

    async def exec(
        self, argv: Sequence[str], *, timeout_s: float | None = None, stdin: bytes = b"", env: Mapping[str, str] = ...
    ) -> ExecResult:
        """Run a command to its end. Its time limit is the task's `command_s` unless one is given."""
        ...

    async def session_exec(self, name: str, argv: Sequence[str], *, timeout_s: float | None = None) -> ExecResult:
        """Run a command in the shell of that name; what it leaves in the background goes on (`Sessions`).

        Raises Unsupported where the backend has no sessions.
        """
        ...

    async def read(self, path: str) -> bytes:
        """The whole of a file."""
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Write a whole file; missing folders are made."""
        ...

    async def list(self, path: str = "") -> list[Entry]:
        """The entries of a folder; the workspace itself is ""."""
        ...


@frozen
class ToolContext:
    """First argument of a tool that asks for it."""

    sandbox: SandboxHandle
    state: dict[str, Any]
    """The episode's own memory for tools (open to-dos, paths read); empty at its start."""
    limits: Limits = Factory(Limits)
    config: Any = None
    """The tool's own settings, an instance of its record's `config` class."""


@frozen
class ToolOutput:
    """A tool may return text, or this when it has more to say."""

    text: str
    ok: bool = True
    exit_code: int | None = None
    data: Mapping[str, Any] = Factory(dict)
    """Facts for rewards, never shown to the model."""


# --- sandboxes --------------------------------------------------------------------------------------------------


@frozen
class TemplateSpec:
    """What a template is made of; equal specs give equal templates."""

    workspace: TreeRef
    needs: tuple[str, ...] = ()
    memory_bytes: int = 512 << 20
    processes: int = 64
    file_bytes: int = 16 << 20
    """Largest file that may be written."""
    disk_bytes: int = 64 << 20
    """Bytes that may be written in all."""
    env: Mapping[str, str] = Factory(dict)


@frozen
class TemplateRef:
    """A prepared, content-addressed workspace; `id` is data, never a host path."""

    id: str


@frozen
class SnapshotRef:
    """A live sandbox's state at one moment."""

    id: str


def _words(argv: Sequence[str]) -> tuple[str, ...]:
    """A command's. Raises BackendError for what is none."""
    if isinstance(argv, str) or not argv or not all(isinstance(word, str) for word in argv):
        raise BackendError("a command is a non-empty list of words", found=repr(argv)[:200], fix="['sh', '-c', text]")
    return tuple(argv)


@frozen
class ExecRequest:
    argv: tuple[str, ...] = field(converter=_words)
    cwd: str = ""
    """Relative to the workspace."""
    stdin: bytes = b""
    env: Mapping[str, str] = Factory(dict)
    """Added to the sandbox's own environment, which is built from empty."""
    timeout_s: float = 10.0
    output_bytes: int = 1 << 20
    """Cap on each of stdout and stderr; more is drained, counted and dropped."""


@frozen
class ExecResult:
    """How a command ended. Partial output is always kept."""

    status: str
    """exited, signaled, timeout, oom or lost."""
    exit_code: int | None
    """None unless exited (shell convention 128 + signal is not used)."""
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_bytes: int = 0
    """True total, including what was dropped."""
    stderr_bytes: int = 0
    wall_s: float = 0.0
    signal: int | None = None
    restarted: bool = False
    """Of a session: what its shell held is lost. It ended with this command, or before it, which then had a new one."""


@frozen
class Entry:
    """One directory entry."""

    name: str
    kind: str
    """file, folder or other."""
    size_bytes: int = 0


class SandboxBackend(Protocol):
    """One live sandbox.

    Every path is relative to the workspace, without "." and "..", and can be a file's: the framework's Sandbox has seen
    to that. Links are the backend's own: what leads out of the workspace raises PathError.
    """

    id: str

    async def exec(self, request: ExecRequest) -> ExecResult:
        """Run a command. How it ended, in whatever way, is a result and never an exception; cancelling ends it."""
        ...

    async def read(self, path: str, limit_bytes: int) -> bytes:
        """Raises PathError (missing, a folder, outside), QuotaError (larger than the limit)."""
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Creates parents; replaces; raises PathError or QuotaError."""
        ...

    async def list(self, path: str) -> list[Entry]:
        """The entries of a folder; the workspace itself is "". Raises PathError."""
        ...

    async def destroy(self) -> None:
        """Safe twice; kills whatever still runs inside."""
        ...


@frozen
class Created:
    backend: SandboxBackend


@frozen
class Failed:
    """One child that could not be created; its siblings are not affected."""

    error: str
    retryable: bool = True


class SandboxProvider(Protocol):
    """Creates sandboxes. `prepare` is single-flight per content hash; `attach` makes ids usable across processes."""

    async def probe(self) -> frozenset[str]:
        """The capabilities that really work here, now."""
        ...

    async def prepare(self, spec: TemplateSpec, workspace: Tree) -> TemplateRef:
        """Raises PrepareError when a needed command cannot be offered, or `workspace` is not what `spec` names."""
        ...

    async def create(self, source: TemplateRef | SnapshotRef, n: int = 1) -> list[Created | Failed]:
        """n sandboxes, or for each the reason why not. Raises TemplateMissing, and SandboxGone after `close`."""
        ...

    async def attach(self, sandbox_id: str) -> SandboxBackend:
        """A live sandbox by its id. Raises SandboxGone."""
        ...

    async def close(self) -> None:
        """Destroys every sandbox it created and frees what it holds."""
        ...


@runtime_checkable
class Releases(Protocol):
    """Optional, of a SandboxProvider that lives longer than its snapshots are wanted."""

    async def release(self, ref: SnapshotRef) -> None:
        """Nothing is created from it any more, and what only it holds is freed. Safe twice; sandboxes live on."""
        ...


@runtime_checkable
class Describes(Protocol):
    """Optional, of a SandboxProvider whose promises differ from machine to machine."""

    def describe(self) -> str:
        """What the machine gave, in a line for people; after `probe`, and shown by `check --probe`."""
        ...


@runtime_checkable
class Forks(Protocol):
    """Optional, of a SandboxBackend: capture files once, create n children from the capture; the parent goes on."""

    async def snapshot(self) -> SnapshotRef:
        """Capture the files; `create` starts from the capture, also when this sandbox is gone."""
        ...

    async def fork(self, n: int) -> list[Created | Failed]:
        """n new sandboxes from one capture, or for each the reason why not."""
        ...


@runtime_checkable
class Changes(Protocol):
    """Optional, of a SandboxBackend: what changed against the template, without reading all of it."""

    async def changes(self, limit_bytes: int) -> Patch:
        """The patch since the template.

        A new or changed regular file is a write, with its bytes and whether its owner may execute it; a file of the
        template that is gone, or no file any more, is a delete. `skipped` names what a patch cannot carry: changed
        files of more than `limit_bytes` each, links and other entries that are no files, and what cannot be reached
        (a name that is no text, folders nested too deep, rights taken away).
        """
        ...


@runtime_checkable
class FullSnapshots(Protocol):
    """Optional, of a SandboxBackend: captures memory and processes too."""

    async def full_snapshot(self) -> SnapshotRef:
        """Capture files, memory and processes; `create` starts from the capture, also when this sandbox is gone.

        Commands go on in what is created, each with the time that it had left; nobody is told how they end. Shells of
        sessions keep their names. Forks of what is created, and its own network, begin as always: with none of it.
        """
        ...


@runtime_checkable
class Sessions(Protocol):
    """Optional, of a SandboxBackend: named shells that keep folder, variables, functions and jobs between commands.

    A shell lives until it ends itself, a command of it is late, or the sandbox is destroyed. Forks, and what is created
    from a snapshot of files, have none of their parent's.
    """

    async def session_exec(self, name: str, request: ExecRequest) -> ExecResult:
        """Run a command in the shell of that name, which its first command opens.

        The words are one simple command of the shell: a builtin, a function or a program; ("eval", text) runs any text.
        Its input is empty, `cwd` is not looked at, and `env` is the shell's if it is opened now. Commands of a session
        run one after the other. One that is late ends the shell, and whatever ends it, by the next result at the latest
        `restarted` says so; what a command started in the background goes on. What is printed cannot be mistaken for
        a command's end. A program's signal is the shell's exit code 128 + n.
        Raises QuotaError for too long a command or too many sessions.
        """
        ...


@runtime_checkable
class Pauses(Protocol):
    """Optional, of a SandboxBackend: everything inside stands still, at no cost but memory.

    What is asked of it meanwhile waits for `resume`, or is done without anything inside; destroying it waits for
    nothing. Both are safe twice.
    """

    async def pause(self) -> None:
        """Nothing inside runs until `resume`, and the time of commands that were under way stands still too."""
        ...

    async def resume(self) -> None:
        """What was inside runs on."""
        ...


@runtime_checkable
class Networks(Protocol):
    """Optional, of a SandboxBackend: a deny-by-default egress policy that can be replaced live.

    Every sandbox starts with none, forks and what is created from a snapshot included. Where commands reach allowed
    hosts through a proxy, their variables `http_proxy` and `https_proxy`, in both cases, name it while any is allowed,
    and `no_proxy` names those of localhost, 127.0.0.1 and ::1 that are not: these are the sandbox itself. The shell of
    a session keeps the variables with which it was opened.
    """

    async def set_network(self, allow: Sequence[str]) -> None:
        """From now on exactly these hosts can be reached; connections to others end.

        An entry is a name, "*.suffix" for all names below one, or an address, ":port" behind it for that port alone
        ("[address]:port" for IPv6). A name leads to public addresses only, unless the address is an entry too.
        Raises BackendError for what is no entry.
        """
        ...


@runtime_checkable
class Leases(Protocol):
    """Optional, of a SandboxBackend: reaped when not renewed in time."""

    async def renew(self, lease_s: float) -> None:
        """Keep the sandbox for so many seconds from now."""
        ...


# --- policy side ------------------------------------------------------------------------------------------------


class Tokenizer(Protocol):
    """Text to ids and back. Control tokens in text are encoded as plain text, never as the control token."""

    vocab_size: int
    fingerprint: str
    """sha256 of the tokenizer's file; saved with checkpoints and compared on load."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text, never one of a control token."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of any ids."""
        ...

    def special(self, token: str) -> int:
        """The id of a control token; KeyError if there is none."""
        ...

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files into a folder, which is made."""
        ...


@frozen
class ToolSchema:
    """A tool as the model is told about it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments: {"type": "object", "properties": ..., "required": ...}."""


class Renderer(Protocol):
    """Encodes increments only; sampled ids are never decoded and encoded again. Needs a tokenizer, never torch.

    Law: render(parse(ids)) == ids for canonical ids. Text from tools is encoded with control tokens disabled.
    """

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[int]:
        """Ids up to and including the start of the policy's first turn."""
        ...

    def results(self, results: Sequence[ToolResult], ended: bool) -> list[int]:
        """The increment after a turn: a missing end token if not `ended`, the results, the start of the next turn."""
        ...

    def request(self, message: Message, ended: bool) -> list[int]:
        """The increment that asks the policy something (a summary): a turn that was begun is closed if not `ended`."""
        ...

    def parse(self, ids: Sequence[int]) -> ParsedTurn:
        """The words and calls of sampled ids. Any ids parse; a call that cannot be read has a `problem`."""
        ...

    def render(self, turn: ParsedTurn) -> list[int]:
        """Canonical ids of a turn, end token included: what a scripted sampler emits."""
        ...

    def stop_ids(self) -> frozenset[int]:
        """The ids that end a turn."""
        ...


class Sampler(Protocol):
    """Continues token ids, in flight with many others. Owns its thread; never blocks the event loop."""

    async def generate(self, ids: Sequence[int], settings: GenerateSettings, request: GenerateRequest) -> Completion:
        """Continue the ids until a stop id, `max_tokens` or the end of the sampler's window."""
        ...

    async def load(self, weights: WeightsRef, path: Path) -> None:
        """Swap to `weights` between decode steps; generations in flight go on. `path` is the local file."""
        ...

    async def release(self, session: str) -> None:
        """Forget a session's KV; unknown sessions are ignored."""
        ...

    def stats(self) -> Mapping[str, float]:
        """Counters since the start: tokens, prefill_tokens, busy_s, ..."""
        ...

    async def close(self) -> None:
        """Free what it holds; safe twice."""
        ...


class Trainer(Protocol):
    """Turns batches into weights. `step` runs score -> credit -> objective -> optimizer; it knows no reward by name."""

    async def begin(self, stage: str, settings: Any) -> None:
        """A stage starts (or goes on, after `load`); the reference weights of KL are those at the first rl stage."""
        ...

    async def step(self, batch: TrainBatch) -> StepStats:
        """One update by one batch, and what can be measured of it."""
        ...

    async def save(self, folder: Path) -> None:
        """Weights, optimizer and random state, complete enough that `load` and the same batches give the same bytes."""
        ...

    async def load(self, folder: Path) -> None:
        """Go on from what `save` wrote. Raises StoreError for what is not usable."""
        ...

    async def export(self, path: Path) -> None:
        """The weights a sampler loads, as safetensors."""
        ...

    async def logprobs(self, batch: TrainBatch) -> list[Column]:
        """F32 [T] for each sequence: own log-probabilities, for parity probes."""
        ...

    async def close(self) -> None:
        """Free what it holds; safe twice, and before anything began."""
        ...


# --- tasks and rewards ------------------------------------------------------------------------------------------


class TaskSet(Protocol):
    """A source of tasks, on the trusted side. Nothing it returns but `Task.view` and `tree` reaches an episode."""

    def splits(self) -> Mapping[str, str]:
        """Split name -> what it is."""
        ...

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split, always in the same order. Raises ConfigError for an unknown split."""
        ...

    def task(self, task_id: str) -> Task:
        """One task by its id. Raises ConfigError for an unknown one."""
        ...

    def tree(self, ref: TreeRef) -> Tree:
        """The files of a workspace."""
        ...

    def grading(self, ref: GradingRef) -> Grading:
        """How a task is graded; called only while one of its episodes is."""
        ...

    def gold(self, task_id: str) -> Patch:
        """A patch that solves the task."""
        ...

    def exploits(self, task_id: str) -> Mapping[str, Patch]:
        """Named attempts to cheat; each must score 0."""
        ...

    def texts(self, split: str) -> Iterable[str]:
        """Documents to pre-train on; never any of a held-out split's."""
        ...


class GradingRoom(Protocol):
    """A fresh fork of the pristine template, where the hidden files arrive only now."""

    grading: Grading

    async def apply(self, patch: Patch) -> Patch:
        """Lay the patch's unprotected part over the workspace, then the hidden files; returns what was applied."""
        ...

    async def run(self) -> ExecResult:
        """Run the grading command."""
        ...

    @property
    def sandbox(self) -> Any:
        """The room's own sandbox, a `SandboxHandle`, for what `run` does not tell."""
        ...


OpenGrading = Callable[[], AbstractAsyncContextManager[GradingRoom]]


# --- the loop ---------------------------------------------------------------------------------------------------


@frozen
class ContextView:
    """What a context sees before a turn."""

    task: TaskView
    trace: Callable[[], Trace]
    """Everything so far; built when asked for."""
    tokens: int
    """Ids in the current branch."""
    sampled_tokens: int
    limits: Limits
    state: Mapping[str, Any] = Factory(dict)
    """What the tools remember (`ToolContext.state`), such as the to-dos of code/todo_write."""
    branch: int = 0
    """Number of the current branch: how many were closed before it."""
    segment: Callable[[], Trace] = Factory(lambda view: view.trace, takes_self=True)
    """The current branch and its turns alone: what a context of long episodes looks at, and keeps (`KeepsSegments`)."""


@frozen
class Continue:
    """Sample the next turn."""


@frozen
class Ask:
    """Insert a request and sample an answer that is no act (its calls are not executed)."""

    message: Message
    turn_tokens: int = 256
    trained: bool = True
    """Whether the answer is trained; if not, its tokens are context like the request."""


@frozen
class NewBranch:
    """Open a new branch from these messages; they may carry ids to be spliced."""

    messages: tuple[Message, ...]
    files: Mapping[str, bytes] = Factory(dict)
    """Path -> content, laid into the workspace for the agent to read; below `trees.SCRATCH` it is no part of the patch.
    One for which the agent has left no room is not written."""


class Context(Protocol):
    """Decides how an episode goes on; synchronous and pure."""

    def next(self, view: ContextView) -> Continue | Ask | NewBranch:
        """How the episode goes on; asked before each turn."""
        ...


class KeepsSegments(Protocol):
    """Optional, of a Context: closed branches wait elsewhere until the trace is whole, and outlive the process."""

    def segments(self, episode_id: str) -> MutableMapping[int, Trace]:
        """By number of the branch, each with its turns; emptied by the loop when the episode has ended, if not as lost.

        What it holds at first is a lost attempt's: as far as the rows are the same, what was sampled there is taken
        instead of sampled. A branch is put in on a thread, and looked up on the event loop.
        """
        ...


class Executor(Protocol):
    """Places components and runs episodes."""

    async def start(self) -> None:
        """Get ready; called once, before the first `submit`."""
        ...

    def trainer(self) -> Trainer:
        """The run's trainer, wherever it lives; asked for after `start`."""
        ...

    def places(self) -> int:
        """How many episodes run at once now, at least 1; the loop of an rl stage never has more in flight."""
        ...

    async def submit(self, request: EpisodeRequest) -> EpisodeResult:
        """Never raises for what happens inside an episode: that is a verdict, void for "lost" if a process vanished."""
        ...

    async def publish(self, weights: WeightsRef) -> None:
        """Every hosted policy sampler swaps to `weights`."""
        ...

    def stats(self) -> Mapping[str, float]:
        """Counters since the start, the sandboxes' among them; those of the policy's sampler are `sampler/NAME`."""
        ...

    async def close(self) -> None:
        """End what it started; safe twice and after a failed start."""
        ...


class Tracker(Protocol):
    """Writes events down; called from one thread, in order; must not block longer than a few milliseconds."""

    def write(self, event: Event) -> None:
        """One event. What it does not know it ignores."""
        ...

    def close(self) -> None:
        """Write what is left; safe twice."""
        ...


class Store(Protocol):
    """Blobs by key; `put` is atomic: a reader sees all of a blob or none."""

    def put(self, key: str, data: bytes) -> str:
        """Returns the blob's URI."""
        ...

    def get(self, uri: str) -> bytes:
        """Raises StoreError when missing."""
        ...

    def list(self, prefix: str) -> list[str]:
        """The URIs of all keys that begin so, sorted."""
        ...

    def delete(self, uri: str) -> None:
        """Remove a blob; one that is not there is no error."""
        ...


@frozen
class Algorithm:
    """A resolved `AlgorithmSpec`: `build.get("algorithms")`."""

    id: str
    advantage: Callable[[Sequence[float], Any], Sequence[float]]
    """`advantage(rewards of a group's valid members, config)` -> one number per member; no torch."""
    objective: Callable[[Any, Any], Any]
    """`objective(tensors.ObjectiveInputs, config)` -> loss_T, differentiable in `logp_T`."""
    config: Any
    needs: frozenset[str]
