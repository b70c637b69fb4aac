from pathlib import Path

from composer_core.protocols import BuildContext, Store
from composer_core.stores import TEMPORARY, FolderConfig, FolderStore
from composer_testing.contracts.stores import StoreContract


class TestFolderStore(StoreContract):
    def build(self, run_dir: Path) -> Store:
        return FolderStore(FolderConfig(), BuildContext(run_dir))


class TestSyncedFolderStore(StoreContract):
    def build(self, run_dir: Path) -> Store:
        return FolderStore(FolderConfig(sync=True), BuildContext(run_dir))


def _store(folder: Path) -> FolderStore:
    return FolderStore(FolderConfig(), BuildContext(folder))


def test_uris_are_relative_so_a_moved_run_finds_its_blobs(tmp_path):
    uri = _store(tmp_path / "here").put("traces/x.trace", b"words")
    assert uri == "traces/x.trace"
    (tmp_path / "here").rename(tmp_path / "there")
    assert _store(tmp_path / "there").get(uri) == b"words"


def test_a_killed_writer_leaves_nothing_that_is_listed(tmp_path):
    store = _store(tmp_path)
    uri = store.put("traces/x.trace", b"words")
    (tmp_path / "traces" / f"{TEMPORARY}dead").write_bytes(b"wor")
    assert store.list("traces/") == [uri]


def test_a_failed_put_leaves_no_partial_file(tmp_path):
    store = _store(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "inside").write_bytes(b"1")
    try:
        store.put("taken", b"2")
    except Exception as error:
        assert type(error).__name__ == "StoreError"
    else:
        raise AssertionError("a folder was replaced by a blob")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
