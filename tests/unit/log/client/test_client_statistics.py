"""What a client counts, shows as metrics, and logs when something goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from waltz_log.client import ClientSettings, Draft, Lock, LockConflict, NotAppended, OutcomeUnknown, Transaction, TransactionContext
from waltz_log.client.base.incidents import LINES_MAX, PERIOD_S, STORM_MIN, STORM_S, ConflictStorm, Incidents
from waltz_log.metrics import CLIENT, OUTBOX, WaltzCollector
from waltz_log.monitoring.families import Family
from waltz_log.outbox.statistics import OutboxStatistics
from waltz_log.testing import InMemoryCluster, SyncInMemoryCluster

SETTINGS = ClientSettings(append_timeout_s=20, retry_base_s=0.001, retry_cap_s=0.05)
SEAT = Lock("seat", "12A")
PATIENCE_S = 30.0


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.01)


async def test_each_outcome_is_counted_and_nothing_stays_pending() -> None:
    async with InMemoryCluster(partitions=2) as cluster, await cluster.client(SETTINGS) as client:
        assert client.statistics().partitions == {}
        await client.append_many(0, [Draft(b"x")] * 5)
        await client.append(0, b"x", write_locks=[SEAT], high_water_mark=-1)
        with pytest.raises(LockConflict):
            await client.append(0, b"x", write_locks=[SEAT], high_water_mark=-1)
        found = client.statistics()
        assert set(found.partitions) == {0}
        each = found.partitions[0]
        assert (each.appended, each.rejected, each.not_appended, each.unknown) == (6, 1, 0, 0)
        assert each.frames == 3  # five together, then one and one
        assert (each.pending, each.pending_bytes, each.in_flight, each.mounted, each.mounts) == (0, 0, 0, True, 1)
        assert (found.client_id, found.max_pending) == (client.client_id, SETTINGS.max_pending)


async def test_what_waits_for_a_majority_is_pending_in_flight_and_unknown_at_the_end() -> None:
    async with InMemoryCluster(storages=3) as cluster:
        client = await cluster.client(ClientSettings(append_timeout_s=0.5, close_timeout_s=0.1))
        await client.append(0, b"x")
        await cluster.kill_storage("storage-0")
        await cluster.kill_storage("storage-1")
        sent = await client.enqueue(0, Draft(b"held"))
        await _until(lambda: client.statistics().partitions[0].in_flight == 1)
        each = client.statistics().partitions[0]
        assert (each.pending, each.appended) == (1, 1)
        assert each.pending_bytes > 0
        with pytest.raises(OutcomeUnknown):
            await sent
        assert client.statistics().partitions[0].unknown == 1
        await client.close()


async def test_an_append_that_was_never_sent_counts_as_not_appended() -> None:
    async with InMemoryCluster(servers=1) as cluster:
        client = await cluster.client(ClientSettings(append_timeout_s=0.2, close_timeout_s=0.1))
        await cluster.kill_server("server-0")
        with pytest.raises(NotAppended):
            await client.append(0, b"x")
        each = client.statistics().partitions[0]
        assert (each.not_appended, each.unknown, each.mounted) == (1, 0, False)
        await client.close()


async def test_a_lost_connection_is_counted_and_logged_once_with_its_end() -> None:
    async with InMemoryCluster(servers=1) as cluster, await cluster.client(SETTINGS) as client:
        await client.append(0, b"x")
        with capture_logs() as logs:
            await cluster.kill_server("server-0")
            await _until(lambda: client.statistics().partitions[0].disconnects == 1)
            await cluster.start_server("server-0")
            await client.append(0, b"y")
        assert client.statistics().partitions[0].mounts == 2
        lines = [each for each in logs if each["event"].startswith("connection to the owner")]
        assert [(each["event"], each["log_level"], each["partition"]) for each in lines] == [
            ("connection to the owner lost", "warning", 0),
            ("connection to the owner restored", "info", 0),
        ]
        assert lines[1]["without_s"] > 0


async def test_a_retry_after_a_conflict_is_counted() -> None:
    async with InMemoryCluster() as cluster, await cluster.client(SETTINGS) as client:

        async def apply(transactions: list[Transaction]) -> None:
            del transactions

        @client.transactional(await client.follow(0, apply))
        async def book(tx: TransactionContext) -> None:
            tx.append(b"x", write_locks=[SEAT])

        assert await book() is not None
        assert client.statistics().retries == 0
        cluster.conflict_next_append()
        assert await book() is not None
        assert client.statistics().retries == 1


def test_a_client_logs_few_lines_of_an_event_in_a_period_and_counts_the_others() -> None:
    incidents = Incidents()
    with capture_logs() as logs:
        for partition in range(100):
            incidents.lost(partition, 1.0, "gone", 7)
        incidents.storm(3, 2.0, 200, 300)
        incidents.lost(7, 1.0 + PERIOD_S, "gone", 7)
        incidents.lost(8, 1.0 + 2 * PERIOD_S, "gone", 7)
    lost = [(each["partition"], each["left_out"]) for each in logs if each["event"] == "connection to the owner lost"]
    assert lost == [*((partition, 0) for partition in range(LINES_MAX)), (7, 100 - LINES_MAX), (8, 0)]
    assert [each["event"] for each in logs].count("most appends conflict") == 1


def test_a_storm_is_many_conflicts_that_are_most_of_what_was_decided_in_a_period() -> None:
    storm = ConflictStorm(0.0)
    assert storm.judge(STORM_S / 2, 10 * STORM_MIN, 0) is None
    assert storm.judge(STORM_S, 10 * STORM_MIN, 10 * STORM_MIN) == (10 * STORM_MIN, 20 * STORM_MIN)
    assert storm.judge(2 * STORM_S, 11 * STORM_MIN, 20 * STORM_MIN) is None  # a tenth
    assert storm.judge(3 * STORM_S, 12 * STORM_MIN - 1, 20 * STORM_MIN) is None  # all, and few


def _samples(collector: WaltzCollector) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    registry = CollectorRegistry()
    registry.register(collector)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {(each.name, frozenset(each.labels.items())): each.value for family in families for each in family.samples}


def test_a_blocking_client_shows_the_same_as_metrics_also_after_it_was_closed() -> None:
    collector = WaltzCollector()
    with SyncInMemoryCluster(partitions=2) as cluster:
        with cluster.client(SETTINGS) as client:
            collector.add_client(client, "orders")
            client.append(1, b"x")
            labels = frozenset({("client", "orders"), ("partition", "1")})
            assert _samples(collector)["waltz_client_appended_total", labels] == 1
            assert _samples(collector)["waltz_client_mounted", labels] == 1
        assert _samples(collector)["waltz_client_mounted", labels] == 0


class _Outbox:
    def statistics(self) -> OutboxStatistics:
        return OutboxStatistics(1, 2, 3, 4, True, 5, 600, 7.5, 8, 9, 10, 11, 1.0, "", 12)


def test_an_outbox_shows_what_it_owes() -> None:
    collector = WaltzCollector()
    collector.add_outbox(_Outbox())
    samples = {name: value for (name, labels), value in _samples(collector).items() if labels == frozenset({("outbox", "default")})}
    assert samples == {
        "waltz_outbox_connected": 1,
        "waltz_outbox_intents": 5,
        "waltz_outbox_size_bytes": 600,
        "waltz_outbox_oldest_intent_seconds": 7.5,
        "waltz_outbox_in_doubt_intents": 8,
        "waltz_outbox_dead_letters": 9,
        "waltz_outbox_submitted_total": 10,
        "waltz_outbox_forwarded_total": 11,
        "waltz_outbox_connections_total": 12,
    }


def test_every_metric_follows_the_conventions() -> None:
    families: list[Family[Any]] = [*CLIENT, *OUTBOX]
    assert len({family.name for family in families}) == len(families)
    for family in families:
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name
        assert family.meaning.endswith((".", ").", "`.", "none."))
