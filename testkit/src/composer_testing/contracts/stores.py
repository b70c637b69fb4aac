"""What every store must do (`protocols.Store`). Subclass `StoreContract` and override `build`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from composer_core.errors import StoreError
from composer_core.protocols import Store


class StoreContract:
    """Name your subclass `Test...`; each test gets a fresh store on an empty folder."""

    def build(self, run_dir: Path) -> Store:
        raise NotImplementedError("return a store that keeps its blobs below run_dir, or in a place of its own")

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return self.build(tmp_path)

    @pytest.mark.parametrize("data", [b"", b"\0\xff" * 1000, b"x" * (1 << 20)], ids=["empty", "binary", "large"])
    def test_what_was_put_is_got_back(self, store: Store, data: bytes) -> None:
        assert store.get(store.put("traces/one.trace", data)) == data

    def test_put_replaces(self, store: Store) -> None:
        store.put("a/b", b"old, and longer")
        assert store.get(store.put("a/b", b"new")) == b"new"

    def test_a_missing_blob_is_a_store_error(self, store: Store) -> None:
        uri = store.put("a/b", b"1")
        store.delete(uri)
        with pytest.raises(StoreError):
            store.get(uri)

    def test_list_is_by_prefix_and_sorted(self, store: Store) -> None:
        assert store.list("traces/") == []
        uris = [store.put(key, b"1") for key in ("traces/b", "traces/a/c")]
        other = store.put("weights/1", b"1")
        assert store.list("traces/") == sorted(uris)
        assert store.list("") == sorted([*uris, other])

    def test_delete_removes_one_blob_and_is_safe_twice(self, store: Store) -> None:
        kept, gone = store.put("a/kept", b"1"), store.put("a/gone", b"2")
        store.delete(gone)
        store.delete(gone)
        assert store.list("a/") == [kept]

    @pytest.mark.parametrize("key", ["../x", "a/../../x", "/x", "a//x", "", "a/.", "a\0b"])
    def test_a_key_cannot_leave_the_store(self, store: Store, key: str) -> None:
        with pytest.raises(StoreError):
            store.put(key, b"1")

    def test_a_reader_sees_all_of_a_blob_or_none_while_many_write(self, store: Store) -> None:
        sizes = (10, 200_000, 1_000, 50_000)
        blobs = [bytes([65 + index]) * size for index, size in enumerate(sizes)]
        uri = store.put("shared/blob", blobs[0])
        with ThreadPoolExecutor(5) as pool:
            writes = [pool.submit(store.put, "shared/blob", blobs[turn % 4]) for turn in range(80)]
            seen = [pool.submit(store.get, uri) for _ in range(40)]
            assert {write.result() for write in writes} == {uri}
            assert all(read.result() in blobs for read in seen)
        assert store.get(uri) in blobs
        assert store.list("shared/") == [uri]

    def test_concurrent_puts_of_many_keys_are_all_kept(self, store: Store) -> None:
        with ThreadPoolExecutor(4) as pool:
            uris = list(pool.map(lambda n: store.put(f"many/{n:03}", str(n).encode()), range(60)))
        assert store.list("many/") == uris
        assert [store.get(uri) for uri in uris] == [str(n).encode() for n in range(60)]
