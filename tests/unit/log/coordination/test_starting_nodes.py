"""Failures of the coordinator by the values that nodes follow, for nodes that start: they refuse what running nodes refuse, or do not start.

Running nodes are in `test_followed_values`. A storage node remembers rules and topics on its disk; every node asks the others when it starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from waltz_log.client import ClientSettings
from waltz_log.coordination.followed import ASSIGNMENT, PARAMETERS, REPLICA_ASSIGNMENT, RULES, TOPICS, FollowedValue, KnownValues
from waltz_log.coordination.other_nodes import OtherNodes
from waltz_log.coordination.remembered_values import FILES, RememberedValues
from waltz_log.core import metadata as paths
from waltz_log.core.metadata import Assignment, ClusterParameters, Ownership, ReplicaAssignment
from waltz_log.core.topics.catalogue import Catalogue
from waltz_log.errors import ClusterUnavailable, PermissionDenied, Unavailable
from waltz_log.security.access import AccessControl
from waltz_log.security.identity import Identity, Role
from waltz_log.security.rules import AccessRules, Operation, Rule
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.memory_coordinator import MemoryCoordinator

QUICK = ClientSettings(retry_base_s=0.001, retry_cap_s=0.02, append_timeout_s=5.0)
STORAGES = ("storage-0", "storage-1", "storage-2")


def _identity(host: str) -> Identity:
    role, _, name = ("operator-tools" if host == "client" else host).partition("-")
    return Identity(f"spiffe://waltz/{role}/{name}", frozenset({Role(role)}))


GOOD = Rule(principal=_identity("application-good").principal, operations=(Operation.READ, Operation.APPEND), resource="shop/orders")
BAD = Rule(principal=_identity("application-bad").principal, operations=(Operation.READ, Operation.APPEND), resource="shop/orders")
ELSEWHERE = Rule(principal=_identity("application-bad").principal, operations=(Operation.READ, Operation.APPEND), resource="log:0")
"""Permits appends to the partition while no topic is known that it belongs to."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[MemoryCluster]:
    """Its third change of the rules revoked what BAD permits."""
    for name in STORAGES:
        (tmp_path / name).mkdir()
    made = MemoryCluster(partitions=2, identities=_identity, directory=tmp_path)
    await made.start()
    await made.create_topic("shop/orders", log_partitions=(0,))
    await made.change_access(lambda found: found.granted(GOOD).granted(ELSEWHERE))
    await made.change_access(lambda found: found.granted(BAD))
    await made.change_access(lambda found: found.revoked(BAD.principal, (), (BAD.resource,)))
    async with asyncio.timeout(10):
        while any(node.access.control.rules is None or node.access.control.rules.revision < 3 for node, _ in made.storages.values()):
            await asyncio.sleep(0.01)
    try:
        yield made
    finally:
        await made.stop()


def _earlier(kind: FollowedValue[Any], key: UUID) -> bytes:
    states: dict[FollowedValue[Any], Any] = {
        RULES: AccessRules(rules=(GOOD, BAD), revision=2),
        TOPICS: Catalogue(),
        ASSIGNMENT: Assignment({0: Ownership(None, 0), 1: Ownership(None, 0)}),
        PARAMETERS: ClusterParameters("test", key, 1),
        REPLICA_ASSIGNMENT: ReplicaAssignment({0: STORAGES}),
    }
    data: bytes = states[kind].to_bytes()
    return data


async def _fail(cluster: MemoryCluster, operator: MemoryCoordinator, kind: FollowedValue[Any], failure: str) -> None:
    if failure == "missing":
        await operator.delete(kind.path)
    else:
        wrong = {"empty": b"", "corrupt": b"{", "older": _earlier(kind, cluster.key)}[failure]
        await operator.set(kind.path, wrong, -1)
    if kind is RULES:  # put back to before the first rule: nothing in the coordinator says that there were some
        there = await operator.get(paths.CLUSTER)
        assert there is not None
        await operator.set(paths.CLUSTER, replace(ClusterParameters.from_bytes(there.data), ruled=False).to_bytes(), -1)


async def _end(cluster: MemoryCluster, *, servers: tuple[str, ...], storages: tuple[str, ...]) -> None:
    for name in servers:
        await cluster.kill_server(name)
    for name in storages:
        await cluster.stop_storage(name)


