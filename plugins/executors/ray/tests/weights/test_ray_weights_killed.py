"""Killed before any file operation, publisher and receiver leave a chain that leads to every version it names."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from shipping import Place
from weights_killed import VERSIONS, committed

from composer_plugin_ray.weights.chain import Chain
from composer_plugin_ray.weights.store import PART, WeightStore

CHILDREN = Path(__file__).with_name("weights_killed.py")


async def usable(root: Path) -> int:
    """Whatever the chain names arrives in a new folder and in the killed one, and it goes on. The newest version."""
    place = Place(root, full_every=3, committed=lambda: committed(root))
    chain = Chain(WeightStore(place.url))
    versions = chain.versions()
    for version in versions:
        ref = chain.link(version).ref
        place.shipped[version] = ref, (root / f"{version}.safetensors").read_bytes()
        await place.arrives(place.receiver("new"), ref)
        await place.arrives(place.receiver("sampler"), ref)
    assert set(committed(root)) <= set(versions)
    for _ in range(max(versions, default=-1) + 1):
        place.model.step()
    for _ in range(2):
        await place.arrives(place.receiver("sampler"), await place.publish())
    left = {path.name for path in Path(place.url).iterdir()}
    named = {name for v in chain.versions() for name in (f"{v}.json", chain.link(v).uri)}
    assert left == named, "what the kill left was removed"
    assert not [name for name in left if name.startswith(PART)]
    return max(versions, default=-1)


def test_a_kill_before_any_file_operation_leaves_a_chain_that_leads_everywhere(tmp_path: Path) -> None:
    command = [sys.executable, str(CHILDREN), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    folders = sorted(tmp_path.iterdir(), key=lambda folder: int(folder.name.partition("-")[0]))
    newest = [asyncio.run(usable(folder)) for folder in folders]
    assert len(newest) > 10 * VERSIONS
    assert newest == sorted(newest), "a later kill never leaves less"
    assert (newest[0], newest[-1]) == (-1, VERSIONS - 1)
