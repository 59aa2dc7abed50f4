"""A console confirms the rules with any log server before a request, so that it need not be asked when a change of the rules reports success. What a
log server answers is what it enforces, whatever the coordinator has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from waltz_log.console.reading import link as links
from waltz_log.console.reading.link import ClusterLink
from waltz_log.coordination.access import change_rules
from waltz_log.coordination.asked_nodes import wait_enforced
from waltz_log.coordination.followed import RULES, TOPICS
from waltz_log.errors import PermissionDenied
from waltz_log.security.access import AccessControl
from waltz_log.security.identity import Identity, Role
from waltz_log.security.rules import Operation, Rule
from waltz_log.testing.cluster import MemoryCluster

READER = Identity("spiffe://waltz/reader/reports", frozenset({Role.READER}))
RULE = Rule(principal=READER.principal, operations=(Operation.READ,), resource="shop/orders")


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    def identity(host: str) -> Identity:
        return Identity(f"spiffe://waltz/operator/{host}", frozenset({Role.OPERATOR}))

    made = MemoryCluster(partitions=2, storages=1, servers=2, identities=identity)
    await made.start()
    await made.create_topic("shop/orders", log_partitions=(0,))
    operator = made.ensemble.session()
    granted = await change_rules(operator, lambda found: found.granted(RULE))
    assert await wait_enforced(operator, made.network.host("operator"), granted, 10) == {}
    try:
        yield made
    finally:
        await made.stop()


async def test_a_console_denies_what_was_revoked_at_the_request_after(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "RULES_S", 3600.0)
    operator, network = cluster.ensemble.session(), cluster.network.host("operator")
    control, link = AccessControl(enforced=True), ClusterLink(cluster.seeds, cluster.network.host("console"))
    async with link.keeping_rules(control):
        assert control.confirm is not None
        await control.confirm()
        control.expect(0, Operation.READ, peer=READER)
        for _ in range(3):
            revoked = await change_rules(operator, lambda found: found.revoked(READER.principal))
            assert await wait_enforced(operator, network, revoked, 10) == {}
            await asyncio.gather(*(control.confirm() for _ in range(4)))
            with pytest.raises(PermissionDenied):
                control.expect(0, Operation.READ, peer=READER)
            granted = await change_rules(operator, lambda found: found.granted(RULE))
            assert await wait_enforced(operator, network, granted, 10) == {}
            await control.confirm()
            control.expect(0, Operation.READ, peer=READER)
    await link.close()


@pytest.mark.parametrize("path", [RULES.path, TOPICS.path])
async def test_a_console_that_starts_enforces_what_log_servers_know_and_not_what_the_coordinator_lost(cluster: MemoryCluster, path: str) -> None:
    await cluster.ensemble.session().delete(path)
    async with asyncio.timeout(10):
        while any(path not in (server.statistics().refused_values or {}) for server, _ in cluster.servers.values()):
            await asyncio.sleep(0.01)
    control, link = AccessControl(enforced=True), ClusterLink(cluster.seeds, cluster.network.host("console"))
    async with link.keeping_rules(control):
        assert control.confirm is not None
        await control.confirm()
        assert control.label == cluster.servers["server-0"][0].statistics().rules[0]
        assert control.topic_of(0) == "shop/orders"
        control.expect(0, Operation.READ, peer=READER)
        with pytest.raises(PermissionDenied):
            control.expect(1, Operation.READ, peer=READER)
    await link.close()
