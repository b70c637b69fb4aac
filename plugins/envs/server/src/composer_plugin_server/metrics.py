"""Prometheus metrics of a node, in a registry of its own; values are read when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from composer_plugin_server.figures import ACTS, SHARES, STATES
from composer_plugin_server.keeper import states
from composer_plugin_server.node import Node

TYPE = CONTENT_TYPE_LATEST
PREFIX = "composer_envd"
PRESSURES = ("memory_some", "memory_full", "cpu_some", "io_full")


class NodeCollector:
    """What `Metrics` registers."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        node, figures = self._node, self._node.figures
        yield _labelled(GaugeMetricFamily(f"{PREFIX}_sandboxes", "Sandboxes by state.", labels=["state"]),
                        {name: states(node)[name] for name in STATES})  # fmt: skip
        yield from self._gauges()
        yield _labelled(
            CounterMetricFamily(f"{PREFIX}_refusals", "Creations refused.", labels=["reason"]), node.gate.refused
        )
        yield _labelled(CounterMetricFamily(f"{PREFIX}_acts", "Acts that ended well.", labels=["act"]), figures.done)
        yield _labelled(CounterMetricFamily(f"{PREFIX}_failures", "Acts that raised.", labels=["act"]), figures.failed)
        yield _labelled(
            CounterMetricFamily(f"{PREFIX}_events", "What else happened.", labels=["event"]), figures.counts
        )
        pool = {"hit": node.pools.hits, "miss": node.pools.misses}
        yield _labelled(
            CounterMetricFamily(f"{PREFIX}_pool", "Creations of templates with a pool.", labels=["found"]), pool
        )
        yield from self._latencies()

    def _gauges(self) -> Iterator[Metric]:
        gate = self._node.gate
        values = {
            "queue_depth": ("Creations that wait.", gate.waiting),
            "queue_oldest_seconds": ("How long the first in line has waited.", gate.oldest_s),
            "starting": ("Creations under way.", gate.starting),
            "live": ("Sandboxes that take room.", gate.live),
            "room": ("Sandboxes that may live.", gate.limits.sandboxes),
            "memory_counted_bytes": ("Memory that live sandboxes are counted with.", gate.memory_bytes),
            "memory_budget_bytes": ("Memory that they may be counted with.", gate.limits.memory_bytes),
            "leases": ("Clients.", len(self._node.leases)),
            "started_seconds": ("When the server started, since the epoch.", self._node.figures.started_s),
        }
        for name, (text, value) in values.items():
            yield GaugeMetricFamily(f"{PREFIX}_{name}", text, value=value)
        if gate.pressure:
            found = {name: getattr(gate.pressure, name) for name in PRESSURES}
            told = {name: share / 100 for name, share in found.items() if share is not None}
            text = "Share of the last 10 s in which tasks stood still."
            yield _labelled(GaugeMetricFamily(f"{PREFIX}_pressure", text, labels=["kind"]), told)
            text = "Memory of the machine that is available."
            yield GaugeMetricFamily(f"{PREFIX}_available_bytes", text, value=gate.pressure.available_bytes)

    def _latencies(self) -> Iterator[Metric]:
        """Quantiles of the newest acts, which are few enough to sort at every scrape."""
        text = "Quantiles of the newest acts."
        family = GaugeMetricFamily(f"{PREFIX}_latency_seconds", text, labels=["act", "quantile"])
        sums = SummaryMetricFamily(f"{PREFIX}_duration_seconds", "Acts and the time they took.", labels=["act"])
        for act, found in self._node.figures.percentiles().items():
            for name, share in SHARES.items():
                family.add_metric([act, str(share)], found[name] / 1e3)
        for act in ACTS:
            sums.add_metric([act], self._node.figures.done[act], self._node.figures.total_s[act])
        yield family
        yield sums


def _labelled(family: Any, values: Mapping[str, float]) -> Metric:
    for name, value in sorted(values.items()):
        family.add_metric([name], value)
    made: Metric = family
    return made


class Metrics:
    def __init__(self, node: Node) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(NodeCollector(node))

    def text(self) -> bytes:
        return generate_latest(self._registry)
