"""A change reaches followers within 100 ms after their server learned it, whatever the source, and whatever other followers do. In virtual time."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from waltz_log.client import ClientSettings
from waltz_log.client.owners.following import Following
from waltz_log.coordination.topics import change_catalogue
from waltz_log.core import metadata as paths
from waltz_log.core.cluster_map import ASSIGNMENT_SOURCE, CLUSTER_SOURCE, REPLICAS_SOURCE, RIGHTS_SOURCE, TOPICS_SOURCE, Register
from waltz_log.core.metadata import Assignment
from waltz_log.core.topics.catalogue import Catalogue, Topic
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.security.identity import Identity, Role
from waltz_log.security.rules import Operation, Rule
from waltz_log.server.directory import directory
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import FOLLOW

PUSHED_MAX_S = 0.1
FOLLOWERS = 20
EVERYONE = "spiffe://waltz/*/*"

Times = dict[str, dict[int, float]]
"""By source and version."""


def _identity(host: str) -> Identity:
    role, _, name = host.partition("-")
    return Identity(f"spiffe://waltz/{role}/{name}", frozenset({Role(role)}))


def _time_learning(monkeypatch: pytest.MonkeyPatch) -> Times:
    """Notes when the server read each version of a source."""
    learned: Times = {}

    class Timed(Register):
        def update(self, version: int, items: Any) -> bool:
            newer = super().update(version, items)
            if newer:
                learned.setdefault(self.source, {}).setdefault(version, asyncio.get_running_loop().time())
            return newer

    def rights_changed(self: directory.Directory) -> None:
        learned.setdefault(RIGHTS_SOURCE, {}).setdefault(self.rights, asyncio.get_running_loop().time())
        unchanged(self)

    unchanged = directory.Directory.rights_changed
    monkeypatch.setattr(directory, "Register", Timed)
    monkeypatch.setattr(directory.Directory, "rights_changed", rights_changed)
    return learned


async def _follow(cluster: MemoryCluster, host: str, seed: int) -> tuple[Following, Times]:
    arrived: Times = {}

    def changed(sources: set[str]) -> None:
        for source in sources:
            if source in following.map.versions:
                arrived.setdefault(source, {}).setdefault(following.map.versions[source], asyncio.get_running_loop().time())

    following = Following(cluster.seeds, cluster.network.host(host), ClientSettings(), random.Random(seed), changed)
    await following.open()
    return following, arrived


async def _change_everything(cluster: MemoryCluster) -> None:
    """Each source, some of them in the same moment, between heartbeats."""
    session = cluster.ensemble.session()

    async def write(path: str, data: bytes | None = None) -> None:
        node = await session.get(path)
        assert node is not None
        await session.set(path, node.data if data is None else data, node.version)

    def with_topic(found: Catalogue) -> tuple[Catalogue, Topic]:
        name = TopicName.parse(f"shop/orders-{len(found.topics)}")
        return found.with_new(name, type="regular", partitions=1, pool=range(4), now_ms=1)

    for pause_s in (0.3, 1.7, 0.0, 3.1):
        await asyncio.sleep(pause_s)
        await change_catalogue(session, with_topic)
        await asyncio.sleep(pause_s)
        await write(paths.ASSIGNMENT, Assignment().to_bytes())
        await asyncio.sleep(pause_s)
        await asyncio.gather(write(paths.CLUSTER), write(paths.REPLICAS), write(f"{paths.STORAGE_NODES}/storage-1"))
        await asyncio.sleep(pause_s)
        rule = Rule(principal=f"spiffe://waltz/application/{pause_s}", operations=(Operation.READ,), resource="log:0")
        await cluster.change_access(lambda found, rule=rule: found.granted(rule))  # type: ignore[misc]
    await asyncio.sleep(2)


def test_each_change_reaches_every_follower_within_100_ms_after_the_server_learned_it(monkeypatch: pytest.MonkeyPatch) -> None:
    learned = _time_learning(monkeypatch)

    async def main() -> list[Times]:
        cluster = MemoryCluster(partitions=4, storages=2, servers=1, identities=_identity)
        await cluster.start()
        await cluster.change_access(lambda found: found.granted(Rule(principal=EVERYONE, operations=(Operation.READ,), resource="*")))
        request = pb.FollowRequest(cluster_key=cluster.key.bytes)
        deaf = cluster.network.host("application-deaf").connect(cluster.servers["server-0"][0].address).read(FOLLOW, request)
        hosts = [("operator-tools", "application-a")[number % 2] for number in range(FOLLOWERS)]
        some = [await _follow(cluster, host, seed) for seed, host in enumerate(hosts)]
        learned.clear()
        await _change_everything(cluster)
        for following, _ in some:
            await following.close()
        await deaf.cancel()
        await cluster.stop()
        return [arrived for _, arrived in some]

    arrivals = run_in_virtual_time(main())
    wanted = {ASSIGNMENT_SOURCE, CLUSTER_SOURCE, REPLICAS_SOURCE, RIGHTS_SOURCE, TOPICS_SOURCE, "node/storage-1"}
    assert {source for source, times in learned.items() if len(times) >= 4} >= wanted, "each source changed several times"
    late = [
        (source, version, round(came_s - at_s, 3))
        for arrived in arrivals
        for source in wanted
        for version, at_s in learned[source].items()
        if (came_s := min((s for v, s in arrived.get(source, {}).items() if v >= version), default=float("inf"))) - at_s > PUSHED_MAX_S
    ]
    assert late == []
