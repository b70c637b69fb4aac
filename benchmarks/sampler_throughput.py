"""Sampled tokens per second of `torch-sampler/continuous`, beside transformers' `generate` and its continuous batching.

1, 8, 32 and 96 sequences share their prompts by 8. A *turn* is a prompt of 256 ids and 128 sampled ones; an *episode*
is four turns of 15 to 30 ids with 40 ids of a tool result after each, which is what reinforcement learning of agents
samples. The peer is the better of the two.

Fair: one model (the tiny-moe preset, a Qwen3-MoE), each side in a process of its own, equal numbers of sampled ids,
measured in turns, medians of 5. Ours runs as it ships, on one thread; the peers may use two, and their number of
threads, attention, expert kernels, page size and way of sharing prompts are chosen by a trial at each size, one after
the other; a trial samples a quarter of a turn, or half an episode. The slower of the two peers is measured by its
trials alone when it reaches less than half of the other.

Not equal: ours also returns the log-probability, version and stop of every token, which training needs; the peers
return ids only. `generate` pads nothing, since its rows get one length; it cannot keep KV between turns and forwards
whole contexts again. Nobody is compiled.

The deterministic mode (equal bytes whatever shares the batch) stands beside our normal mode: its cost.

    python benchmarks/sampler_throughput.py [--sequences 1,8,32,96] [--repeats 5]
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

from attrs import evolve, frozen
from results import Results, Row, alternate, parser, versions_of
from workers import Worker

THREADS = (1, 2)
SLOW_S = 10
"""A trial that takes as long is not repeated: its warm-up is a small part of it."""
HOPELESS = 0.5
"""Share of the better peer's rate below which the other's trials suffice."""
EXPERTS = ("grouped_mm", "batched_mm", "eager")
AXES: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "ours": {"threads": (1,)},
    "deterministic": {"threads": (1,)},
    "generate": {"threads": THREADS, "experts": EXPERTS, "attention": ("sdpa", "eager")},
    "continuous": {
        "children": (True, False),
        "threads": THREADS,
        "experts": EXPERTS,
        "attention": ("sdpa", "eager"),
        "page": (32, 256),
    },
}
"""Settings of each side, the first tried first."""
FIXED: Mapping[str, Mapping[str, Any]] = {"deterministic": {"deterministic": True}}
SMOKE = "smoke test"
NAMES = {"generate": "transformers generate", "continuous": "transformers continuous batching"}


@frozen
class Choice:
    """A side and its settings."""

    side: str
    settings: Mapping[str, Any]
    rate: float = 0.0
    """Sampled ids per second in its best trial."""

    def words(self) -> str:
        told = ", ".join(f"{name} {value}" for name, value in self.settings.items() if name != "deterministic")
        return f"{NAMES.get(self.side, self.side)} ({told})"


class Sides:
    """The workers, one for each side and number of threads, started when first asked."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._workers: dict[tuple[str, int], Worker] = {}
        self._set: dict[tuple[str, int], Mapping[str, Any]] = {}

    def rate(self, choice: Choice, workload: str, sequences: int) -> float:
        """Sampled ids per second of one round."""
        settings = {**choice.settings}
        key = (choice.side, settings.pop("threads"))
        worker = self._worker(*key)
        if self._set.get(key) != settings:
            worker.ask(do="setup", **settings)
            self._set[key] = settings
        found = worker.ask(do="round", workload=workload, sequences=sequences)
        return float(found["tokens"] / found["seconds"])

    def _worker(self, side: str, threads: int) -> Worker:
        if (side, threads) not in self._workers:
            script = ("sampler_throughput/sides.py", "ours" if side == "deterministic" else side, str(threads))
            worker = Worker(sys.executable, *script, OMP_NUM_THREADS=str(threads))
            self._workers[side, threads] = self._stack.enter_context(worker)
        return self._workers[side, threads]

    def profile(self, workload: str, sequences: int) -> str:
        """Where our engine spends a turn: shares of its time by outermost operator."""
        shares = self._worker("ours", 1).ask(do="profile", workload=workload, sequences=sequences)
        return ", ".join(f"{name} {share:.0%}" for name, share in shares.items())

    def trial(self, choice: Choice, workload: str, sequences: int) -> Choice:
        """The better of two shorter rounds, since the first of a setting also warms up; one will do if it is slow."""
        started = time.perf_counter()
        rate = self.rate(choice, f"{workload}, trial", sequences)
        if time.perf_counter() - started < SLOW_S:
            rate = max(rate, self.rate(choice, f"{workload}, trial", sequences))
        return evolve(choice, rate=rate)


