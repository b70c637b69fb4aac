"""A scripted episode gives the same trace in machines as in every other kind of sandbox.

One tool takes ruff, which is no package of Debian's: the image is the usual one with this machine's ruff laid into it.
"""

import os
import shutil
import subprocess
import sysconfig
import tempfile

import pytest

from composer_plugin_microvm.config import QemuConfig
from composer_plugin_microvm.image import alone, cache_folder, image
from composer_plugin_microvm.plugin import composer_sandboxes
from composer_testing.contracts.sandbox_replay import ReplayContract


class TestQemu(ReplayContract):
    spec = next(iter(composer_sandboxes()))

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def image_with_ruff(cls):
        """Kept in the cache folder beside the usual image, as that is."""
        ruff = shutil.which("ruff", path=sysconfig.get_path("scripts")) or shutil.which("ruff")
        assert ruff, "no ruff here; fix: pip install ruff"
        usual = image(QemuConfig(), print)
        root = cache_folder(QemuConfig()) / f"ruff-{os.stat(ruff).st_mtime_ns}-{usual.root.parent.name}"
        with alone(root.with_suffix(".lock")):
            if not root.exists():
                with tempfile.TemporaryDirectory(dir=root.parent) as made:
                    unpack = ["unsquashfs", "-q", "-n", "-no-xattrs", "-d", f"{made}/root", usual.root]
                    subprocess.run(unpack, check=True)
                    shutil.copy(ruff, f"{made}/root/usr/local/bin/ruff")
                    os.rename(f"{made}/root", root)
        cls.config = QemuConfig(rootfs=str(root))
