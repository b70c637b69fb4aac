"""The store keeps its kind's contract, and what makes it worth having."""

import shutil
import sqlite3

import pytest

from composer_core import BuildContext, NoConfig
from composer_core.errors import StoreError
from composer_plugin_my_name.store import MyNameStore
from composer_testing.contracts.hook_modules import HookModuleContract
from composer_testing.contracts.stores import StoreContract


def store(run_dir) -> MyNameStore:
    return MyNameStore(NoConfig(), BuildContext(run_dir))


class TestHookModule(HookModuleContract):
    module = "composer_plugin_my_name.plugin"


class TestMyName(StoreContract):
    def build(self, run_dir):
        return store(run_dir)


def test_a_run_folder_that_was_moved_still_finds_its_blobs(tmp_path):
    uri = store(tmp_path / "run").put("traces/one", b"1")
    shutil.move(tmp_path / "run", tmp_path / "moved")
    assert store(tmp_path / "moved").get(uri) == b"1"


def test_a_write_that_never_committed_leaves_the_blob_as_it_was(tmp_path):
    blobs = store(tmp_path)
    uri = blobs.put("traces/one", b"old")
    other = sqlite3.connect(tmp_path / "my-name/blobs.sqlite")
    other.execute("UPDATE blobs SET data = ?", (b"new",))
    other.close()  # without a commit
    assert blobs.get(uri) == b"old"


def test_a_missing_blob_is_named_with_its_file(tmp_path):
    with pytest.raises(StoreError, match=r"(?s)traces/none.*blobs\.sqlite"):
        store(tmp_path).get("traces/none")