async def _begin(cluster: MemoryCluster, *, servers: tuple[str, ...], storages: tuple[str, ...]) -> bool:
    """False: a node refused to start."""
    try:
        for name in storages:
            await cluster.start_storage(name)
        for name in servers:
            await cluster.start_server(name)
    except (Unavailable, ClusterUnavailable):
        return False
    return True


STARTING = {
    "a server beside others": (("server-1",), ()),
    "all servers": (("server-0", "server-1"), ()),
    "a storage node": (("server-0", "server-1"), ("storage-0",)),
    "every node": (("server-0", "server-1"), STORAGES),
}


@pytest.mark.parametrize("failure", ["missing", "empty", "corrupt", "older"])
@pytest.mark.parametrize("kind", [RULES, TOPICS, ASSIGNMENT, PARAMETERS, REPLICA_ASSIGNMENT], ids=lambda kind: kind.name)
@pytest.mark.parametrize("starting", STARTING)
async def test_a_node_that_starts_refuses_what_it_would_refuse_if_it_ran(
    cluster: MemoryCluster, starting: str, kind: FollowedValue[Any], failure: str
) -> None:
    servers, storages = STARTING[starting]
    operator = cluster.ensemble.session()
    await _end(cluster, servers=servers, storages=storages)
    await _fail(cluster, operator, kind, failure)
    started = await _begin(cluster, servers=servers, storages=storages)
    if not started:
        assert kind is PARAMETERS, "the key of the cluster is in them, so nothing can be asked without them"
        assert failure != "older"
        return
    controls: dict[Any, AccessControl] = {server: server._access for server in (cluster.servers[name][0] for name in servers)}
    controls |= {node: node.access.control for node in (cluster.storages[name][0] for name in storages)}
    for process, control in controls.items():
        assert control.label.partition("-")[0] == "3"
        assert control.topic_of(0) == "shop/orders"
        if kind in (RULES, TOPICS):
            assert kind.path in (process.statistics().refused_values or {}), "it is reported"
        with pytest.raises(PermissionDenied):
            control.expect(0, Operation.APPEND, peer=_identity("application-bad"))
        control.expect(0, Operation.APPEND, peer=_identity("application-good"))


async def test_a_coordinator_put_back_to_before_the_first_rule_opens_nothing_to_a_cluster_that_starts(tmp_path: Path) -> None:
    for name in STORAGES:
        (tmp_path / name).mkdir()
    cluster = MemoryCluster(partitions=1, identities=_identity, directory=tmp_path)
    await cluster.start()
    before = cluster.ensemble.snapshot()
    elsewhere = Rule(principal=GOOD.principal, operations=(Operation.APPEND,), resource="log:0")
    await cluster.change_access(lambda found: found.granted(elsewhere))
    async with asyncio.timeout(10):
        while any(node.access.control.rules is None for node, _ in cluster.storages.values()):
            await asyncio.sleep(0.01)
    await cluster.stop()
    cluster.restore_coordinator(before)
    assert await _begin(cluster, servers=("server-0", "server-1"), storages=STORAGES)
    with pytest.raises(PermissionDenied):
        await cluster.connect(QUICK, host="application-bad")
    assert {server.statistics().rules for server, _ in cluster.servers.values()} == {node.statistics().rules for node, _ in cluster.storages.values()}
    assert cluster.servers["server-0"][0].statistics().rules[0].partition("-")[0] == "1"
    await cluster.stop()


async def test_a_server_decides_nothing_before_a_majority_of_the_storage_nodes_has_answered(cluster: MemoryCluster) -> None:
    await _end(cluster, servers=("server-0", "server-1"), storages=STORAGES)
    operator = cluster.ensemble.session()
    await _fail(cluster, operator, RULES, "missing")
    await operator.delete(TOPICS.path)
    assert await _begin(cluster, servers=("server-0",), storages=())
    server = cluster.servers["server-0"][0]
    assert server.statistics().rules == ("closed",)
    impatient = ClientSettings(retry_base_s=0.001, retry_cap_s=0.02, append_timeout_s=0.2, connect_timeout_s=0.2)
    with pytest.raises((Unavailable, ClusterUnavailable)):
        client = await cluster.connect(impatient, host="application-bad")
        with suppress(PermissionDenied):
            await client.append(0, b"never")
    await cluster.start_storage("storage-0")
    await asyncio.sleep(1.2)
    assert server.statistics().rules == ("closed",), "one of three"
    await cluster.start_storage("storage-1")
    async with asyncio.timeout(10):
        while server.statistics().rules == ("closed",):
            await asyncio.sleep(0.01)
    assert server.statistics().rules[0].partition("-")[0] == "3"
    assert server._access.topic_of(0) == "shop/orders", "topics that were learned later are used"


