"""What this process may use of the machine: affinity and control groups count, not what the machine has.

Both layouts of control groups are read, the process's own group and all above it; a container that shows only its own
part of the tree is read as far as it can be seen. `root` is where the machine's files lie, for tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def text_of(path: Path) -> str:
    """A file's text, "" where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def cpu_quota(root: Path = ROOT) -> float | None:
    """Cores of the tightest quota, or None."""
    found = []
    for folder in _groups("cpu", root):
        words = text_of(folder / "cpu.max").split()
        words = words or [text_of(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        if all(word.isdigit() for word in words):
            found.append(int(words[0]) / int(words[1]))
    return min(found, default=None)


def memory_bytes(root: Path = ROOT) -> tuple[int, int, int | None]:
    """(total, available, limit of the tightest control group or None)."""
    lines = (line.partition(":") for line in text_of(root / "proc/meminfo").splitlines())
    sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in lines}
    files = (folder / name for folder in _groups("memory", root) for name in ("memory.max", "memory.limit_in_bytes"))
    caps = [int(text) for text in map(text_of, files) if text.isdigit()]
    total = sizes.get("MemTotal", 0)
    return total, sizes.get("MemAvailable", 0), min((cap for cap in caps if cap < total), default=None)


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Folders of this process's control group for a controller and of the groups above it."""
    mount = root / "sys/fs/cgroup"
    for line in text_of(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number != "0" and controller not in controllers.split(","):
            continue
        base = mount if number == "0" else mount / controller
        folder = base / path.lstrip("/")
        while base in (folder, *folder.parents):
            yield folder
            folder = folder.parent
