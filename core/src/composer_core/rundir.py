"""The run folder: what is written, and how a commit becomes the truth.

    config.json      resolved run file            plugins.json   name, dist, version, source hash of each plugin
    harness.json     tools, renderer, context and tokenizer that the policy sees the world through
    commit.json      the manifest; replaced atomically, it names everything that belongs to the last commit
    checkpoints/N/   trainer state and ledger of commit N        journal-N.jsonl  finished episodes since commit N
    weights/         published weights            traces/        one file for each episode
    demonstrations/, evaluations/                 events.jsonl, summary.json, report.html
    status.json      where an rl stage stands, about once a second (`RlLoop.status`)
    stalled-N.txt    all stacks and the ledger's table, of the N-th time that nothing progressed for `stall_s`
    lock             held by the process that trains, whose id is in it; the file stays, the kernel lets go of it

A commit is written in full beside the previous one and becomes valid by one rename of commit.json; a kill at any point
leaves the old or the new manifest, both whole.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import attrs
from attrs import frozen

from composer_core.errors import ConfigError, StoreError
from composer_core.types import WeightsRef

BEFORE_CONFIG = {"lock", "tokenizer", "plugins.json", ".plugins.json.part", ".config.json.part"}
"""What a run may leave that ended before its config.json was written."""


@frozen
class Commit:
    """The manifest of one commit."""

    number: int
    stage: int
    """Index into the run's stages."""
    step: int
    """Steps of that stage that are in the weights."""
    weights: WeightsRef
    ledger: dict[str, Any] | None = None
    """`Ledger.to_json()` of an rl stage."""
    checksums: dict[str, str] = attrs.Factory(dict)
    """sha256 of each file of the checkpoint."""
    tokenizer: str = ""
    """Fingerprint of the tokenizer that gives the ids their meaning."""
    best: dict[str, Any] | None = None
    """Metric, value and checkpoint of the best evaluation so far."""


