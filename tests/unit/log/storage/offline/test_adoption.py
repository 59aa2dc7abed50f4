"""Directories that Java Waltz left, migrated and adopted by a new cluster: what is committed is found by recovery, and the log goes on."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from verification.conformance.java_directory import java_struct, write_java_directory
from waltz_log.cli.cluster.replicas import change_replicas
from waltz_log.coordination.cluster import adopt_cluster, create_cluster
from waltz_log.core.adoption import Adoption, DirectoryFacts, PartitionFacts, adopt
from waltz_log.core.metadata import ReplicaState
from waltz_log.core.recovery import ReplicaReport, opening_replicas
from waltz_log.core.replica_change import ReplicaChange
from waltz_log.errors import ClusterKeyMismatch, InvalidRequest, InvalidSetting
from waltz_log.server.replication.session_recovery import Recovery
from waltz_log.storage.offline.describe import describe
from waltz_log.storage.offline.migrate import migrate
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.disk import SimulatedDisk
from waltz_log.testing.virtual_time import run_in_virtual_time

KEY = UUID("a183fca3-ed08-410a-ad31-ca0dd3380748")
LOW_WATER_MARK = 40


def _data(count: int) -> list[list[bytes]]:
    return [[b"java-%d" % number for number in range(first, min(first + 50, count))] for first in range(0, count, 50)]


def _java(count: int, session: int = 3, partitions: int = 2) -> SimulatedDisk:
    """A directory whose partition 0 has so many transactions; partition 1 has 60."""
    disk = SimulatedDisk()
    entries = [(java_struct(session - 1, 10, 10, 1), java_struct(session, LOW_WATER_MARK, LOW_WATER_MARK, 2)) for _ in range(partitions)]
    write_java_directory(disk, KEY, entries, {partition: _data(count if partition == 0 else 60) for partition in range(partitions)})
    return disk


async def _adopted(disks: dict[str, SimulatedDisk], missing: tuple[str, ...] = ()) -> MemoryCluster:
    for disk in disks.values():
        migrate(disk)
    cluster = MemoryCluster(partitions=2, servers=2)
    cluster.key = KEY
    cluster.disks.update(disks)
    found = adopt({name: describe(disk) for name, disk in disks.items()}, missing)
    await adopt_cluster(cluster.ensemble.session(), name="main", found=found)
    for name in disks:
        await cluster.start_storage(name)
    for name in ("server-0", "server-1"):
        await cluster.start_server(name)
    return cluster


@pytest.mark.parametrize(
    ("counts", "sessions", "missing", "committed"),
    [
        ((120, 120, 120), (3, 3, 3), (), 120),
        ((120, 120, 80), (3, 3, 3), (), 120),
        ((120, 80, 80), (3, 3, 3), (), 120),  # nothing shows that the other two were not learners: 80..119 may be acknowledged
        ((120, 80), (3, 3), ("storage-2",), 120),  # they may have been on the missing one too
        ((120, 120, 130), (3, 3, 2), (), 120),  # an older session's tail is in no replica
        ((120, 80, 80), (3, 2, 2), (), 120),  # the newest session had one member left that is known; what it has may be acknowledged
    ],
)
def test_a_cluster_adopts_migrated_directories_serves_what_was_committed_and_appends(
    counts: tuple[int, ...], sessions: tuple[int, ...], missing: tuple[str, ...], committed: int
) -> None:
    async def scenario() -> None:
        disks = {f"storage-{place}": _java(count, session) for place, (count, session) in enumerate(zip(counts, sessions, strict=True))}
        cluster = await _adopted(disks, missing)
        client = await cluster.connect()
        assert client.parameters.key == KEY
        receipt = await client.append(0, b"ours", timeout_s=30)
        assert client.client_id > 1, "the original's clients had this id"
        assert receipt.transaction_id == committed
        seen = []
        async with asyncio.timeout(30):
            async for transaction in client.feed(0):
                seen.append(transaction)
                if transaction.transaction_id == committed:
                    break
        assert [each.data for each in seen] == [b"java-%d" % number for number in range(committed)] + [b"ours"]
        assert seen[-1].generation > seen[-2].generation
        assert (await client.append(1, b"ours", timeout_s=30)).transaction_id == 60
        async with asyncio.timeout(60):
            while any(node.statistics().partitions[0].last_transaction_id != committed for node, _ in cluster.storages.values()):
                await asyncio.sleep(0.1)
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_a_directory_of_the_original_must_be_migrated_before_it_is_adopted() -> None:
    with pytest.raises(InvalidSetting, match="waltz storage migrate"):
        describe(_java(10))


def _facts(key: UUID = KEY, partitions: int = 1, session: int = 3, last: int = 9) -> DirectoryFacts:
    return DirectoryFacts(key, tuple(PartitionFacts(session, session, 4, last, True, 2, 7) for _ in range(partitions)))


def test_directories_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ClusterKeyMismatch):
        adopt({"a": _facts(), "b": _facts(UUID(int=1))})
    with pytest.raises(InvalidRequest, match="numbers of partitions"):
        adopt({"a": _facts(), "b": _facts(partitions=2)})
    with pytest.raises(InvalidRequest, match="as missing: b"):
        adopt({"a": _facts(), "b": _facts()}, ["b"])
    with pytest.raises(InvalidRequest, match="no session"):
        adopt({"a": _facts(session=-1)})
    with pytest.raises(InvalidRequest, match="no storage directory"):
        adopt({})


def test_the_metadata_says_who_votes_and_where_the_others_closed() -> None:
    found = adopt({"a": _facts(session=5), "b": _facts(session=5), "c": _facts(session=4)}, ["d"])
    assert found.replicas == {0: ("a", "b", "c", "d")}
    assert found.metadata[0].replicas == {
        "a": ReplicaState(5, None),
        "b": ReplicaState(5, None),
        "d": ReplicaState(5, None),
    }
    assert (found.metadata[0].session, found.metadata[0].generation, found.client_id) == (5, 2, 7)
    assert DirectoryFacts.from_json(_facts().to_json()) == _facts()


def test_a_majority_of_all_replicas_opens_the_next_session_though_one_alone_was_clean_in_the_newest() -> None:
    found = adopt({"a": _facts(session=5, last=9), "b": _facts(session=4, last=12), "c": _facts(session=4, last=9)})
    metadata = found.metadata[0]
    assert metadata.replicas == {"a": ReplicaState(5, 9), "b": ReplicaState(-1, 9), "c": ReplicaState(-1, 9)}
    assert opening_replicas(metadata, found.replicas[0]) == ("a", "b", "c")


def test_a_cluster_is_adopted_once_and_one_that_was_cut_short_is_repeated() -> None:
    async def scenario() -> None:
        cluster = MemoryCluster()
        found: Adoption = adopt({"a": _facts(), "b": _facts()})
        session = cluster.ensemble.session()
        await session.create("/store/assignment", b"of an adoption that was cut short")
        made = await adopt_cluster(session, name="main", found=found)
        assert made.key == KEY
        with pytest.raises(InvalidRequest, match="there is a cluster already"):
            await adopt_cluster(session, name="main", found=found)
        with pytest.raises(InvalidRequest, match="there is a cluster already"):
            await create_cluster(session, name="main", key=UUID(int=1), partitions=1, storages=["a"], replication=1)

    run_in_virtual_time(scenario())


def _one(session: int, low_water_mark: int, last: int) -> DirectoryFacts:
    return DirectoryFacts(KEY, (PartitionFacts(session, session, low_water_mark, last, True, 1, 1),))


@pytest.mark.parametrize(
    ("nodes", "resolved"),
    [
        # storage-0 was removed and keeps its directory, storage-1 is behind: 20 is acknowledged by two of three
        ({"storage-0": _one(2, 9, 9), "storage-1": _one(3, 9, 19), "storage-2": _one(3, 9, 20), "storage-3": _one(3, 9, 20)}, 20),
        ({"storage-0": _one(9, 100, 200), "storage-1": _one(9, 100, 150)}, 200),  # storage-0 alone is assigned, the other one is a learner
    ],
)
def test_directories_of_removed_replicas_and_of_learners_do_not_vote(nodes: dict[str, DirectoryFacts], resolved: int) -> None:
    found = adopt(nodes)
    metadata = found.metadata[0]
    assert found.replicas[0] == tuple(nodes)
    recovery = Recovery(0, metadata, found.replicas[0])
    for name, node in nodes.items():
        facts = node.partitions[0]
        report = ReplicaReport(facts.session, facts.low_water_mark, facts.last_transaction_id)
        recovery.expect_recorded(name, metadata.session + 1, report)
        cut = recovery.classify(name, report)
        recovery.report(name, facts.last_transaction_id if cut.truncate_to is None else cut.truncate_to, cut)
    assert recovery.resolved == resolved


def test_adoption_keeps_what_was_acknowledged_while_a_removed_replica_left_its_directory() -> None:
    async def main() -> None:
        cluster = MemoryCluster(servers=1, storages=3)
        await cluster.start()
        await cluster.start_storage("storage-3")
        client = await cluster.connect()
        for number in range(10):
            await client.append(0, b"%d" % number)
        change = ReplicaChange(0, "storage-3", "storage-0", False)
        await change_replicas(cluster.ensemble.session(), cluster.network, "memory/test", change, wait_s=60, report=lambda _: None)
        await cluster.kill_storage("storage-1")
        acknowledged = (await client.append(0, b"on two of three")).transaction_id
        await client.close()
        await cluster.kill_server("server-0")
        for name in sorted(cluster.storages):
            await cluster.stop_storage(name)
        found = adopt({name: describe(disk) for name, disk in sorted(cluster.disks.items())})
        await asyncio.sleep(30)  # the server's session ends
        await adopt_cluster(cluster.ensemble.session(), name="test", found=found, restored=True)
        for name in sorted(cluster.disks):
            await cluster.start_storage(name)
        await cluster.start_server("server-0")
        client = await cluster.connect()
        assert (await client.append(0, b"next")).transaction_id == acknowledged + 1
        await client.close()
        await cluster.stop()

    run_in_virtual_time(main())
