"""What the audit log says of changes in the coordinator."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from uuid import UUID

import pytest

from waltz_log.coordination.access import change_rules
from waltz_log.coordination.administration import AdministrationAudit, changes
from waltz_log.core.metadata import ASSIGNMENT, CLUSTER, REPLICAS, Assignment, ClusterParameters, Ownership, ReplicaAssignment
from waltz_log.core.topics.catalogue import CATALOGUE, Catalogue
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import ClusterUnavailable
from waltz_log.security.audit_log import AuditSettings, open_audit
from waltz_log.security.rules import ACCESS, AccessRules, Operation, Rule
from waltz_log.testing.memory_coordinator import MemoryEnsemble

NAME = TopicName("shop", "orders")
KEY = UUID(int=1)


def _catalogue() -> Catalogue:
    return Catalogue().with_new(NAME, type="regular", partitions=2, pool=range(4), now_ms=0)[0]


def test_topics_are_created_changed_and_deleted() -> None:
    there = _catalogue()
    changed, _ = there.with_policies(NAME, {"retention_bytes": 5000})
    deleted, _ = there.without(NAME)
    empty = Catalogue()
    assert list(changes(CATALOGUE, None, there.to_bytes())) == [("topic created", {"topic": "shop/orders", "partitions": 2})]
    assert list(changes(CATALOGUE, empty.to_bytes(), there.to_bytes())) == [("topic created", {"topic": "shop/orders", "partitions": 2})]
    ((event, facts),) = changes(CATALOGUE, there.to_bytes(), changed.to_bytes())
    assert (event, "retention_bytes=5000" in facts["policies"]) == ("topic changed", True)
    assert list(changes(CATALOGUE, there.to_bytes(), deleted.to_bytes())) == [("topic deleted", {"topic": "shop/orders"})]
    assert list(changes(CATALOGUE, there.to_bytes(), there.to_bytes())) == []


def test_a_cluster_grows_and_its_replicas_move() -> None:
    small, large = (ClusterParameters("a", KEY, each).to_bytes() for each in (4, 8))
    assert list(changes(CLUSTER, small, large)) == [("cluster grown", {"partitions": 8, "before": 4})]
    one, other = (ReplicaAssignment({0: names, 1: ("a", "b")}).to_bytes() for names in (("a", "b"), ("a", "c")))
    assert list(changes(REPLICAS, one, other)) == [("replicas changed", {"partition": 0, "replicas": "a,c", "before": "a,b"})]


def test_what_the_manager_assigns_is_no_action_of_an_operator() -> None:
    one = Assignment(partitions={0: Ownership(1, 1)})
    other = Assignment(partitions={0: Ownership(2, 2)})
    drained = Assignment(partitions={0: Ownership(2, 2)}, drained=("a:1",), moved={0: "b:1"})
    assert list(changes(ASSIGNMENT, one.to_bytes(), other.to_bytes())) == []
    assert [event for event, _ in changes(ASSIGNMENT, other.to_bytes(), drained.to_bytes())] == ["nodes drained", "owner moved"]


async def test_changes_are_recorded_while_a_node_runs(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    open_audit(AuditSettings(file=file))
    session = MemoryEnsemble().session()
    following = asyncio.ensure_future(AdministrationAudit().follow(session))
    try:
        await session.create(CLUSTER, ClusterParameters("a", KEY, 4).to_bytes())
        await asyncio.sleep(0.01)
        await session.create(CATALOGUE, _catalogue().to_bytes())
        async with asyncio.timeout(10):
            while "topic created" not in file.read_text():
                await asyncio.sleep(0.005)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        open_audit(None)
    assert [json.loads(line)["topic"] for line in file.read_text().splitlines()] == ["shop/orders"]


@pytest.mark.parametrize("garbage", [b"", b"null", b"[" * 9999, b'{"partitions":{"9":[1,2,3]}}'])
async def test_changes_are_recorded_beside_and_after_a_value_that_cannot_be_read(tmp_path: Path, garbage: bytes) -> None:
    file = tmp_path / "audit.jsonl"
    open_audit(AuditSettings(file=file))
    session = MemoryEnsemble().session()
    await session.create(ASSIGNMENT, Assignment().to_bytes())
    following = asyncio.ensure_future(AdministrationAudit().follow(session))
    try:
        await asyncio.sleep(0.01)
        await session.set(ASSIGNMENT, garbage, -1)
        await asyncio.sleep(0.01)
        await session.set(ASSIGNMENT, Assignment(drained=("storage-1",)).to_bytes(), -1)
        async with asyncio.timeout(10):
            while "nodes drained" not in file.read_text():
                await asyncio.sleep(0.005)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        open_audit(None)


async def test_changes_between_two_sessions_are_recorded_once_and_never_backwards(tmp_path: Path) -> None:
    file, ensemble, administration = tmp_path / "audit.jsonl", MemoryEnsemble(), AdministrationAudit()
    open_audit(AuditSettings(file=file))

    async def written(event: str) -> None:
        async with asyncio.timeout(20):
            while event not in file.read_text():
                await asyncio.sleep(0.005)

    ensemble.follower_lag_s = lambda: 0.0  # keeps what followers could still show
    operator, first = ensemble.session(), ensemble.session()
    following = asyncio.ensure_future(administration.follow(first))
    await asyncio.sleep(0.01)
    await operator.create(CATALOGUE, _catalogue().to_bytes())
    await written("topic created")
    ensemble.expire(first)
    with pytest.raises(ClusterUnavailable):
        await following
    changed, _ = _catalogue().with_policies(NAME, {"retention_bytes": 5000})
    await operator.set(CATALOGUE, changed.to_bytes(), 0)
    ensemble.follower_lag_s = lambda: 2.0  # this member has not seen that the topic was created
    following = asyncio.ensure_future(administration.follow(ensemble.session()))
    await written("topic changed")
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    open_audit(None)
    assert [json.loads(line)["event"] for line in file.read_text().splitlines()] == ["topic created", "topic changed"]


async def test_a_node_of_several_workers_records_rules_that_changed_while_it_had_no_session(tmp_path: Path) -> None:
    """Its workers start again with each session, and know no rules then that they could compare."""
    file, ensemble, administration = tmp_path / "audit.jsonl", MemoryEnsemble(), AdministrationAudit(rules=True)
    open_audit(AuditSettings(file=file))
    operator, first = ensemble.session(), ensemble.session()
    one, other = (Rule(principal=f"spiffe://waltz/reader/{name}", operations=(Operation.READ,), resource="shop/*") for name in ("a", "b"))

    async def written(event: str) -> None:
        async with asyncio.timeout(20):
            while event not in file.read_text():
                await asyncio.sleep(0.005)

    following = asyncio.ensure_future(administration.follow(first))
    await asyncio.sleep(0.01)
    await change_rules(operator, lambda _: AccessRules(rules=(one,)), changed_by="ann")
    await written("access granted")
    ensemble.expire(first)
    with pytest.raises(ClusterUnavailable):
        await following
    await change_rules(operator, lambda _: AccessRules(rules=(other,)), changed_by="bob")
    following = asyncio.ensure_future(administration.follow(ensemble.session()))
    await written("access revoked")
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    open_audit(None)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["event"], line.get("principal", "")[-1:], line["stated_by"]) for line in lines] == [
        ("access granted", "a", "ann"),
        ("access rules enforced", "", "ann"),
        ("access granted", "b", "bob"),
        ("access revoked", "a", "bob"),
    ]


async def test_a_value_that_cannot_be_read_is_no_action_and_ends_no_recording(tmp_path: Path) -> None:
    ensemble = MemoryEnsemble()
    operator = ensemble.session()
    await operator.create(CLUSTER, ClusterParameters("c", UUID(int=1), 2).to_bytes())
    audit_file = tmp_path / "audit"
    open_audit(AuditSettings(file=audit_file))
    try:
        task = asyncio.ensure_future(AdministrationAudit().follow(ensemble.session()))
        await asyncio.sleep(0.05)
        for data in (b"{", b"", ClusterParameters("c", UUID(int=1), 3).to_bytes()):
            await operator.set(CLUSTER, data, -1)
            await asyncio.sleep(0.05)
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    finally:
        open_audit(None)
    assert [json.loads(line)["event"] for line in audit_file.read_text().splitlines()] == ["cluster grown"]


@pytest.mark.parametrize("path", [CLUSTER, REPLICAS, ASSIGNMENT, CATALOGUE, ACCESS])
def test_a_value_that_is_gone_is_no_action(path: str) -> None:
    assert list(changes(path, None, None)) == []