@frozen
class RunDir:
    """Paths and atomic writes of one run folder."""

    path: Path

    def create(self, config: dict[str, Any], plugins: list[dict[str, str]]) -> None:
        """Start a new folder.

        Raises:
            ConfigError: it already holds a run, or files of somebody else; nothing is overwritten.
        """
        self.refuse_used()
        for name in ("checkpoints", "weights", "traces", "demonstrations", "evaluations"):
            (self.path / name).mkdir(parents=True, exist_ok=True)
        self.write_json("plugins.json", plugins)
        self.write_json("config.json", config)

    def holds_run(self) -> bool:
        """Whether a run was started here."""
        return (self.path / "config.json").exists()

    def refuse_used(self) -> None:
        """A new run writes only where nothing is.

        Raises:
            ConfigError: there is a run, or files that no run has made.
        """
        if self.holds_run():
            raise ConfigError(
                "the run folder already holds a run",
                where=str(self.path),
                fix=f"resume it with --resume {self.path}, or choose another --run-dir",
            )
        files = (path.relative_to(self.path) for path in self.path.rglob("*") if not path.is_dir())
        if foreign := next((path for path in files if path.parts[0] not in BEFORE_CONFIG), None):
            raise ConfigError(
                "the run folder holds files that are not of a run",
                where=str(self.path),
                expected="a new or an empty folder",
                found=str(foreign),
                fix="choose another --run-dir",
            )

    def config(self) -> dict[str, Any]:
        """The run's resolved configuration.

        Raises:
            ConfigError: there is no run.
        """
        data: dict[str, Any] | None = self.read_json("config.json") if self.path.is_dir() else None
        if data is None:
            raise ConfigError(
                "no run to resume",
                where=str(self.path),
                expected="a folder with config.json",
                fix="name the folder that train was given as --run-dir, or runs/NAME",
            )
        return data

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only process that trains here; the folder is made if need be, and removed if nothing came of it.

        Raises:
            ConfigError: another process trains here, or the folder or the file cannot be made.
        """
        made = not self.path.exists()
        with self._locked():
            try:
                yield
            finally:
                if made and not self.holds_run():
                    (self.path / "lock").unlink(missing_ok=True)
                    with suppress(OSError):  # a component has written something
                        self.path.rmdir()

    def _locked(self) -> IO[str]:
        path = self.path / "lock"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with ExitStack() as unless_held:
                file = unless_held.enter_context(path.open("a+", encoding="ascii"))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(file.fileno()).st_nlink == 0:  # what is locked is no longer what others will find
                    raise FileNotFoundError(errno.ENOENT, "removed by a process that has just ended", str(path))
                file.truncate(0)
                file.write(f"{os.getpid()}\n")
                file.flush()
                unless_held.pop_all()
                return file
        except BlockingIOError as error:
            raise ConfigError(
                "another process trains in this run folder",
                where=str(path),
                found=f"process {path.read_text(encoding='ascii').strip()}",
                fix="wait for its end, or stop it; what it has done is kept and can be resumed",
            ) from error
        except OSError as error:
            raise ConfigError(
                "the run folder cannot be used",
                where=str(self.path),
                expected="a folder that can be made and written",
                found=f"{error.strerror}: {error.filename or path}",
                fix="choose another --run-dir",
            ) from error

    def read_json(self, name: str) -> Any:
        """The parsed file, or None if there is none."""
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise StoreError(f"{name} is damaged", where=str(self.path / name), found=str(error)) from error

    def write_json(self, name: str, value: Any) -> None:
        text = json.dumps(value, indent=1, default=str)
        self.write(name, text.encode())

    def write(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Replace a file atomically, and durably unless a newer one is about to come."""
        target = self.path / name
        part = target.with_name(f".{target.name}.part")
        with _writing(part):
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            part.replace(target)

    # --- commits ---

    def checkpoint(self, number: int) -> Path:
        return self.path / "checkpoints" / str(number)

    def fresh_checkpoint(self, number: int) -> Path:
        """An empty folder for commit `number`; leftovers of a killed attempt are removed."""
        folder = self.checkpoint(number)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def commit(self, commit: Commit, keep: int) -> None:
        """Make `commit` the truth, then remove what no longer is part of it."""
        self.write_json("commit.json", attrs.asdict(commit))
        self.journal(commit.number).touch()
        best = (commit.best or {}).get("checkpoint")
        for folder in (self.path / "checkpoints").iterdir():
            old = folder.name.isdigit() and int(folder.name) <= commit.number - keep
            if old and folder.name != str(best):
                shutil.rmtree(folder, ignore_errors=True)
        for file in self.path.glob("journal-*.jsonl"):
            if file != self.journal(commit.number):
                file.unlink(missing_ok=True)
        for file in (self.path / "weights").iterdir():
            if file.name.endswith(".safetensors") and int(file.stem) < commit.weights.version - keep:
                file.unlink(missing_ok=True)

    def last_commit(self) -> Commit | None:
        """The manifest, its checkpoint verified.

        Raises:
            StoreError: a file of the checkpoint is missing or was changed.
        """
        data = self.read_json("commit.json")
        if data is None:
            return None
        commit = Commit(**{**data, "weights": WeightsRef(**data["weights"])})
        found = checksums(self.checkpoint(commit.number))
        if found != commit.checksums:
            raise StoreError("the checkpoint does not match its manifest", where=str(self.checkpoint(commit.number)))
        return commit

    def journal(self, number: int) -> Path:
        return self.path / f"journal-{number}.jsonl"

    def append(self, path: Path, rows: Iterable[dict[str, Any]]) -> None:
        """Add lines; each is whole or absent after a kill (readers drop a cut last line)."""
        text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
        if text:
            with _writing(path), path.open("a", encoding="utf-8") as file:
                file.write(text)

    def lines(self, path: Path) -> list[dict[str, Any]]:
        """Rows of a line file; a last line cut by a kill is removed from the file, so appending stays safe."""
        if not path.exists():
            return []
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) != len(data):
            os.truncate(path, len(whole))
        return [json.loads(line) for line in whole.splitlines()]


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        fix = "make room, then resume: what was committed and journaled is kept"
        message = "the run folder cannot be written"
        raise StoreError(message, where=str(path), found=error.strerror, fix=fix) from error


def checksums(folder: Path) -> dict[str, str]:
    """sha256 of every file below a folder, by relative path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    return {path.relative_to(folder).as_posix(): sha256_of(path) for path in files}


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
