"""Who gets the next episode: the least loaded, and a group's members the replica that has their prompt."""

import random

import pytest

from composer_plugin_ray import dispatch
from composer_plugin_ray.dispatch import Dispatch, Places


def places(*names: str) -> Places:
    made = Places()
    for name in names:
        made.add(name)
    return made


def test_the_least_loaded_is_next_and_equals_take_turns():
    rows = places("a", "b", "c")
    assert [rows.take().name for _ in range(6)] == ["a", "b", "c", "a", "b", "c"]
    rows.give_back(rows._by_name["b"])
    assert rows.take().name == "b"


def test_it_always_is_the_least_loaded_whatever_comes_and_goes():
    source, rows, out = random.Random(0), places("p0"), []
    for number in range(5000):
        what = source.random()
        if what < 0.45 and len(rows):
            least = min(rows.loads().values())
            place = rows.take()
            assert place.load == least + 1
            out.append(place)
        elif what < 0.9 and out:
            rows.give_back(out.pop(source.randrange(len(out))))
        elif what < 0.95:
            rows.add(f"p{number % 40}")
        else:
            rows.remove(f"p{source.randrange(40)}")
        assert all(load >= 0 for load in rows.loads().values())


def test_what_a_process_was_given_in_an_earlier_life_is_not_given_back_to_the_next():
    rows = places("a", "b")
    old = rows.take("a")
    rows.add("a")
    rows.give_back(old)
    assert rows.loads() == {"a": 0, "b": 0}


def test_nobody_living_is_a_lookup_error_and_takes_nothing():
    with pytest.raises(LookupError):
        Places().take()
    made = Dispatch(replicas=places("r"))
    with pytest.raises(LookupError):
        made.place("g")
    assert made.replicas.loads() == {"r": 0}


def test_a_group_stays_with_the_replica_of_its_first_member_and_workers_are_shared_out():
    made = Dispatch(places("w0", "w1"), places("r0", "r1"))
    first = [made.place("g0") for _ in range(4)]
    second = [made.place("g1") for _ in range(4)]
    assert {placement.replica.name for placement in first} == {"r0"}
    assert {placement.replica.name for placement in second} == {"r1"}
    assert made.workers.loads() == {"w0": 4, "w1": 4}
    for placement in first + second:
        made.ended(placement)
    assert made.place("g1").replica.name == "r1", "also when its other members have ended"


def test_a_group_whose_replica_vanished_moves_and_stays_there():
    made = Dispatch(places("w"), places("r0", "r1"))
    assert made.place("g").replica.name == "r0"
    made.replicas.remove("r0")
    assert made.place("g").replica.name == "r1"
    made.replicas.add("r0")
    assert made.place("g").replica.name == "r1"


def test_homes_are_forgotten_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(dispatch, "HOMES", 2)
    made = Dispatch(places("w"), places("r0", "r1"))
    for group in ("a", "b", "a", "c"):
        made.place(group)
    assert set(made._homes) == {"a", "c"}
