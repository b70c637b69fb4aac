"""Latencies and memory of `microvm/qemu`: cold boots, creation from a template, forks, commands; medians and tails.

Every machine has the run file's default limits, 512 MiB for a command and as much disk. A *cold boot* is from starting
QEMU with a kernel to the end of the first command; a sandbox never waits for one, since machines are booted once and
kept. *Create* and *fork* are from the call to the end of the first command in what it made, one after the other; all
sixteen children of a state are alive together before the first is destroyed, and the round is repeated. A *nested* fork
is that of a fork which has written 8 MB since; its parent's pause is the time that its processor stands still. Memory
is the proportional set size of a child's QEMU, sixteen idle ones alive, each after its first command.

Targets are for TCG, an emulator. Where a machine boots with KVM, the same is measured with it, in rows that say so.

No peer: no other trainer of agents drives virtual machines itself. What a command costs in containers and namespaces
of the same machine stands [with those](#sandboxes-in-linux-namespaces-and-containers).

    python benchmarks/microvm.py
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from statistics import fmean, median
from typing import Any

from attrs import Factory, define, evolve
from microvm_boots import AT_ONCE, TRUE, boot_rows, cold
from results import Results, Row, parser, percentile

from composer_core.errors import ConfigError
from composer_core.protocols import Created, ExecRequest, TemplateRef, TemplateSpec
from composer_core.trees import Tree
from composer_plugin_microvm import base
from composer_plugin_microvm.config import QemuConfig
from composer_plugin_microvm.machine import Machine
from composer_plugin_microvm.provider import MachineProvider
from composer_plugin_microvm.qemu import Qemu
from composer_plugin_microvm.qemu_driver import QemuDriver
from composer_plugin_microvm.sandbox import MachineSandbox

TREE = Tree.of({f"pkg/module_{index}.py": "x = 1\n" * 60 for index in range(12)})
SPEC = TemplateSpec(TREE.ref, ("python3",))
DIRTY = ExecRequest(("sh", "-c", "head -c 8000000 /dev/urandom > file"))
CHILDREN = 16
PARTS = {
    "QEMU's start": (Qemu, "start"),
    "a clone made of it": (Qemu, "clone"),
    "its agent's first answer": (Machine, "adopt"),
    "the parent's capture": (Machine, "capture"),
}
"""Name -> what is timed by the way. A clone's part contains QEMU's start."""
Spent = dict[str, list[float]]


@contextmanager
def parts() -> Iterator[Spent]:
    """Milliseconds of each call of `PARTS`, and of a parent's pause, while it is entered."""
    found: Spent = defaultdict(list)
    kept = {(owner, name): owner.__dict__[name] for owner, name in [*PARTS.values(), (Qemu, "save")]}
    try:
        for label, (owner, name) in {**PARTS, "pause": (Qemu, "save")}.items():
            setattr(owner, name, _timing(kept[owner, name], found[label]))
        yield found
    finally:
        for (owner, name), method in kept.items():
            setattr(owner, name, method)


