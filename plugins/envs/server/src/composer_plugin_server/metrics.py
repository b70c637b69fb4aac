"""Prometheus metrics of a node, in a registry of its own; values are read when they are asked for.

`FIGURES` says what there is, here and on the documentation's page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from composer_plugin_server.figures import ACTS, SHARES, STATES
from composer_plugin_server.keeper import states
from composer_plugin_server.node import Node

TYPE = CONTENT_TYPE_LATEST
PREFIX = "composer_envd"
PRESSURES = ("memory_some", "memory_full", "cpu_some", "io_full")
FAMILIES: Mapping[str, Any] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "summary": SummaryMetricFamily,
}
Values = Mapping[tuple[str, ...], tuple[float, ...]]
"""Labels -> the value; of a summary, count and sum."""


@frozen
class Figure:
    """One metric."""

    name: str
    """Without `PREFIX`; a counter's has "_total" behind it where it is shown, a summary's "_count" and "_sum"."""
    kind: str
    """A key of `FAMILIES`."""
    text: str
    labels: tuple[str, ...] = ()


FIGURES = (
    Figure("sandboxes", "gauge", f"Sandboxes by state: {', '.join(STATES)}.", ("state",)),
    Figure("queue_depth", "gauge", "Creations that wait."),
    Figure("queue_oldest_seconds", "gauge", "How long the first in line has waited."),
    Figure("starting", "gauge", "Creations under way."),
    Figure("live", "gauge", "Sandboxes that take room."),
    Figure("room", "gauge", "Sandboxes that may live."),
    Figure("memory_counted_bytes", "gauge", "Memory that live sandboxes are counted with."),
    Figure("memory_budget_bytes", "gauge", "Memory that they may be counted with."),
    Figure("leases", "gauge", "Clients."),
    Figure("started_seconds", "gauge", "When the server started, since the epoch."),
    Figure("pressure", "gauge", "Share of the last 10 s in which tasks stood still (PSI).", ("kind",)),
    Figure("available_bytes", "gauge", "Memory of the machine that is available."),
    Figure("refusals", "counter", "Creations refused.", ("reason",)),
    Figure("acts", "counter", "Acts that ended well.", ("act",)),
    Figure("failures", "counter", "Acts that failed; a path that is not there is an answer, no failure.", ("act",)),
    Figure("events", "counter", "orphans_reaped, leases_expired, sandboxes_expired, vanished (gone behind the server's "
           "back), stuck (could not be destroyed, and is tried again).", ("event",)),
    Figure("pool", "counter", "Creations of templates with a pool: hit, miss.", ("found",)),
    Figure("latency_seconds", "gauge", "Quantiles of the newest acts.", ("act", "quantile")),
    Figure("duration_seconds", "summary", f"Acts and the time they took: {', '.join(ACTS)}.", ("act",)),
)  # fmt: skip


class NodeCollector:
    """What `Metrics` registers."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        found = {**self._gate(), **self._pressure(), **self._acts()}
        for figure in FIGURES:
            family = FAMILIES[figure.kind](f"{PREFIX}_{figure.name}", figure.text, labels=figure.labels)
            for labels, values in sorted(found[figure.name].items()):
                family.add_metric(labels, *values)
            yield family

    def _gate(self) -> dict[str, Values]:
        node, gate = self._node, self._node.gate
        found = states(node)
        return {
            "sandboxes": {(name,): (found[name],) for name in STATES},
            "queue_depth": _one(gate.waiting),
            "queue_oldest_seconds": _one(gate.oldest_s),
            "starting": _one(gate.starting),
            "live": _one(gate.live),
            "room": _one(gate.limits.sandboxes),
            "memory_counted_bytes": _one(gate.memory_bytes),
            "memory_budget_bytes": _one(gate.limits.memory_bytes),
            "leases": _one(len(node.leases)),
            "started_seconds": _one(node.figures.started_s),
            "refusals": _each(gate.refused),
            "pool": _each({"hit": node.pools.hits, "miss": node.pools.misses}),
        }

    def _pressure(self) -> dict[str, Values]:
        """What this kernel does not tell is left out."""
        look = self._node.gate.pressure
        shares = {name: getattr(look, name, None) for name in PRESSURES}
        return {
            "pressure": _each({name: share / 100 for name, share in shares.items() if share is not None}),
            "available_bytes": _one(look.available_bytes) if look else {},
        }

    def _acts(self) -> dict[str, Values]:
        """Quantiles are of acts that are few enough to sort at every scrape."""
        figures = self._node.figures
        latencies: Values = {
            (act, str(share)): (shown[name] / 1e3,)
            for act, shown in figures.percentiles().items()
            for name, share in SHARES.items()
        }
        return {
            "acts": _each(figures.done),
            "failures": _each(figures.failed),
            "events": _each(figures.counts),
            "latency_seconds": latencies,
            "duration_seconds": {(act,): (figures.done[act], figures.total_s[act]) for act in ACTS},
        }


def _one(value: float) -> Values:
    return {(): (value,)}


def _each(values: Mapping[str, float]) -> Values:
    return {(name,): (value,) for name, value in values.items()}


class Metrics:
    def __init__(self, node: Node) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(NodeCollector(node))

    def text(self) -> bytes:
        return generate_latest(self._registry)
