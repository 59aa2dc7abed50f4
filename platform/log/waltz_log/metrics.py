"""Metrics of an application's clients and outboxes for `prometheus_client`. The extra `metrics` installs it; the client itself does not import it.

    collector = WaltzCollector()
    collector.add_client(client, "orders")
    prometheus_client.REGISTRY.register(collector)

Everything is read from `statistics()` at each scrape, in the thread that scrapes. An append calls nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from waltz_log.core.status.client_statistics import ClientPartitionStatistics, ClientStatistics
from waltz_log.errors import WaltzError
from waltz_log.monitoring.exposition import metric_of
from waltz_log.monitoring.families import Family, Kind, Samples
from waltz_log.outbox.statistics import OutboxStatistics

__all__ = ["CLIENT", "OUTBOX", "WaltzCollector"]

Clients = dict[str, ClientStatistics]
Outboxes = dict[str, OutboxStatistics]


class _ObservableClient(Protocol):
    def statistics(self) -> ClientStatistics: ...


class _ObservableOutbox(Protocol):
    def statistics(self) -> OutboxStatistics: ...


def _partition(name: str, kind: Kind, meaning: str, pick: Callable[[ClientPartitionStatistics], float]) -> Family[Clients]:
    def read(clients: Clients) -> Samples:
        for client, found in clients.items():
            for partition, each in found.partitions.items():
                yield (client, str(partition)), pick(each)

    return Family(name, kind, ("client", "partition"), meaning, read)


def _client(name: str, kind: Kind, meaning: str, pick: Callable[[ClientStatistics], float]) -> Family[Clients]:
    return Family(name, kind, ("client",), meaning, lambda clients: [((client,), pick(found)) for client, found in clients.items()])


def _outbox(name: str, kind: Kind, meaning: str, pick: Callable[[OutboxStatistics], float]) -> Family[Outboxes]:
    return Family(name, kind, ("outbox",), meaning, lambda outboxes: [((outbox,), pick(found)) for outbox, found in outboxes.items()])


CLIENT: tuple[Family[Clients], ...] = (
    _partition("waltz_client_mounted", "gauge", "1 if the owner of the partition accepts appends of the client now.", lambda each: int(each.mounted)),
    _partition("waltz_client_pending_appends", "gauge", "Appends without an outcome yet: in the queue or sent.", lambda each: each.pending),
    _client("waltz_client_pending_appends_limit", "gauge", "Their bound for each partition (`max_pending`).", lambda each: each.max_pending),
    _partition("waltz_client_pending_bytes", "gauge", "Their size.", lambda each: each.pending_bytes),
    _client("waltz_client_pending_limit_bytes", "gauge", "Its bound for each partition (`max_pending_bytes`).", lambda each: each.max_pending_bytes),
    _partition("waltz_client_in_flight_appends", "gauge", "Appends that were sent and have no outcome yet.", lambda each: each.in_flight),
    _partition("waltz_client_appended_total", "counter", "Appends that are in the log.", lambda each: each.appended),
    _partition("waltz_client_conflicts_total", "counter", "Appends that ended with `LockConflict`.", lambda each: each.rejected),
    _partition("waltz_client_not_appended_total", "counter", "Appends that ended with `NotAppended`.", lambda each: each.not_appended),
    _partition("waltz_client_unknown_outcomes_total", "counter", "Appends that ended with `OutcomeUnknown`.", lambda each: each.unknown),
    _partition("waltz_client_frames_total", "counter", "Messages with appends.", lambda each: each.frames),
    _partition("waltz_client_mounts_total", "counter", "Connections to an owner that became ready.", lambda each: each.mounts),
    _partition(
        "waltz_client_disconnects_total",
        "counter",
        "Connections to an owner that ended by an error, also because the partition moved.",
        lambda each: each.disconnects,
    ),
    _client(
        "waltz_client_retries_total",
        "counter",
        "Executions of transactions that were repeated after a conflict or a `NotAppended`.",
        lambda each: each.retries,
    ),
)

OUTBOX: tuple[Family[Outboxes], ...] = (
    _outbox("waltz_outbox_connected", "gauge", "1 if the outbox has a connection to the cluster.", lambda each: int(each.connected)),
    _outbox("waltz_outbox_intents", "gauge", "Intents that are not known to be in the log.", lambda each: each.depth),
    _outbox("waltz_outbox_in_doubt_intents", "gauge", "Intents that were sent and have no answer yet.", lambda each: each.in_doubt),
    _outbox("waltz_outbox_size_bytes", "gauge", "How much of `bytes_max` intents and dead letters use.", lambda each: each.size_bytes),
    _outbox("waltz_outbox_oldest_intent_seconds", "gauge", "The age of the oldest intent; 0 if there is none.", lambda each: each.oldest_age_s),
    _outbox("waltz_outbox_dead_letters", "gauge", "Intents that were given up and wait for a decision.", lambda each: each.dead),
    _outbox("waltz_outbox_submitted_total", "counter", "Intents that were submitted.", lambda each: each.submitted),
    _outbox("waltz_outbox_forwarded_total", "counter", "Intents that are in the log.", lambda each: each.forwarded),
    _outbox("waltz_outbox_connections_total", "counter", "Connections to the cluster that were opened.", lambda each: each.connections),
)


class WaltzCollector(Collector):
    """Register one of it. Names are the label `client` or `outbox`: choose them in the code, not from data. A closed outbox shows nothing more."""

    def __init__(self) -> None:
        self._clients: dict[str, _ObservableClient] = {}
        self._outboxes: dict[str, _ObservableOutbox] = {}

    def add_client(self, client: _ObservableClient, name: str = "default") -> None:
        """A `WaltzClient` or a `SyncWaltzClient`, instead of an earlier one of that name."""
        self._clients = {**self._clients, name: client}

    def add_outbox(self, outbox: _ObservableOutbox, name: str = "default") -> None:
        """An `Outbox` or a `SyncOutbox`, instead of an earlier one of that name. Scrape an `Outbox` in the thread of its event loop."""
        self._outboxes = {**self._outboxes, name: outbox}

    def collect(self) -> Iterator[Metric]:
        clients = {name: client.statistics() for name, client in self._clients.items()}
        for family in CLIENT:
            yield metric_of(family, family.samples(clients))
        outboxes: Outboxes = {}
        for name, outbox in self._outboxes.items():
            try:
                outboxes[name] = outbox.statistics()
            except WaltzError:  # it is closed
                continue
        for each in OUTBOX:
            yield metric_of(each, each.samples(outboxes))
