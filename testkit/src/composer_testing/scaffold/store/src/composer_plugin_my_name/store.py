"""Blobs as rows of one SQLite file: a run of a hundred thousand traces is one file to copy.

A blob's URI is its key, so a run folder that was moved still finds its blobs. Each call is a transaction on a
connection of its own: any number of threads and processes may read and write, and SQLite makes them take turns.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from composer_core import BuildContext, NoConfig
from composer_core.errors import StoreError

WAIT_S = 60.0
"""How long a call waits for its turn."""


class MyNameStore:
    """`protocols.Store`: `put` is atomic, a reader sees all of a blob or none."""

    def __init__(self, config: NoConfig, build: BuildContext) -> None:
        folder = build.run_dir / "my-name"
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "blobs.sqlite"
        with self._transaction() as db:
            db.execute("CREATE TABLE IF NOT EXISTS blobs (key TEXT PRIMARY KEY, data BLOB NOT NULL)")

    def put(self, key: str, data: bytes) -> str:
        """Replaces what was there; returns the URI."""
        if "\0" in key or any(part in ("", ".", "..") for part in key.split("/")):
            raise StoreError("a blob's key is parts joined by '/', none empty, '.' or '..'", found=repr(key))
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO blobs VALUES (?, ?)", (key, data))
        return key

    def get(self, uri: str) -> bytes:
        """The blob; StoreError when there is none."""
        with self._transaction() as db:
            found = db.execute("SELECT data FROM blobs WHERE key = ?", (uri,)).fetchone()
        if found is None:
            raise StoreError(f"no blob {uri!r}", where=str(self._path))
        return bytes(found[0])

    def list(self, prefix: str) -> list[str]:
        """URIs that start with `prefix`, sorted."""
        with self._transaction() as db:
            rows = db.execute("SELECT key FROM blobs WHERE substr(key, 1, ?) = ? ORDER BY key", (len(prefix), prefix))
            return [key for (key,) in rows]

    def delete(self, uri: str) -> None:
        """Deleting a blob that is not there is no error."""
        with self._transaction() as db:
            db.execute("DELETE FROM blobs WHERE key = ?", (uri,))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        db = sqlite3.connect(self._path, timeout=WAIT_S)
        try:
            with db:
                yield db
        finally:
            db.close()
