"""Commits and versions: what belongs together is written in one manifest, and only then are its weights published.

Every set of weights has a version and a file; not every version is a commit. A resumed run starts from the last commit,
so tokens of versions that were published and never committed are refused (see `ledger`). Checksums of gigabytes and a
ledger of thousands of groups are made and written on threads: episodes go on meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
from attrs import define

from composer_core.assembly import Assembly
from composer_core.errors import ConfigError
from composer_core.events import CheckpointSaved, Event, WeightsPublished
from composer_core.protocols import Trainer
from composer_core.rundir import Commit, RunDir, checksums, sha256_of
from composer_core.types import WeightsRef


@define
class Commits:
    """The run's last commit, and who replaces it."""

    assembly: Assembly
    trainer: Trainer
    run_dir: RunDir
    emit: Callable[[Event], None]
    flush: Callable[[], object]
    last: Commit | None = None

    @property
    def version(self) -> int:
        """Of the weights in the last commit; 0 before the first."""
        return self.last.weights.version if self.last else 0

    def of_stage(self, stage: int) -> Commit | None:
        """The last commit, if it was made in this stage."""
        return self.last if self.last and self.last.stage == stage else None

    async def restore(self) -> None:
        """Back to the last commit, or publish the first weights.

        Raises:
            ConfigError: the commit was made with another tokenizer.
        """
        if self.last:
            same_tokenizer(self.assembly, self.last, self.run_dir.path)
            await self.trainer.load(self.run_dir.checkpoint(self.last.number))
            await self._publish(self.last.weights)
        else:
            await self.publish(0)

    async def publish(self, version: int) -> None:
        """Give the trainer's weights out as a version that no commit holds."""
        await self._publish(await self._export(version))

    async def _export(self, version: int) -> WeightsRef:
        uri = f"weights/{version}.safetensors"
        path = self.run_dir.path / uri
        part = path.with_suffix(".part")
        await self.trainer.export(part)
        part.replace(path)
        return WeightsRef(version, uri, await asyncio.to_thread(sha256_of, path))

    async def _publish(self, weights: WeightsRef) -> None:
        await self.assembly.get("executors").publish(weights)
        self.emit(WeightsPublished(weights=weights))

    async def commit(
        self,
        stage: int,
        name: str,
        step: int,
        *,
        version: int,
        ledger: dict[str, Any] | None = None,
        publish: bool = True,
    ) -> None:
        """Everything that belongs together, in one manifest; then the version may be published."""
        number = self.last.number + 1 if self.last else 1
        folder = self.run_dir.fresh_checkpoint(number)
        await self.trainer.save(folder)
        weights = await self._export(version)
        self.last = Commit(
            number=number,
            stage=stage,
            step=step,
            weights=weights,
            ledger=ledger,
            checksums=await asyncio.to_thread(checksums, folder),
            tokenizer=self.assembly.get("tokenizer").fingerprint,
            best=self.last.best if self.last else None,
        )
        await asyncio.to_thread(self.run_dir.commit, self.last, self.assembly.config.checkpoints.keep)
        self.emit(CheckpointSaved(path=str(folder), stage=name, step=step, version=weights.version))
        self.flush()
        if publish:
            await self._publish(weights)

    def journal(self, entries: list[dict[str, Any]]) -> None:
        """Write down what the ledger decided since the last commit."""
        if self.last:
            self.run_dir.append(self.run_dir.journal(self.last.number), entries)

    def keep_best(self, metric: str, value: float) -> None:
        """Remember the last commit if none before it had a higher value."""
        if self.last and (self.last.best is None or value > self.last.best["value"]):
            best = {"metric": metric, "value": value, "checkpoint": self.last.number, "step": self.last.step}
            self.last = attrs.evolve(self.last, best=best)
            self.run_dir.write_json("commit.json", attrs.asdict(self.last))


def open_run(path: Path) -> tuple[RunDir, dict[str, Any], Commit | None]:
    """An existing run folder, for resuming.

    Raises:
        ConfigError: there is no run.
        StoreError: its last commit is damaged.
    """
    run_dir = RunDir(path)
    return run_dir, run_dir.config(), run_dir.last_commit()


def same_tokenizer(assembly: Assembly, commit: Commit, where: Path) -> None:
    """Ids mean nothing under another vocabulary.

    Raises:
        ConfigError: the commit was made with another tokenizer.
    """
    found = assembly.get("tokenizer").fingerprint
    if found != commit.tokenizer:
        raise ConfigError(
            "the commit was trained with another tokenizer",
            where=str(where / "tokenizer"),
            expected=commit.tokenizer,
            found=found,
            fix="restore the tokenizer folder of the run",
        )
