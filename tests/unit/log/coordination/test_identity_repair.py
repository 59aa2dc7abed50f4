"""An entry that is unreadable stops none of its neighbors, and `waltz cluster repair` repairs client ids, their key and outboxes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from waltz_log.client import ClientSettings
from waltz_log.coordination.identity_repair import SKIPPED, repair_identities
from waltz_log.coordination.released import release_partition
from waltz_log.coordination.survey import survey
from waltz_log.core.client_ids import BLOCK_MIN, CLIENT_ID_MAX
from waltz_log.core.metadata import (
    ASSIGNMENT,
    CLIENT_IDS,
    CLUSTER,
    OUTBOXES,
    REPLICAS,
    SERVER_IDS,
    SERVERS,
    STORAGE_NODES,
    Assignment,
    PartitionMetadata,
    ServerEntry,
    StorageNodeEntry,
    partition_path,
)
from waltz_log.core.topics.catalogue import CATALOGUE, Catalogue
from waltz_log.core.topics.subscribers import SUBSCRIBERS, Subscriber, subscriber_path
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import Unavailable
from waltz_log.security.tickets import TICKET_KEY, TicketKey
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.memory_coordinator import MemoryEnsemble
from waltz_log.testing.virtual_time import run_in_virtual_time

SECRET = bytes(range(32))
GARBAGE = (
    b"",
    b"x",
    b"{}",
    b"[" * 9999,
    b"null",
    b'{"address":5,"start":1}',
    b'{"address":"a","start":"1"}',
    b'{"server_id":"1","address":"a","preferred":[]}',
)


def _in_a_cluster(test: Callable[[MemoryCluster], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        await _stocked(cluster)
        await test(cluster)
        await cluster.stop()

    run_in_virtual_time(main())


async def _stocked(cluster: MemoryCluster) -> None:
    async with asyncio.timeout(60):
        while any(server.statistics().client_ids.left == 0 for server, _ in cluster.servers.values()):  # type: ignore[union-attr]
            await asyncio.sleep(0.05)


async def _appends(cluster: MemoryCluster, data: bytes) -> int:
    client = await cluster.connect(ClientSettings(retry_base_s=0.01, retry_cap_s=0.1))
    try:
        await client.append(0, data, timeout_s=60)
        return client.client_id
    finally:
        await client.close()


@pytest.mark.parametrize("garbage", GARBAGE)
def test_an_entry_that_is_none_stops_neither_servers_nor_commands_and_is_removed(garbage: bytes) -> None:
    async def main(cluster: MemoryCluster) -> None:
        session = cluster.ensemble.session()
        wrong = [f"{folder}/broken" for folder in (SERVERS, STORAGE_NODES, SUBSCRIBERS, OUTBOXES)]
        for path in wrong:
            await session.create(path, garbage)
        await cluster.kill_server("server-0")
        await cluster.start_server("server-0")
        await _stocked(cluster)
        await _appends(cluster, b"goes on")
        found = await survey(session, cluster.network, "memory/test")
        assert [each.server_id for each in found.servers] == [2]
        planned = await repair_identities(session, cluster.network, cluster.key.bytes, SECRET, dry_run=True)
        assert [each.partition(" ")[0] for each in planned] == [f"{OUTBOXES}/broken"]
        assert await repair_identities(session, cluster.network, cluster.key.bytes, SECRET) == planned
        assert await repair_identities(session, cluster.network, cluster.key.bytes, SECRET) == []
        assert await session.get(f"{OUTBOXES}/broken") is None

    _in_a_cluster(main)


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_a_partition_of_a_deleted_topic_is_released_beside_a_subscriber_that_is_none(garbage: bytes) -> None:
    session = MemoryEnsemble().session()
    name = TopicName("shop", "orders")
    deleted, _ = Catalogue().with_new(name, type="regular", partitions=1, pool=range(1), now_ms=0)[0].without(name)
    await session.create(CATALOGUE, deleted.to_bytes())
    await session.create(SUBSCRIBERS, b"")
    await session.create(subscriber_path("broken"), garbage)
    await session.create(subscriber_path("reader"), Subscriber("reader", {0: 5, 1: 7}, {}, 0, 0).to_bytes())
    await release_partition(session, 0)
    catalogue, reader, broken = [await session.get(path) for path in (CATALOGUE, subscriber_path("reader"), subscriber_path("broken"))]
    assert catalogue is not None
    assert reader is not None
    assert broken is not None
    assert 0 not in Catalogue.from_bytes(catalogue.data).retired
    assert Subscriber.from_bytes(reader.data).marks == {1: 7}
    assert broken.data == garbage


OF_NO_PARTITION = (
    *GARBAGE,
    b'{"generation":"1","session":2,"replicas":{}}',
    b'{"generation":1,"session":null,"replicas":{}}',
    b'{"generation":1,"session":2,"replicas":{"a":["1",null]}}',
)


@pytest.mark.parametrize("garbage", OF_NO_PARTITION)
def test_a_survey_shows_the_others_where_the_metadata_of_a_partition_cannot_be_read(garbage: bytes) -> None:
    async def main(cluster: MemoryCluster) -> None:
        session = cluster.ensemble.session()
        await session.set(partition_path(0), garbage, -1)
        (state,) = (await survey(session, cluster.network, "memory/test")).partitions
        assert state.accepts_appends, "its owner reports what the coordinator does not"

    _in_a_cluster(main)


@pytest.mark.parametrize("garbage", OF_NO_PARTITION)
def test_metadata_of_a_partition_that_cannot_be_read_keeps_no_other_one_without_an_owner(garbage: bytes) -> None:
    async def main() -> None:
        cluster = MemoryCluster(partitions=2, servers=1)
        session = cluster.ensemble.session()
        await session.create(partition_path(0), garbage)
        await session.create(partition_path(1), PartitionMetadata(5, 0, {}).to_bytes())
        await cluster.start()
        async with asyncio.timeout(60):
            while (node := await session.get(ASSIGNMENT)) is None or Assignment.from_bytes(node.data).address_of(1) is None:
                await asyncio.sleep(0.05)
        assert Assignment.from_bytes(node.data).partitions[1].generation > 5
        await cluster.stop()

    run_in_virtual_time(main())


@pytest.mark.parametrize("path", [CLUSTER, ASSIGNMENT, REPLICAS])
@pytest.mark.parametrize("garbage", [b"", b"[" * 9999, b"null", b"[]"])
def test_a_command_names_the_value_that_it_cannot_read(path: str, garbage: bytes) -> None:
    async def main(cluster: MemoryCluster) -> None:
        session = cluster.ensemble.session()
        await session.set(path, garbage, -1)
        with pytest.raises(Unavailable, match=f"{path} in the coordinator cannot be read"):
            await survey(session, cluster.network, "memory/test")

    _in_a_cluster(main)


@pytest.mark.parametrize("counter", [b"", b"-1", b"9" * 5000, b"9" * 30])
def test_a_server_starts_where_the_counter_of_servers_is_none(counter: bytes) -> None:
    async def main(cluster: MemoryCluster) -> None:
        session = cluster.ensemble.session()
        await session.set(SERVER_IDS, counter, -1)
        await cluster.kill_server("server-0")
        await cluster.start_server("server-0")
        node = await session.get(SERVER_IDS)
        assert node is not None
        assert int(node.data) == 2, "one above the owner in the assignment"

    _in_a_cluster(main)


@pytest.mark.parametrize("counter", [b"", b"garbage", b"0", b"%d" % CLIENT_ID_MAX])
def test_a_counter_continues_above_all_that_storage_nodes_know(counter: bytes) -> None:
    async def main(cluster: MemoryCluster) -> None:
        session = cluster.ensemble.session()
        await session.set(CLIENT_IDS, counter, -1)
        (sentence,) = await repair_identities(session, cluster.network, cluster.key.bytes, SECRET, dry_run=True)
        assert "it continues above" in sentence
        await repair_identities(session, cluster.network, cluster.key.bytes, SECRET)
        node = await session.get(CLIENT_IDS)
        assert node is not None
        assert int(node.data) == BLOCK_MIN + SKIPPED
        await cluster.kill_server("server-0")
        await cluster.start_server("server-0")
        await _stocked(cluster)
        assert await _appends(cluster, b"after") == BLOCK_MIN + SKIPPED + 1

    _in_a_cluster(main)


def test_an_unreadable_key_is_replaced() -> None:
    async def main(cluster: MemoryCluster) -> None:
        session = cluster.ensemble.session()
        await session.set(TICKET_KEY, b"garbage", -1)
        assert len(await repair_identities(session, cluster.network, cluster.key.bytes, SECRET)) == 1
        node = await session.get(TICKET_KEY)
        assert node is not None
        assert TicketKey.from_bytes(node.data) == TicketKey(SECRET)

    _in_a_cluster(main)


@pytest.mark.parametrize("kind", [ServerEntry, StorageNodeEntry])
def test_an_entry_reads_what_it_wrote_and_no_other_types(kind: type[Any]) -> None:
    entry = ServerEntry(1, "a:1", (0, 2), ("a:2",)) if kind is ServerEntry else StorageNodeEntry("a:1", 3, ("a:2",))
    assert kind.from_bytes(entry.to_bytes()) == entry
    for garbage in GARBAGE:
        with pytest.raises((ValueError, KeyError, TypeError, RecursionError)):
            kind.from_bytes(garbage)