def axes_of(side: str, workload: str, sequences: int) -> Mapping[str, Sequence[Any]]:
    """A request is forked into a whole group or none, and not in the middle of an episode."""
    if workload == SMOKE:
        return {axis: values[:1] for axis, values in AXES[side].items()}
    axes = dict(AXES[side])
    if "children" in axes and (workload != "turn" or sequences % 8):
        axes["children"] = (False,)
    return axes


def choose(sides: Sides, side: str, workload: str, sequences: int) -> Choice:
    """The side's best settings, one axis after the other; a smoke test takes the first of each."""
    axes = axes_of(side, workload, sequences)
    first = {**FIXED.get(side, {}), **{axis: values[0] for axis, values in axes.items()}}
    best = sides.trial(Choice(side, first), workload, sequences)
    for axis, values in axes.items():
        for value in values[1:]:
            other = evolve(best, settings={**best.settings, axis: value})
            best = max(best, sides.trial(other, workload, sequences), key=lambda choice: choice.rate)
    return best


def measure(
    sides: Sides, names: Sequence[str], workload: str, sequences: int, repeats: int
) -> dict[str, tuple[float, Choice]]:
    """Rate and choice of each side."""
    chosen = {name: choose(sides, name, workload, sequences) for name in names}
    peers = [chosen[name] for name in NAMES if name in chosen]
    bar = HOPELESS * max((peer.rate for peer in peers), default=0.0)
    again = {name: choice for name, choice in chosen.items() if choice.side not in NAMES or choice.rate >= bar}
    acts = {name: (lambda choice=choice: sides.rate(choice, workload, sequences)) for name, choice in again.items()}
    rates = {name: median(values) for name, values in alternate(acts, repeats).items()}
    return {name: (rates.get(name, choice.rate), choice) for name, choice in chosen.items()}


def rows_of(found: Mapping[str, tuple[float, Choice]], workload: str, sequences: int) -> Iterator[Row]:
    """Ours beside the better peer, and the deterministic mode beside ours."""
    peers = [found[name] for name in NAMES if name in found]
    rate, choice = max(peers, key=lambda pair: pair[0]) if peers else (None, None)
    target = "" if workload == SMOKE else f"ratio >= {0.9 if sequences == 1 else 2}"
    ours = found["ours"][0]
    name = choice.words() if choice else ""
    yield Row(f"{sequences} {workload}{'s' * (sequences > 1)} at once", ours, "tokens/s", rate, name, target)
    if "deterministic" in found:
        what = f"{sequences} {workload}{'s' * (sequences > 1)} at once, deterministic"
        yield Row(what, found["deterministic"][0], "tokens/s", ours, "our normal mode")


def told(found: Mapping[str, tuple[float, Choice]], workload: str, sequences: int) -> str:
    sides = "; ".join(f"{choice.words()} {rate:,.0f}" for rate, choice in found.values())
    return f"{sequences} x {workload}, tokens/s: {sides}"


@contextmanager
def started() -> Iterator[Sides]:
    with ExitStack() as stack:
        yield Sides(stack)


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--sequences", default="1,8,32,96")
    arguments.add_argument("--repeats", type=int, default=5)
    options = arguments.parse_args()
    sizes = [2] if options.quick else [int(text) for text in options.sequences.split(",")]
    workloads = (SMOKE,) if options.quick else ("turn", "episode")
    names = [name for name in AXES if not (options.no_peer and name in NAMES)]
    result = Results("sampler_throughput", "Sampling", versions=versions_of("torch", "transformers"))
    with started() as sides:
        for workload, sequences in itertools.product(workloads, sizes):
            found = measure(sides, names, workload, sequences, 1 if options.quick else options.repeats)
            rows = list(rows_of(found, workload, sequences))
            result.rows += rows
            result.remarks.append(told(found, workload, sequences))
            print(result.remarks[-1], file=sys.stderr, flush=True)
            if any(row.met is False for row in rows):
                shares = sides.profile(f"{workload}, trial", sequences)
                result.remarks.append(f"a profile of ours at {sequences} sequences: {shares}")
    return result.finish(options)


if __name__ == "__main__":
    sys.exit(main())
