"""Which process gets the next episode: the least loaded worker, and the replica where its group is at home.

A group's members share their prompt, so the replica that first continued one of them has that prefix resident; the
others follow it there. A group without a home (its first member, or the replica has vanished) moves to the replica with
the fewest episodes. Among equals the one that has waited longest is next.

No Ray, no clock, nothing awaited: the executor and the simulation decide by this same code. Processes stand in rows by
load, so a decision costs the same for ten processes and for ten thousand. Rows and homes are ordered dicts: finding the
first key of a plain one steps over all that were deleted before it.
"""

from __future__ import annotations

from collections import OrderedDict

from attrs import Factory, define, frozen

HOMES = 1 << 16
"""Groups whose home is remembered; the longest unused are forgotten first."""


@define(eq=False)
class Place:
    """One process in one of its lives; a process started anew is another place of the same name."""

    name: str
    load: int = 0
    """Episodes in flight."""


@define
class Places:
    """Processes of one sort that live, by load."""

    _by_name: dict[str, Place] = Factory(dict)
    _rows: dict[int, OrderedDict[str, Place]] = Factory(dict)
    """Load -> its places, those that came to it first in front."""
    _least: int = 0
    """No place has a smaller load."""

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def loads(self) -> dict[str, int]:
        """Episodes in flight by process."""
        return {name: place.load for name, place in self._by_name.items()}

    def add(self, name: str) -> None:
        """A process lives from now on; one of that name is replaced."""
        self.remove(name)
        self._by_name[name] = Place(name)
        self._enter(self._by_name[name])

    def remove(self, name: str) -> None:
        """It has vanished, if it was here; what it was given need not be given back."""
        if place := self._by_name.pop(name, None):
            del self._rows[place.load][name]

    def take(self, name: str | None = None) -> Place:
        """One episode more for `name`, or for the least loaded.

        Raises:
            LookupError: none lives, or not the one that is named.
        """
        place = self._by_name[name] if name is not None else self._idlest()
        self._load(place, 1)
        return place

    def give_back(self, place: Place) -> None:
        """An episode has ended there, in whatever way."""
        if self._by_name.get(place.name) is place:
            self._load(place, -1)

    def _idlest(self) -> Place:
        if not self._by_name:
            raise LookupError("no process lives")
        while not self._rows.get(self._least):
            self._rows.pop(self._least, None)
            self._least += 1
        return next(iter(self._rows[self._least].values()))

    def _load(self, place: Place, by: int) -> None:
        del self._rows[place.load][place.name]
        place.load += by
        self._enter(place)

    def _enter(self, place: Place) -> None:
        row = self._rows.get(place.load)
        if row is None:
            row = self._rows[place.load] = OrderedDict()
        row[place.name] = place
        self._least = min(self._least, place.load)


@frozen
class Placement:
    """Where an episode runs, and where its tokens come from."""

    worker: Place
    replica: Place


@define
class Dispatch:
    """See the module's docstring."""

    workers: Places = Factory(Places)
    replicas: Places = Factory(Places)
    _homes: OrderedDict[str, str] = Factory(OrderedDict)
    """Group -> replica, the longest unused first."""

    def place(self, group: str) -> Placement:
        """Where the next episode of `group` goes.

        Raises:
            LookupError: no worker or no replica lives.
        """
        home = self._homes.pop(group, None)
        replica = self.replicas.take(home if home is not None and home in self.replicas else None)
        try:
            worker = self.workers.take()
        except LookupError:
            self.replicas.give_back(replica)
            raise
        self._homes[group] = replica.name
        if len(self._homes) > HOMES:
            self._homes.popitem(last=False)
        return Placement(worker, replica)

    def ended(self, placement: Placement) -> None:
        """The episode is over, lost or cancelled."""
        self.workers.give_back(placement.worker)
        self.replicas.give_back(placement.replica)
