"""Metrics as text for Prometheus: the families of the role, those of the process, and build information."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any  # families of every source

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from waltz_log.coordination.followed import FOLLOWED
from waltz_log.core.status.latency import BOUNDS_S, LatencyStatistics
from waltz_log.core.status.server_statistics import ServerStatistics
from waltz_log.core.status.storage_statistics import NodeStatistics
from waltz_log.monitoring.build_families import BUILD
from waltz_log.monitoring.families import Family, gauge, single
from waltz_log.monitoring.monitored import Finding, Role
from waltz_log.monitoring.readiness import is_ready
from waltz_log.monitoring.server_families import SERVER
from waltz_log.monitoring.storage_families import STORAGE
from waltz_log.monitoring.trace_families import TRACES
from waltz_log.monitoring.worker_families import WORKERS

__all__ = ["PROCESS", "ProcessMetrics", "exposition", "families_of", "metric_of"]


def _refused_values(found: Finding) -> Iterator[tuple[tuple[str, ...], int]]:
    """The names of the values, of which there are few, and not the paths."""
    refused = {} if found.statistics is None else found.statistics.refused_values or {}
    names = {"coordinator" for path in refused if path == "/"}
    names |= {each.name for path in refused for each in FOLLOWED.values() if path == each.path or path.startswith(f"{each.path}/")}
    return ((((name,)), 1) for name in sorted(names))


def _coordinator_expiry(found: Finding) -> float | None:
    return found.statistics.coordinator_certificate_expires_s if isinstance(found.statistics, ServerStatistics) else None


PROCESS: tuple[Family[Finding], ...] = (
    *BUILD,
    gauge("waltz_ready", (), "1 if `/readyz` answers 200.", single(lambda found: int(is_ready(found.checks)))),
    gauge("waltz_failed_checks", (), "Checks of `/readyz` that fail.", single(lambda found: sum(each.failed is not None for each in found.checks))),
    gauge(
        "waltz_statistics_up",
        (),
        "1 if the process gave its statistics in time, 0 if not, as while it starts: then only `process_*` and the metrics above are there.",
        single(lambda found: int(found.statistics is not None)),
    ),
    gauge(
        "waltz_certificate_expiry_timestamp_seconds",
        (),
        "When the certificate of the process expires, seconds since 1970. Absent without TLS.",
        single(lambda found: None if found.statistics is None else found.statistics.certificate_expires_s),
    ),
    gauge(
        "waltz_coordinator_certificate_expiry_timestamp_seconds",
        (),
        "When the first of the certificates that ZooKeeper's hosts serve expires, as a log server saw it. Absent without TLS.",
        single(_coordinator_expiry),
    ),
    gauge(
        "waltz_coordinator_value_refused",
        ("value",),
        "1 while a value of the coordinator is missing, cannot be read or is older than the one that the process knows and uses. Absent otherwise.",
        _refused_values,
    ),
)


def families_of(role: Role) -> tuple[Family[Any], ...]:
    """What a process of the role shows besides `process_*`, in their order."""
    return (*PROCESS, *(SERVER if role == "server" else STORAGE), *WORKERS, *TRACES)


def exposition(found: Finding, accept: str) -> tuple[bytes, str]:
    """The text and its content type, in the format that the client accepts."""
    encode, content_type = choose_encoder(accept)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(found))
    return encode(registry), content_type


class _Once(Collector):
    """The state of one scrape."""

    def __init__(self, found: Finding) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        yield from _metrics(PROCESS, self._found)
        statistics = self._found.statistics
        if isinstance(statistics, ServerStatistics):
            yield from _metrics(SERVER, statistics)
        elif isinstance(statistics, NodeStatistics):
            yield from _metrics(STORAGE, statistics)
        if statistics is not None and statistics.workers:
            yield from _metrics(WORKERS, statistics)
        if statistics is not None and statistics.traces is not None:
            yield from _metrics(TRACES, statistics)
        yield from _PROCESS_COLLECTOR.collect()


class ProcessMetrics(Collector):
    """What every process shows of itself: build, clock, `process_*`. For a registry of an application."""

    def collect(self) -> Iterator[Metric]:
        yield from _metrics(BUILD, None)
        yield from _PROCESS_COLLECTOR.collect()


_PROCESS_COLLECTOR = ProcessCollector(registry=CollectorRegistry())
"""Processor time, memory, open files and start of this process, read from /proc. Of a node with workers this is the supervisor."""


def _metrics(families: Sequence[Family[Any]], source: object) -> Iterator[Metric]:
    for family in families:
        yield metric_of(family, family.samples(source))


def metric_of(family: Family[Any], samples: Iterable[tuple[tuple[str, ...], float | LatencyStatistics]]) -> Metric:
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.meaning, labels=family.labels)
        for labels, latency in samples:
            assert isinstance(latency, LatencyStatistics)
            histogram.add_metric(labels, _buckets(latency), latency.sum_s)
        return histogram
    made: CounterMetricFamily | GaugeMetricFamily
    made = (CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily)(family.name, family.meaning, labels=family.labels)
    for labels, value in samples:
        assert not isinstance(value, LatencyStatistics)
        made.add_metric(labels, value)
    return made


def _buckets(latency: LatencyStatistics) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in BOUNDS_S), "+Inf"]
    return list(zip(bounds, map(float, accumulate(latency.counts)), strict=True))
