"""The two programs as files that a driver can start, and settings that name them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from composer_plugin_microvm.config import FirecrackerConfig, QemuConfig
from composer_plugin_microvm.image import cache_folder, image

SCRIPT = """#!{python} -IS
import sys
sys.path[:] = {path!r}
from strict.{module} import main
main(sys.argv[1:], open({loopback!r}, "rb").read())
"""


def programs(folder: Path) -> FirecrackerConfig:
    """Settings of a driver whose cache is in the folder, with the image of machines of QEMU."""
    made = image(QemuConfig(), lambda text: None)
    cache = folder / "cache"
    cache.mkdir()
    (cache / made.root.parent.name).symlink_to(made.root.parent)
    path = [str(Path(__file__).parent.parent), *sys.path]
    words: dict[str, Any] = {"python": sys.executable, "path": path}
    words["loopback"] = str(made.root.parent / "modules" / "vsock_loopback.ko")
    for name, module in (("firecracker", "server"), ("jailer", "jailer")):
        (folder / name).write_text(SCRIPT.format(module=module, **words))
        (folder / name).chmod(0o755)
    jailer = str(folder / "jailer") if os.geteuid() == 0 else ""
    assert cache_folder(QemuConfig()) != cache
    return FirecrackerConfig(firecracker=str(folder / "firecracker"), jailer=jailer, cache=str(cache))
