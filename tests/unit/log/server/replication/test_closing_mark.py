"""The end of a store session in good order: what it records, who may rely on it, and what a crash before it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any  # the owners of a client, one method of which is replaced

import pytest

from waltz_log.core.metadata import PartitionMetadata, ReplicaState, partition_path
from waltz_log.core.recovery import ReplicaReport
from waltz_log.errors import Fenced
from waltz_log.server.replication.session_recovery import Recovery
from waltz_log.statistics import to_json
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time
from waltz_log.transport import waltz_pb2 as pb


async def _metadata(cluster: MemoryCluster) -> PartitionMetadata:
    node = await cluster.ensemble.session().get(partition_path(0))
    assert node is not None
    return PartitionMetadata.from_bytes(node.data)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def _last_ids(cluster: MemoryCluster) -> dict[str, int]:
    return {name: node.statistics().partitions[0].last_transaction_id for name, (node, _) in cluster.storages.items()}


def test_a_stopped_server_records_where_the_session_closed_and_the_next_owner_goes_on_there() -> None:
    async def scenario() -> None:
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        client = await cluster.connect()
        for number in range(5):
            await client.append(0, bytes([number]))
        await _until(lambda: set(_last_ids(cluster).values()) == {4})
        await cluster.stop_server("server-0")
        closed = await _metadata(cluster)
        assert set(closed.replicas.values()) == {ReplicaState(closed.session, 4)}
        await cluster.start_server("server-0")
        assert (await client.append(0, b"next")).transaction_id == 5
        opened = await _metadata(cluster)
        assert opened.session == closed.session + 1
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_a_replica_that_missed_the_tail_is_not_closed_and_copies_it() -> None:
    async def scenario() -> None:
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        client = await cluster.connect()
        await client.append(0, b"all have it")
        await _until(lambda: set(_last_ids(cluster).values()) == {0})
        await cluster.stop_storage("storage-1")
        for _ in range(3):
            await client.append(0, b"two have it")
        await cluster.stop_server("server-0")
        closed = await _metadata(cluster)
        assert closed.replicas == {
            "storage-0": ReplicaState(closed.session, 3),
            "storage-1": ReplicaState(closed.session, None),
            "storage-2": ReplicaState(closed.session, 3),
        }
        # With one of the two gone, the one that lags and the one that has it all must still come to the whole log.
        await cluster.stop_storage("storage-0")
        await cluster.start_storage("storage-1")
        await cluster.start_server("server-0")
        assert (await client.append(0, b"next")).transaction_id == 4
        await _until(lambda: _last_ids(cluster) == {"storage-1": 4, "storage-2": 4})
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_a_crash_before_the_mark_is_written_leaves_the_decision_to_the_vote() -> None:
    async def scenario() -> None:
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        client = await cluster.connect()
        for _ in range(4):
            await client.append(0, b"x")
        server, session = cluster.servers.pop("server-0")
        cluster.ensemble.cut(session)  # the drain goes well, the mark does not get through
        stopping = asyncio.ensure_future(server.stop())
        await asyncio.sleep(5)
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        cluster.ensemble.expire(session)
        assert {state.closing_high_water_mark for state in (await _metadata(cluster)).replicas.values()} == {None}
        await cluster.start_server("server-0")
        assert (await client.append(0, b"next")).transaction_id == 4
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_nothing_is_closed_while_a_block_is_undecided() -> None:
    async def scenario() -> None:
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        client = await cluster.connect()
        await client.append(0, b"x")
        await cluster.stop_storage("storage-0")
        await cluster.stop_storage("storage-1")
        undecided = await client.append_nowait(0, b"one has it")
        await _until(lambda: _last_ids(cluster) == {"storage-2": 1})
        await cluster.stop_server("server-0")
        assert {state.closing_high_water_mark for state in (await _metadata(cluster)).replicas.values()} == {None}
        for name in ("storage-0", "storage-1"):
            await cluster.start_storage(name)
        await cluster.start_server("server-0")
        assert (await undecided).transaction_id == 1
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_an_owner_that_was_followed_by_another_cannot_close_its_session() -> None:
    async def scenario() -> None:
        cluster = MemoryCluster(servers=2)
        await cluster.start()
        client = await cluster.connect()
        await client.append(0, b"x")
        owner = next(name for name, (server, _) in cluster.servers.items() if to_json(server.statistics())["partitions"])
        old = cluster.servers[owner][0]._partitions[0]._serving.store  # type: ignore[union-attr]
        metadata = await _metadata(cluster)
        newer = PartitionMetadata(metadata.generation + 1, metadata.session + 1, metadata.replicas)
        await cluster.ensemble.session().set(partition_path(0), newer.to_bytes(), -1)
        with pytest.raises(Fenced):
            await old.conclude()
        assert await _metadata(cluster) == newer
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_copies_restored_within_a_closed_session_cannot_outvote_what_it_recorded() -> None:
    """All three had 9; two came back with a copy that ends at 5, of the same session. A vote would resolve 5."""
    recorded = {name: ReplicaState(7, 9) for name in "abc"}
    recovery = Recovery(0, PartitionMetadata(2, 7, recorded), ("a", "b", "c"))
    for name in "ab":
        found = recovery.classify(name, ReplicaReport(7, 3, 5))
        assert not found.votes
        recovery.report(name, 5, found)
    assert recovery.resolved == 9
    assert recovery.source(9) == []  # both wait until a replica that has it comes back
    voted = Recovery(0, PartitionMetadata(2, 7, dict.fromkeys("abc", ReplicaState(7, None))), ("a", "b", "c"))
    for name in "ab":
        voted.report(name, 5, voted.classify(name, ReplicaReport(7, 3, 5)))
    assert voted.resolved == 5


def test_a_replica_that_dies_while_it_waits_for_a_majority_is_found_again_at_another_address() -> None:
    """It alone holds the tail and is clean; those that must copy from it have to learn where it came back."""

    async def scenario() -> None:
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        client = await cluster.connect()
        await client.append(0, b"all have it")
        await _until(lambda: set(_last_ids(cluster).values()) == {0})
        await cluster.stop_storage("storage-1")
        await client.append(0, b"two have it")
        await cluster.stop_server("server-0")
        await cluster.stop_storage("storage-0")
        await cluster.start_server("server-0")
        await _until(lambda: cluster.storages["storage-2"][0].statistics().partitions[0].fence == 2)
        await cluster.stop_storage("storage-2")
        await cluster.start_storage("storage-2")
        await cluster.start_storage("storage-1")
        assert (await client.append(0, b"next", timeout_s=30)).transaction_id == 2
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_a_server_that_is_stopped_while_the_coordinator_is_away_ends_in_good_order_and_soon() -> None:
    async def scenario() -> None:
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        client = await cluster.connect()
        await client.append(0, b"before")
        await client.close()
        server, session = cluster.servers["server-0"]
        cluster.ensemble.cut(session)
        began = asyncio.get_running_loop().time()
        await server.stop()
        assert asyncio.get_running_loop().time() - began < 6.0
        del cluster.servers["server-0"]
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_a_partition_that_is_handed_over_reports_no_mark() -> None:
    """The next owner may be ahead already. Found by seed 28: a reader that had seen the next owner's mark came back and received an older one."""

    async def scenario() -> None:
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        client = await cluster.connect()
        await client.append(0, b"data")
        partition = cluster.servers["server-0"][0]._owned(0)
        bound = partition.bound()
        assert bound is not None
        assert bound.high_water_mark == 0
        draining = asyncio.ensure_future(partition.drain(1.0))
        await asyncio.sleep(0)
        assert partition.bound() is None
        await draining
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_a_mark_of_an_older_session_than_one_seen_before_is_not_believed() -> None:
    class Answers:
        def __init__(self) -> None:
            self.left = [(3, 6), (2, 0), (2, 0), (4, 9)]

        async def call(self, _method: object, _request: pb.BoundRequest, *, timeout_s: float) -> pb.BoundResponse:
            session, mark = self.left.pop(0)
            return pb.BoundResponse(bounds=[pb.Bound(partition=0, session=session, high_water_mark=mark)])

    async def scenario() -> None:
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        client = await cluster.connect()
        owners: Any = client._owners
        answers, asked = Answers(), owners.call_channel
        owners.call_channel = lambda _: answers
        assert [await client.high_water_mark(0) for _ in range(2)] == [6, 9]
        assert answers.left == []
        owners.call_channel = asked
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())
