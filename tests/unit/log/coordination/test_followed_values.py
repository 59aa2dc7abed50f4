"""Failures of the coordinator by the values that nodes follow: nodes keep what they knew or refuse, report it, and a command repairs.

The matrix is generated from `FOLLOWED`. A read of the coordinator that is in no row below fails a test, so that no value is followed without one.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import waltz_log
from waltz_log.client import ClientSettings
from waltz_log.coordination.access import change_rules, read_rules, replace_rules
from waltz_log.coordination.asked_nodes import ask_nodes, newest_revision, wait_enforced
from waltz_log.coordination.followed import (
    ASSIGNMENT,
    FOLLOWED,
    PARAMETERS,
    REPLICA_ASSIGNMENT,
    RETAINED_MARKS,
    RULES,
    SERVER_ENTRIES,
    STORAGE_ENTRIES,
    SUBSCRIBER_ENTRIES,
    TOPICS,
    FollowedValue,
    KnownValues,
)
from waltz_log.coordination.repair import apply_repair, find_faults
from waltz_log.core import metadata as paths
from waltz_log.core.metadata import Assignment, ClusterParameters, Ownership, ReplicaAssignment, ServerEntry, StorageNodeEntry
from waltz_log.core.ports import Node
from waltz_log.core.retention import Retained
from waltz_log.core.topics.catalogue import Catalogue
from waltz_log.core.topics.subscribers import Subscriber
from waltz_log.errors import ClusterUnavailable, InvalidSetting, PermissionDenied, Unavailable
from waltz_log.security.access import AccessControl
from waltz_log.security.identity import Identity, Role
from waltz_log.security.rules import CLOSED, AccessRules, Operation, Rule
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.memory_coordinator import MemoryCoordinator, MemoryEnsemble

# ---- one value -------------------------------------------------------------------------------------------------------------------------------------

KEY = UUID(int=7)
RULE = Rule(principal="spiffe://waltz/application/a", operations=(Operation.READ,), resource="shop/orders")

VALUES: dict[str, tuple[Any, Any]] = {
    RULES.path: (AccessRules(rules=(RULE,), revision=7), AccessRules(revision=5)),
    TOPICS.path: (Catalogue(epochs=3), Catalogue(epochs=2)),
    ASSIGNMENT.path: (Assignment({0: Ownership(1, 5)}), Assignment({0: Ownership(1, 4)})),
    SERVER_ENTRIES.path: (ServerEntry(1, "a:1"), None),
    SUBSCRIBER_ENTRIES.path: (Subscriber("s", {0: 9}, {}, 1, 2), Subscriber("s", {0: 5}, {}, 1, 2)),
    PARAMETERS.path: (ClusterParameters("c", KEY, 4), ClusterParameters("c", KEY, 2)),
    REPLICA_ASSIGNMENT.path: (ReplicaAssignment({0: ("a",), 1: ("a",)}), ReplicaAssignment({0: ("a",)})),
    STORAGE_ENTRIES.path: (StorageNodeEntry("a:1", 5), StorageNodeEntry("b:1", 3)),
    RETAINED_MARKS.path: (Retained(40, 40), Retained(10, 10)),
}
"""By path: a value, and one of an earlier state of the coordinator; None: it has no earlier ones, because it lives and ends with its session."""

WATCHED: tuple[FollowedValue[Any], ...] = (RULES, TOPICS, ASSIGNMENT, PARAMETERS, REPLICA_ASSIGNMENT)
"""Single values. The others are folders of entries."""

FAILURES = ("missing", "empty", "corrupt", "older", "unreachable", "closed")
CORRUPT = (b"\xff\xfe", b"[", b"null", b"7", b'"text"', b"[[1]]", b"[" * 100_000)


def test_every_followed_value_has_a_row() -> None:
    assert VALUES.keys() == FOLLOWED.keys()


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("path", sorted(FOLLOWED))
async def test_a_known_value_stays_is_reported_and_is_repaired(path: str, failure: str) -> None:
    kind: FollowedValue[Any] = FOLLOWED[path]
    entry = "" if kind in WATCHED else "1"
    at = f"{path}/{entry}" if entry else path
    value, earlier = VALUES[path]
    ensemble = MemoryEnsemble(timeout_s=0.01)
    operator, node = ensemble.session(), ensemble.session()
    known = KnownValues()
    known.coordinator = node
    await operator.create(at, value.to_bytes())
    if kind is STORAGE_ENTRIES:
        await operator.create(paths.REPLICAS, ReplicaAssignment({0: ("1",)}).to_bytes())
    assert known.accept(kind, await known.get(node, kind, entry), entry) == value
    assert known.refused() == {}
    if failure == "older" and earlier is None:
        return
    for wrong in CORRUPT if failure == "corrupt" else (b"",):
        await _fail(failure, ensemble, operator, node, at, earlier, wrong)
        try:
            found = known.accept(kind, await known.get(node, kind, entry), entry)
        except (ClusterUnavailable, PermissionDenied):
            found = value  # the follower begins again, and uses what it knows meanwhile
        assert found == value
        assert known.values()[at] == value.to_bytes().decode()
        assert len(known.refused()) == 1, "it is reported"
        ensemble.heal(node)
        node.__dict__.pop("get", None)
        if kind is not SERVER_ENTRIES and failure not in ("unreachable", "closed"):
            repairs = [each for each in await find_faults(operator, {"server 1": known.values()}) if each.path == at]
            assert [each.source for each in repairs] == ["server 1"]
            assert await apply_repair(operator, repairs[0])
        else:
            await operator.create(at, value.to_bytes())
            await operator.set(at, value.to_bytes(), -1)
        again: Any = known.accept(kind, await known.get(node, kind, entry), entry)
        assert again is not None
        assert again == value if kind is not RULES else (again.rules, again.enforced) == (value.rules, value.enforced)
        assert known.refused() == {}, "and nothing is, once it was repaired"
        value = again


async def _fail(
    failure: str, ensemble: MemoryEnsemble, operator: MemoryCoordinator, node: MemoryCoordinator, at: str, earlier: Any, wrong: bytes
) -> None:
    if failure == "missing":
        assert await operator.delete(at)
    elif failure == "unreachable":
        ensemble.cut(node)
    elif failure == "closed":

        async def refuse(path: str, *, latest: bool = False) -> Node | None:
            raise PermissionDenied(principal="this process", operation=f"read {path} in ZooKeeper", roles="node, operator")

        node.__dict__["get"] = refuse
    else:
        assert await operator.set(at, earlier.to_bytes() if failure == "older" else wrong, -1) is not None


@pytest.mark.parametrize("path", sorted(FOLLOWED))
def test_a_process_that_knows_nothing_refuses_what_it_cannot_read(path: str) -> None:
    for wrong in (*CORRUPT, b""):
        known = KnownValues()
        with pytest.raises(Unavailable, match="waltz cluster repair"):
            known.expect(FOLLOWED[path], Node(wrong, 0))
        assert len(known.refused()) == 1
    known = KnownValues()
    with pytest.raises(Unavailable, match="is missing"):
        known.expect(FOLLOWED[path], None)


async def test_what_no_node_knows_is_left_and_says_what_to_do() -> None:
    operator = MemoryEnsemble().session()
    for path in FOLLOWED:
        await operator.create(
            path if path in (RULES.path, TOPICS.path, ASSIGNMENT.path, PARAMETERS.path, REPLICA_ASSIGNMENT.path) else f"{path}/1", b"["
        )
    found = {each.path: each for each in await find_faults(operator, {}) if each.fault.startswith("cannot be read")}
    assert len(found) == len(FOLLOWED)
    assert all(each.source is None for each in found.values())
    assert "waltz access reset --yes" in found[RULES.path].advice


# ---- rules -----------------------------------------------------------------------------------------------------------------------------------------


async def test_rules_are_changed_only_over_rules_that_can_be_read_and_replaced_over_any() -> None:
    operator = MemoryEnsemble().session()
    await operator.create(paths.CLUSTER, ClusterParameters("c", KEY, 4).to_bytes())
    assert await read_rules(operator) is None
    first = await change_rules(operator, lambda found: found.granted(RULE))
    assert (first.revision, ClusterParameters.from_bytes((await _got(operator, paths.CLUSTER)).data).ruled) == (1, True)
    for wrong in (b"{", None):
        if wrong is None:
            await operator.delete(RULES.path)
        else:
            await operator.set(RULES.path, wrong, -1)
        with pytest.raises(InvalidSetting, match="waltz cluster repair"):
            await read_rules(operator)
        with pytest.raises(InvalidSetting, match="waltz cluster repair"):
            await change_rules(operator, lambda found: found.granted(RULE))
    reset = await replace_rules(operator, AccessRules(enforced=False), [AccessRules(revision=9)])
    assert (reset.revision, reset.enforced) == (10, False)
    assert await read_rules(operator) == reset


@pytest.mark.parametrize("unreadable", [b"{", b"", b"[]", b"\xff"])
async def test_rules_are_written_beside_parameters_that_cannot_be_read(unreadable: bytes) -> None:
    operator = MemoryEnsemble().session()
    await operator.create(paths.CLUSTER, unreadable)
    replaced = await replace_rules(operator, AccessRules(enforced=False), [])
    granted = await change_rules(operator, lambda found: found.granted(RULE))
    assert (replaced.revision, granted.revision) == (1, 2)
    assert await read_rules(operator) == granted
    assert (await _got(operator, paths.CLUSTER)).data == unreadable


async def _got(coordinator: MemoryCoordinator, path: str) -> Node:
    found = await coordinator.get(path)
    assert found is not None
    return found


# ---- a whole cluster -------------------------------------------------------------------------------------------------------------------------------


def _identity(host: str) -> Identity:
    role, _, name = ("operator-tools" if host == "client" else host).partition("-")
    return Identity(f"spiffe://waltz/{role}/{name}", frozenset({Role(role)}))


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    made = MemoryCluster(partitions=2, storages=1, servers=1, identities=_identity)
    await made.start()
    await made.create_topic("shop/orders", log_partitions=(0,))
    rule = Rule(principal=_identity("application-good").principal, operations=(Operation.READ, Operation.APPEND), resource="shop/orders")
    elsewhere = Rule(principal=_identity("application-bad").principal, operations=(Operation.READ,), resource="log:1")
    await made.change_access(lambda found: found.granted(rule).granted(elsewhere))
    try:
        yield made
    finally:
        await made.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("failure", ["missing", "empty", "corrupt", "older"])
@pytest.mark.parametrize("kind", WATCHED, ids=lambda kind: kind.name)
async def test_a_cluster_serves_and_denies_as_before_and_is_repaired(cluster: MemoryCluster, kind: FollowedValue[Any], failure: str) -> None:
    quick = ClientSettings(retry_base_s=0.001, retry_cap_s=0.02, append_timeout_s=10.0)
    good = await cluster.connect(quick, host="application-good")
    bad = await cluster.connect(quick, host="application-bad")
    orders = await good.topic("shop/orders")
    await orders.append(b"before", partition=0)
    operator = cluster.ensemble.session()
    intact = await _got(operator, kind.path)
    states: dict[FollowedValue[Any], Any] = {
        RULES: AccessRules(enforced=False, revision=0),
        TOPICS: Catalogue(),
        ASSIGNMENT: Assignment({0: Ownership(None, 0), 1: Ownership(None, 0)}),
        PARAMETERS: ClusterParameters("test", cluster.key, 1),
        REPLICA_ASSIGNMENT: ReplicaAssignment({0: ("storage-0",)}),
    }
    earlier = states[kind]
    if failure == "missing":
        await operator.delete(kind.path)
    else:
        wrong = {"empty": b"", "corrupt": b"{", "older": earlier.to_bytes()}[failure]
        await operator.set(kind.path, wrong, -1)
    server, node = cluster.servers["server-0"][0], cluster.storages["storage-0"][0]

    if kind is ASSIGNMENT:  # the cluster manager writes it, and writes it back

        async def rewritten() -> bool:
            there = await operator.get(kind.path)
            return there is not None and there.data == intact.data

        async with asyncio.timeout(10):
            while not await rewritten():
                await asyncio.sleep(0.01)
    else:
        await until(lambda: kind.path in (server.statistics().refused_values or {}))
        if kind is RULES:
            await until(lambda: kind.path in (node.statistics().refused_values or {}))
    if kind is TOPICS:  # this client reads the topics in the coordinator itself
        assert server._access.topic_of(0) == node.access.control.topic_of(0) == "shop/orders"
    else:
        await orders.append(b"after", partition=0)
    with pytest.raises(PermissionDenied):
        await bad.append(0, b"never")
    assert [label for label in server.statistics().rules if label in ("closed", "none")] == []

    answers = await ask_nodes(operator, cluster.network.host("operator-tools"), known_values=True)
    for finding in await find_faults(operator, {name: each.known for name, each in answers.items() if each.known is not None}):
        if finding.source is not None:
            assert await apply_repair(operator, finding)
    await until(lambda: not server.statistics().refused_values and not node.statistics().refused_values)
    if kind is not RULES:
        assert (await _got(operator, kind.path)).data == intact.data
    await (await good.topic("shop/orders")).append(b"repaired", partition=0)
    await good.close()
    await bad.close()


@pytest.mark.parametrize("wrong", [None, b"", b"{"])
async def test_a_fresh_node_of_a_cluster_that_had_rules_permits_nothing(cluster: MemoryCluster, wrong: bytes | None) -> None:
    operator = cluster.ensemble.session()
    await (operator.delete(RULES.path) if wrong is None else operator.set(RULES.path, wrong, -1))
    await cluster.kill_server("server-0")
    await cluster.stop_storage("storage-0")
    await cluster.start_storage("storage-0")
    await cluster.start_server("server-0")
    server, node = cluster.servers["server-0"][0], cluster.storages["storage-0"][0]
    assert (server.statistics().rules, node.statistics().rules) == (("closed",), ("closed",))
    assert RULES.path in (server.statistics().refused_values or {})
    with pytest.raises(PermissionDenied):
        await cluster.connect(ClientSettings(append_timeout_s=2.0), host="application-good")
    known = AccessRules(revision=max(0, newest_revision(await ask_nodes(operator, cluster.network.host("operator-tools")))[0]))
    reset = await replace_rules(operator, AccessRules(enforced=False), [known])
    assert await wait_enforced(operator, cluster.network.host("operator-tools"), reset, 10) == {}
    good = await cluster.connect(ClientSettings(append_timeout_s=2.0), host="application-good")
    await (await good.topic("shop/orders")).append(b"roles alone decide", partition=0)
    await good.close()


async def test_a_node_that_has_not_followed_a_change_is_named(cluster: MemoryCluster) -> None:
    operator, network = cluster.ensemble.session(), cluster.network.host("operator-tools")
    cluster._following["storage-0"].cancel()
    revoked = await change_rules(operator, lambda found: found.revoked(_identity("application-good").principal))
    assert await wait_enforced(operator, network, revoked, 0.5) == {"storage-0": "enforces revision 1"}
    await cluster.stop_storage("storage-0")
    lacking = await wait_enforced(operator, network, revoked, 0.1)
    assert list(lacking) == ["storage-0"]
    assert lacking["storage-0"].startswith("does not answer")


def test_rules_of_one_revision_have_labels_of_their_own() -> None:
    one, other = AccessRules(rules=(RULE,), revision=3), AccessRules(revision=3)
    assert one.label != other.label
    control = AccessControl(enforced=True)
    assert control.label == "closed"
    control.replace(CLOSED)
    assert control.label == "closed"
    control.replace(one)
    assert control.label == one.label
    control.replace(None)
    assert control.label == "none"
    assert AccessControl(enforced=False).label == ""


# ---- the reads of the coordinator, from the code ---------------------------------------------------------------------------------------------------

FOLDERS = ("server", "storage", "processes", "coordination", "monitoring")
READS = ("get", "wait_changed", "children", "wait_children")
COMMANDS = {  # modules that only commands and clients use: they read once, and report an error
    "coordination/cluster.py",
    "coordination/placement.py",
    "coordination/survey.py",
    "coordination/topics.py",
    "coordination/repair.py",
    "coordination/asked_nodes.py",
    "coordination/followed.py",
}
NAMED: dict[str, str] = {
    "ACCESS": RULES.name,
    "CATALOGUE": TOPICS.name,
    "CLUSTER": PARAMETERS.name,
    "REPLICAS": REPLICA_ASSIGNMENT.name,
    "ASSIGNMENT": ASSIGNMENT.name,
    "SERVERS": SERVER_ENTRIES.name,
    "STORAGE_NODES": STORAGE_ENTRIES.name,
    "SUBSCRIBERS": SUBSCRIBER_ENTRIES.name,
    "retained_path": RETAINED_MARKS.name,
}
"""Names in the expression of a path, by the value that is read."""
NOT_FOLLOWED = {
    "MANAGER": "one number, compared and never kept; the office is contested again where it is gone",
    "SERVER_IDS": "a counter: read where a server starts, which continues above every id that is in use",
    "CLIENT_IDS": "a counter of blocks of ids, raised by compare-and-set; what cannot be read gives no ids",
    "TICKET_KEY": "read where a server starts, which refuses without it",
    "OUTBOXES": "entries that one request reads and writes by compare-and-set",
    "STRANDED": "lives with a session; what is missing moves nothing",
    "REACH": "lives with a session; what is missing moves nothing",
    "handed_locks_path": "a memory of locks: without it conflicts are judged by the mark alone",
    "partition_path": "the metadata of a partition changes by compare-and-set alone, and a fault keeps the partition closed",
}
VARIABLES = {  # expressions that name no constant, by module
    "coordination/access.py": {"each", "path"},
    "coordination/administration.py": {"path"},
    "coordination/subscribers.py": {"path"},
    "coordination/released.py": {"path"},
    "processes/storage.py": {"path", "partition"},
    "server/replication/session_record.py": {"path"},
    "server/directory/directory.py": {"path"},
    "coordination/entries.py": {"path"},
    "coordination/identity_repair.py": {"path"},
    "server/identities/outbox_records.py": {"path"},
    "server/identities/subscriber_calls.py": {"path"},
    "coordination/partition_contents.py": {"path"},
    "server/directory/cluster_calls.py": {"folder"},
}


def _reads() -> list[tuple[str, str]]:
    root = Path(waltz_log.__file__).parent
    found = []
    for file in sorted(each for folder in FOLDERS for each in (root / folder).rglob("*.py")):
        for call in ast.walk(ast.parse(file.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in READS:
                if "coordinator" in ast.unparse(call.func.value):
                    found.append((file.relative_to(root).as_posix(), ast.unparse(call.args[0])))
                elif call.args and "coordinator" in ast.unparse(call.args[0]) and len(call.args) > 1:
                    found.append((file.relative_to(root).as_posix(), ast.unparse(call.args[1])))
    return found


def test_every_read_of_the_coordinator_is_of_a_value_with_a_row_or_says_why_not() -> None:
    constants = {f"{name}": value.name for name, value in _kinds().items()}
    unknown = []
    seen = set()
    for module, expression in _reads():
        if module in COMMANDS or expression in VARIABLES.get(module, ()):
            continue
        names = {each for each in (*NAMED, *NOT_FOLLOWED) if each in _words(expression)}
        named = {NAMED[each] for each in names if each in NAMED} | {constants[each] for each in _words(expression) if each in constants}
        seen |= named
        if not names and not named and "FOLLOWED" not in _words(expression):
            unknown.append((module, expression))
    assert unknown == [], "a value that nodes read has no row: add it to coordination/followed.py, or say here why it is not followed"
    assert seen == {each.name for each in FOLLOWED.values()} - {RULES.name} | (seen & {RULES.name})


def _kinds() -> dict[str, FollowedValue[Any]]:
    from waltz_log.coordination import followed

    return {name: each for name, each in vars(followed).items() if isinstance(each, FollowedValue)}


def _words(expression: str) -> set[str]:
    return {each.id for each in ast.walk(ast.parse(expression)) if isinstance(each, ast.Name)} | {
        each.attr for each in ast.walk(ast.parse(expression)) if isinstance(each, ast.Attribute)
    }