def _timing(method: Any, spent: list[float]) -> Any:
    inner = method.__func__ if isinstance(method, classmethod) else method

    @wraps(inner)
    async def timed(*words: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return await inner(*words, **options)
        finally:
            spent.append((time.perf_counter() - started) * 1e3)

    return classmethod(timed) if isinstance(method, classmethod) else timed


async def ms(call: Awaitable[Any]) -> float:
    started = time.perf_counter()
    await call
    return (time.perf_counter() - started) * 1e3


def backend(child: Any) -> MachineSandbox:
    assert isinstance(child, Created), child
    assert isinstance(child.backend, MachineSandbox)
    return child.backend


# --- sandboxes ----------------------------------------------------------------------------------------------------


async def creations(provider: MachineProvider, template: TemplateRef, repeats: int) -> list[float]:
    """Milliseconds to the end of the first command."""
    found = []
    for _ in range(repeats):
        made: list[MachineSandbox] = []
        found.append(await ms(first(made, provider.create(template))))
        await made[0].destroy()
    return found


async def first(made: list[MachineSandbox], children: Awaitable[Sequence[Any]]) -> None:
    """One child and its first command; the child is put into `made`."""
    (child,) = await children
    made.append(backend(child))
    await made[-1].exec(TRUE)


async def forks(parent: MachineSandbox, count: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each of so many forks of one state, and MiB of each child once all are there."""
    made: list[MachineSandbox] = []
    try:
        spent = [await ms(first(made, parent.fork(1))) for _ in range(count)]
        await asyncio.sleep(1)
        return spent, [resident(child.machine.process.pid) for child in made]
    finally:
        await asyncio.gather(*(child.destroy() for child in made))


async def together(parent: MachineSandbox, count: int) -> float:
    """Seconds until as many children of one fork have each run a command."""
    made: list[MachineSandbox] = []

    async def whole() -> None:
        made.extend(backend(child) for child in await parent.fork(count))
        await asyncio.gather(*(child.exec(TRUE) for child in made))

    try:
        return await ms(whole()) / 1e3
    finally:
        await asyncio.gather(*(child.destroy() for child in made))


async def nested(parent: MachineSandbox) -> float:
    """Milliseconds of a fork of a fork that has changed much; `parts` has its pause as the last."""
    made: list[MachineSandbox] = []
    try:
        await first(made, parent.fork(1))
        await made[0].exec(DIRTY)
        return await ms(first(made, made[0].fork(1)))
    finally:
        await asyncio.gather(*(child.destroy() for child in made))


def resident(pid: int) -> float:
    """Proportional set size in MiB: what is shared is divided by those who share it."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


@define
class Figures:
    """Milliseconds of each act, but for what says otherwise."""

    commands: list[float] = Factory(list)
    created: list[float] = Factory(list)
    forked: list[float] = Factory(list)
    deep: list[float] = Factory(list)
    pauses: list[float] = Factory(list)
    at_once_s: list[float] = Factory(list)
    held_mib: list[float] = Factory(list)

    def rows(self, children: int) -> list[Row]:
        fork = f"fork to first exec, {children} children of a state"
        return [
            Row("create from a template to first exec, p50", median(self.created), "ms", target="ours <= 300"),
            Row(f"{fork}, p50", median(self.forked), "ms", target="ours <= 250"),
            Row(f"{fork}, p95", percentile(self.forked, 0.95), "ms", target="ours <= 400"),
            Row(f"fork of {children} at once until all have run a command, p50", median(self.at_once_s), "s"),
            Row("fork of a fork: its parent stands still, p50", median(self.pauses), "ms", target="ours <= 100"),
            Row("fork of a fork to first exec, p50", median(self.deep), "ms", target="ours <= 500"),
            Row("exec of true, p50", median(self.commands), "ms", target="ours <= 30"),
            Row("exec of true, p99", percentile(self.commands, 0.99), "ms", target="ours <= 120"),
            Row(f"memory of an idle child, {children} alive, mean", fmean(self.held_mib), "MiB", target="ours <= 55"),
        ]


async def measure(options: argparse.Namespace) -> tuple[list[Row], list[str]]:
    """With TCG, and beside it with KVM where that is of use."""
    rows, remarks = await measured(options, "tcg")
    try:
        more, said = await measured(options, "kvm")
    except ConfigError as error:
        return rows, [*remarks, f"KVM: {error.message}"]
    return [*rows, *(evolve(row, what=f"with KVM: {row.what}", target="") for row in more)], [*remarks, *said]


async def measured(options: argparse.Namespace, accel: str) -> tuple[list[Row], list[str]]:
    rounds, boots, children = (1, 1, 2) if options.quick else (options.rounds, options.boots, CHILDREN)
    repeats = 10 if options.quick else options.repeats
    driver, found = QemuDriver(QemuConfig(accel=accel)), Figures()
    provider = MachineProvider(driver.config, driver)
    try:
        template = await provider.prepare(SPEC, TREE)
        parent = backend((await provider.create(template))[0])
        await parent.write("pkg/module_0.py", b"x = 2\n")
        found.commands = [await ms(parent.exec(TRUE)) for _ in range(repeats)]
        with parts() as of_create:
            found.created = await creations(provider, template, repeats // 5)
        with parts() as of_fork:
            for _ in range(rounds):
                spent, held = await forks(parent, children)
                found.forked += spent
                found.held_mib += held
        for _ in range(rounds):
            found.at_once_s.append(await together(parent, children))
            with parts() as of_nested:
                found.deep.append(await nested(parent))
            found.pauses.append(of_nested["pause"][-1])
        ram_bytes = parent.machine.ram_bytes
        await parent.destroy()
        alone = await cold(driver, ram_bytes, boots, 1)
        rows = boot_rows(alone, await cold(driver, ram_bytes, boots, AT_ONCE), boots)
    finally:
        await provider.close()
    parts_told = [costs("create", found.created, of_create), costs("fork", found.forked, of_fork)]
    return rows + found.rows(children), [f"with {accel.upper()}, a {told}" for told in parts_told]


def costs(what: str, whole: list[float], spent: Spent) -> str:
    """What the time of a creation or a fork is made of."""
    part = {name: median(values) for name, values in spent.items() if values}
    own = {
        "the parent's capture": part.get("the parent's capture", 0.0),
        "QEMU's start": part["QEMU's start"],
        "its pages and devices": part["a clone made of it"] - part["QEMU's start"],
        "its agent's first answer": part["its agent's first answer"],
    }
    own["the first command, where nothing of the guest's code is translated yet"] = median(whole) - sum(own.values())
    shown = sorted(((value, name) for name, value in own.items() if value), reverse=True)
    return f"{what}, {median(whole):.0f} ms: " + ", ".join(f"{value:.0f} {name}" for value, name in shown)


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--repeats", type=int, default=300, help="of a command; a fifth as many creations")
    arguments.add_argument("--rounds", type=int, default=5, help=f"of {CHILDREN} forks")
    arguments.add_argument("--boots", type=int, default=20, help="cold, and as many again three at once")
    options = arguments.parse_args()
    rows, remarks = asyncio.run(measure(options))
    qemu = shutil.which(QemuConfig().qemu)
    versions = {"QEMU": base.version(qemu).rpartition("version ")[2]} if qemu else {}
    return Results("microvm", "Virtual machines", rows, remarks, versions).finish(options)


if __name__ == "__main__":
    sys.exit(main())