async def test_a_new_storage_node_learns_the_rules_from_the_others(cluster: MemoryCluster, tmp_path: Path) -> None:
    await _end(cluster, servers=("server-0", "server-1"), storages=("storage-0",))
    await _fail(cluster, cluster.ensemble.session(), RULES, "missing")
    for name in FILES.values():
        (tmp_path / "storage-0" / name).unlink()
    await cluster.start_storage("storage-0")
    assert cluster.storages["storage-0"][0].statistics().rules[0].partition("-")[0] == "3"


async def test_nodes_that_only_know_that_there_were_rules_open_nothing_either(cluster: MemoryCluster, tmp_path: Path) -> None:
    await _end(cluster, servers=("server-0", "server-1"), storages=STORAGES)
    await _fail(cluster, cluster.ensemble.session(), RULES, "missing")
    for name in STORAGES:
        (tmp_path / name / FILES[RULES]).write_bytes(b"\0" * 100)
    assert await _begin(cluster, servers=("server-0",), storages=STORAGES)
    server, node = cluster.servers["server-0"][0], cluster.storages["storage-0"][0]
    assert (server.statistics().rules, node.statistics().rules) == (("closed",), ("closed",))
    assert RULES.path in (server.statistics().refused_values or {})
    with pytest.raises(PermissionDenied):
        await cluster.connect(QUICK, host="application-good")


async def test_answers_of_another_cluster_prove_nothing(cluster: MemoryCluster) -> None:
    operator = cluster.ensemble.session()
    there = await operator.get(paths.CLUSTER)
    assert there is not None
    other = replace(ClusterParameters.from_bytes(there.data), key=UUID(int=9))
    known = KnownValues()
    known.learn(PARAMETERS, other.to_bytes())
    asked = OtherNodes(cluster.network.host("server-0"), known)
    await asked.ask(operator)
    assert not asked.answered
    assert known.values().keys() == {PARAMETERS.path}


# ---- what a storage node remembers -----------------------------------------------------------------------------------------------------------------


def test_a_remembered_value_is_loaded_as_it_was_and_in_no_other_form(tmp_path: Path) -> None:
    data = AccessRules(rules=(GOOD,), revision=4).to_bytes()
    RememberedValues(tmp_path).store(RULES, data)
    file = tmp_path / FILES[RULES]
    assert file.stat().st_mode & 0o777 == 0o600
    intact = file.read_bytes()
    known = KnownValues()
    RememberedValues(tmp_path).load(known)
    assert (known.data(RULES), known.value(TOPICS)) == (data, None)
    assert known.accept(TOPICS, None) is None
    assert known.refused() == {}, "no topic was ever followed"
    wrong = [intact[:at] + bytes([intact[at] ^ 1 << bit]) + intact[at + 1 :] for at in range(0, len(intact), 3) for bit in (0, 5)]
    for each in (*wrong, *(intact[:length] for length in range(0, len(intact), 7)), intact + b" ", b"\n" + intact):
        file.write_bytes(each)
        known = KnownValues()
        RememberedValues(tmp_path).load(known)
        assert known.value(RULES) is None
        assert known.accept(RULES, None) is None
        assert known.refused() == {RULES.path: "is missing"}, "there were rules"


def test_an_earlier_value_does_not_replace_a_later_one_on_disk(tmp_path: Path) -> None:
    remembered, known = RememberedValues(tmp_path), KnownValues()
    later, earlier = AccessRules(rules=(GOOD,), revision=4).to_bytes(), AccessRules(revision=3).to_bytes()
    remembered.store(RULES, later)
    remembered.store(RULES, earlier)
    remembered.load(known)
    assert known.data(RULES) == later
    (tmp_path / FILES[RULES]).write_bytes(b"broken")
    remembered.store(RULES, earlier)
    known = KnownValues()
    remembered.load(known)
    assert known.data(RULES) == earlier, "what cannot be read is replaced"


def test_a_value_of_another_process_is_learned_only_if_it_is_newer() -> None:
    known = KnownValues()
    first, second = AccessRules(revision=3).to_bytes(), AccessRules(rules=(GOOD,), revision=4).to_bytes()
    for data, expected in ((first, first), (second, second), (first, second), (b"{", second), (AccessRules(revision=4).to_bytes(), second)):
        known.learn(RULES, data)
        assert known.data(RULES) == expected
