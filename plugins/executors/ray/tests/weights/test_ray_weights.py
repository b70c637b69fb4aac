"""Weights travel whole or as differences, and arrive byte for byte, whatever is missed, damaged or killed."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from shipping import DRAWS, WORDS, Model, Place, noise, runs, write

from composer_core.errors import ConfigError, StoreError
from composer_core.types import WeightsRef
from composer_plugin_ray.config import RayConfig
from composer_plugin_ray.shipping import Sender, located
from composer_plugin_ray.weights.chain import Chain
from composer_plugin_ray.weights.codec import decode, encode
from composer_plugin_ray.weights.delta import FORMAT, apply_deltas, write_delta
from composer_plugin_ray.weights.layout import open_layout
from composer_plugin_ray.weights.receiver import WeightsDamaged
from composer_plugin_ray.weights.store import WeightStore


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


# --- pieces and files -----------------------------------------------------------------------------------------------


def changes(words: np.ndarray) -> Iterator[np.ndarray]:
    draws = DRAWS(1)
    for share in (0.0, 0.001, 0.04, 0.5, 1.0):
        changed = words.copy()
        where = draws.random(len(words)) < share
        changed[where] += draws.integers(1, 3, where.sum()).astype(words.dtype)
        yield changed
    yield ~words
    for place in (0, 254, 255, 256, 509, 510, 511, len(words) - 1):
        one = words.copy()
        one[place] ^= 1
        yield one


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_a_piece_is_rebuilt_word_for_word_however_much_of_it_changed(size: int) -> None:
    words = np.frombuffer(DRAWS(0).bytes(4096 * size), f"u{size}")
    for changed in changes(words):
        rebuilt = decode(encode(changed, words), words)
        assert rebuilt.tobytes() == changed.tobytes()


def test_a_damaged_piece_is_an_error_and_takes_no_memory() -> None:
    words = np.zeros(4096, np.uint16)
    piece = encode(DRAWS(0).integers(0, 3, 4096).astype(np.uint16), words)
    for cut in range(1, len(piece), 97):
        with pytest.raises(ValueError, match="damaged"):
            decode(piece[:cut], words)
    with pytest.raises(ValueError, match="damaged"):
        decode(encode(np.ones(8192, np.uint16), np.zeros(8192, np.uint16)), words)


def test_weights_after_a_small_step_are_a_twentieth_of_themselves(place: Place, tmp_path: Path) -> None:
    (_, before), (_, after) = place.model.step(), place.model.step()
    assert write_delta(after, before, tmp_path / "delta")
    assert (tmp_path / "delta").stat().st_size < after.stat().st_size / 20


@pytest.mark.parametrize("threads", [1, 3])
def test_several_differences_in_one_pass_give_the_last_file(tmp_path: Path, threads: int) -> None:
    model = Model(tmp_path, words=3 << 20)  # several pieces
    paths = [model.step()[1] for _ in range(4)]
    deltas = [tmp_path / f"delta-{number}" for number in range(3)]
    for delta, before, after in zip(deltas, paths, paths[1:], strict=False):
        write_delta(after, before, delta, threads)
    found = apply_deltas(paths[0], deltas, tmp_path / "made", threads)
    assert (tmp_path / "made").read_bytes() == paths[-1].read_bytes()
    assert found == hashlib.sha256(paths[-1].read_bytes()).hexdigest()


def test_memory_is_that_of_a_few_pieces_and_not_of_the_model(tmp_path: Path) -> None:
    model = Model(tmp_path, words=12 << 20)  # 24 MiB
    paths = [model.step()[1] for _ in range(2)]
    tracemalloc.start()
    write_delta(paths[1], paths[0], tmp_path / "delta")
    apply_deltas(paths[0], [tmp_path / "delta"], tmp_path / "made")
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 12 << 20


def test_no_difference_is_made_of_another_layout_or_of_one_that_is_not_smaller(tmp_path: Path) -> None:
    words = DRAWS(0).integers(0, 1 << 16, WORDS).astype(np.uint16)
    one = write(tmp_path / "one", {"w": ("BF16", words)})
    other = write(tmp_path / "other", {"v": ("BF16", words)})
    assert write_delta(other, one, tmp_path / "delta") is None
    before, after = (noise(tmp_path / f"noise-{seed}", seed) for seed in (1, 2))
    assert write_delta(after, before, tmp_path / "delta") is None


def test_a_file_that_is_cut_or_no_weights_at_all_is_refused(place: Place, tmp_path: Path) -> None:
    whole = place.model.step()[1].read_bytes()
    for number, data in enumerate((b"", b"what", whole[:-1], whole + b"\0", whole[:8] + b"[" + whole[9:])):
        path = tmp_path / f"bad-{number}"
        path.write_bytes(data)
        with pytest.raises(StoreError, match="not a whole safetensors file"):
            open_layout(path)


# --- the chain ------------------------------------------------------------------------------------------------------


@runs
async def test_every_version_arrives_byte_for_byte_and_whole_ones_come_as_often_as_was_said(tmp_path: Path) -> None:
    place = Place(tmp_path, full_every=4)
    receiver = place.receiver("sampler")
    for _ in range(9):
        await place.arrives(receiver, await place.publish())
    assert place.kinds() == "FdddFdddF"
    assert receiver.stats()["deltas"] == 6


@runs
async def test_a_delta_names_its_base_and_the_checksum_of_what_it_leads_to(place: Place) -> None:
    await place.publish()
    ref = await place.publish()
    data = place.shipped[1][1]
    assert (ref.version, ref.base, ref.format) == (1, 0, FORMAT)
    assert ref.checksum == hashlib.sha256(data).hexdigest()
    assert place.stored(ref).stat().st_size < len(data) / 10


@runs
async def test_weights_travel_whole_where_the_difference_is_not_smaller(place: Place) -> None:
    for version in (0, 1):
        path = noise(place.root / f"{version}.safetensors", version)
        ref = await place.publisher.publish(WeightsRef(version, path.name, ""), path)
        assert ref.base is None
        async with place.receiver("sampler").weights(ref) as found:
            assert found.read_bytes() == path.read_bytes()


@runs
async def test_a_receiver_that_joins_late_or_missed_versions_catches_up_in_one_go(tmp_path: Path) -> None:
    place = Place(tmp_path, full_every=100)
    early, late = place.receiver("early"), place.receiver("late")
    await place.arrives(early, await place.publish())
    ref = await place.publish(5)
    await place.arrives(early, ref)
    await place.arrives(late, ref)
    assert (early.stats()["whole"], early.stats()["deltas"]) == (1, 5)
    assert (late.stats()["whole"], late.stats()["deltas"]) == (1, 5)


@runs
async def test_a_receiver_started_anew_in_its_folder_goes_on_from_what_it_held(place: Place) -> None:
    await place.arrives(place.receiver("sampler"), await place.publish())
    (place.root / "sampler/left.part").write_bytes(b"of a kill")
    anew = place.receiver("sampler")
    await place.arrives(anew, await place.publish())
    assert (anew.stats()["whole"], anew.stats()["deltas"]) == (0, 1)
    assert len(list((place.root / "sampler").iterdir())) == 1


@runs
async def test_what_was_held_is_not_loaded_again_if_the_disk_damaged_it_meanwhile(place: Place) -> None:
    ref = await place.publish()
    await place.arrives(place.receiver("sampler"), ref)
    (held,) = (place.root / "sampler").iterdir()
    damage(held)
    await place.arrives(place.receiver("sampler"), ref)


@runs
async def test_a_receiver_and_the_publisher_hold_one_copy_each(place: Place) -> None:
    receiver = place.receiver("sampler")
    for _ in range(3):
        await place.arrives(receiver, await place.publish())
    assert len(list((place.root / "sampler").iterdir())) == 1
    (kept,) = (place.root / "publisher").iterdir()
    assert kept.samefile(place.root / "2.safetensors")  # a second name, no second copy


@pytest.mark.parametrize("url", ["memory://weights", "file://{root}/store", "{root}/store"])
@runs
async def test_any_file_system_can_be_the_store(tmp_path: Path, url: str) -> None:
    place = Place(tmp_path, url.format(root=tmp_path))
    receiver = place.receiver("sampler")
    for _ in range(3):
        await place.arrives(receiver, await place.publish())
    assert place.kinds() == "Fdd"
    for name in WeightStore(place.url).names():
        WeightStore(place.url).delete(name)  # memory lasts as long as the process


def test_a_store_that_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"(?s)no store for weights.*nosuch"):
        WeightStore("nosuch://bucket/weights")


# --- damage ---------------------------------------------------------------------------------------------------------


@runs
async def test_a_damaged_delta_is_refused_and_the_version_mended_by_a_whole_file(place: Place) -> None:
    receiver, late = place.receiver("sampler"), place.receiver("late")
    await place.arrives(receiver, await place.publish())
    ref = await place.publish()
    damage(place.stored(ref))
    with pytest.raises(WeightsDamaged, match="damaged"):
        await place.arrives(receiver, ref)
    mended = await place.publisher.mend()
    assert (mended.version, mended.base) == (1, None)
    await place.arrives(receiver, mended)
    ref = await place.publish()
    assert ref.base == 1
    await place.arrives(receiver, ref)
    await place.arrives(late, ref)


@runs
async def test_a_damaged_base_is_noticed_and_fetched_anew(place: Place) -> None:
    receiver = place.receiver("sampler")
    await place.arrives(receiver, await place.publish())
    (held,) = (place.root / "sampler").iterdir()
    damage(held)
    await place.arrives(receiver, await place.publish())
    assert receiver.stats()["refused"] == 1
    assert receiver.stats()["whole"] == 2


@runs
async def test_a_damaged_whole_file_or_record_is_refused(place: Place) -> None:
    ref = await place.publish()
    damage(place.stored(ref))
    with pytest.raises(WeightsDamaged, match="damaged"):
        await place.arrives(place.receiver("one"), ref)
    ref = await place.publish(1)
    (Path(place.url) / "1.json").write_bytes(b'{"version": 1')
    with pytest.raises(WeightsDamaged, match="record of weights 1"):
        await place.arrives(place.receiver("two"), ref)
    await place.arrives(place.receiver("three"), await place.publisher.mend())


@runs
async def test_a_version_made_anew_after_a_resume_is_never_mixed_up_with_its_namesake(place: Place) -> None:
    receiver = place.receiver("sampler")
    await place.publish(2)
    lost = await place.publish()
    await place.arrives(receiver, lost)
    place.publisher, place.model.version = place.publisher_anew(), 0
    ref = await place.publish(2)  # versions 1 and 2 again, with other bytes
    with pytest.raises(WeightsDamaged, match="another version"):
        await place.arrives(place.receiver("asks for what is lost"), lost)
    await place.arrives(receiver, ref)


# --- what stays -----------------------------------------------------------------------------------------------------


@runs
async def test_what_a_committed_version_needs_stays_and_all_else_goes(tmp_path: Path) -> None:
    committed: list[int] = []
    place = Place(tmp_path, full_every=3, committed=lambda: committed)
    await place.publish(2)
    committed[:] = [1]
    await place.publish(6)
    chain = Chain(WeightStore(place.url))
    assert place.kinds() == "FddFddFd"
    assert chain.versions() == [0, 1, 6, 7]
    await place.arrives(place.receiver("resumed"), place.shipped[1][0])
    committed[:] = [7]
    await place.publish()
    assert chain.versions() == [6, 7, 8]
    assert len(WeightStore(place.url).names()) == 6


# --- threads --------------------------------------------------------------------------------------------------------


@runs
async def test_the_event_loop_goes_on_while_weights_are_shipped(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    put_file, get_file = WeightStore.put_file, WeightStore.get_file

    def slow_put(self: WeightStore, name: str, path: Path) -> None:
        assert released.wait(30), "the loop never ran"
        put_file(self, name, path)

    def slow_get(self: WeightStore, name: str, path: Path) -> None:
        assert released.wait(30), "the loop never ran"
        get_file(self, name, path)

    monkeypatch.setattr(WeightStore, "put_file", slow_put)
    monkeypatch.setattr(WeightStore, "get_file", slow_get)
    publishing = asyncio.create_task(place.publish())
    await asyncio.sleep(0)
    released.set()
    ref = await publishing
    released.clear()
    arriving = asyncio.create_task(place.arrives(place.receiver("sampler"), ref))
    await asyncio.sleep(0)
    released.set()
    await arriving


@runs
async def test_who_gives_up_leaves_nothing_half_done(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, released = threading.Event(), threading.Event()
    put_file = WeightStore.put_file

    def held(self: WeightStore, name: str, path: Path) -> None:
        entered.set()
        assert released.wait(30)
        put_file(self, name, path)

    monkeypatch.setattr(WeightStore, "put_file", held)
    publishing = asyncio.create_task(place.publish())
    await asyncio.to_thread(entered.wait, 30)
    publishing.cancel()
    await asyncio.sleep(0)
    assert not publishing.done()
    released.set()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    ref = await place.publish()
    assert ref.base == 0
    await place.arrives(place.receiver("sampler"), ref)


@pytest.mark.parametrize(
    ("store", "found"),
    [
        ("shipped", "/runs/one/shipped"),
        ("../weights", "/runs/one/../weights"),
        ("/shared/weights", "/shared/weights"),
        ("s3://bucket/run", "s3://bucket/run"),
        ("~/weights", "~/weights"),
    ],
)
def test_a_store_that_is_named_without_its_place_lies_below_the_run_folder(store: str, found: str):
    assert located(store, Path("/runs/one")) == found


def test_a_run_finds_its_store_wherever_it_is_resumed_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = tmp_path / "run"
    stores = []
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        stores.append(Sender(RayConfig(weights_store="shipped"), run).store)
    assert stores == [f"file://{run}/shipped"] * 2
