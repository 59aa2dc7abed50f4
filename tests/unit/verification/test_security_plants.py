"""Bugs planted in what defends a cluster against its peers: the tests that are there for the defense must fail.

Those of identities and tickets are planted in the simulator (`tests/sim/test_mutants.py`). Memory and time are planted in a process of its own, alone
and as two workers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.integration.log import test_request_costs, test_stream_costs
from tests.integration.log.test_request_costs import KINDS
from tests.unit.log.coordination import test_identity_repair
from tests.unit.log.server.identities import test_subscriber_calls
from tests.unit.log.transport import test_peer_verification
from waltz_log.coordination import subscribers, survey
from waltz_log.core.ports import Node
from waltz_log.core.topics.sharding import Shard
from waltz_log.errors import ConnectionLost
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.settings import TlsSettings
from waltz_log.server.identities.subscriber_calls import SubscriberCalls
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.transport import methods, verified_peer
from waltz_log.transport.direct import connection
from waltz_log.transport.forwarding import WorkerNetwork

FAILED = (AssertionError, pytest.fail.Exception)

cluster = test_subscriber_calls.cluster
"""A fixture of those tests."""


# ---- 2: a peer is the node that it should be -------------------------------------------------------------------------------------------------------


def _network_of_a_worker(tls: TlsSettings) -> WorkerNetwork:
    return WorkerNetwork(Shard(0, 2), ["127.0.0.1:0"], ["unix:none", "unix:none"], tls=tls)


@pytest.mark.parametrize("kind", ["alone", "worker"])
@pytest.mark.parametrize("use", test_peer_verification.USES[:3])
async def test_a_peer_of_any_identity_is_sent_calls(tmp_path: Path, use: Callable[..., object], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "worker":
        monkeypatch.setattr(test_peer_verification, "GrpcNetwork", _network_of_a_worker)
    for module in (verified_peer, connection):
        monkeypatch.setattr(module, "expect_node", lambda address, identity, announced: identity)
    authority = DevelopmentAuthority(tmp_path)
    client = authority.issue("application", "orders")
    with pytest.raises(FAILED):
        await test_peer_verification.test_an_application_at_a_nodes_address_is_sent_nothing(authority, client, use, test_peer_verification.NODE)
    with pytest.raises(FAILED):
        await test_peer_verification.test_another_node_than_the_announced_one_is_sent_nothing(authority, client, use)


@pytest.mark.slow
async def test_a_peer_of_any_identity_is_sent_direct_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow: the client waits until the impostor, which reads and says nothing, counts as lost."""
    monkeypatch.setattr(connection, "expect_node", lambda address, identity, announced: identity)
    authority = DevelopmentAuthority(tmp_path)
    with pytest.raises(ConnectionLost, match="peer is silent"):
        await test_peer_verification.test_another_process_at_the_direct_port_is_sent_nothing(
            authority, authority.issue("application", "orders"), monkeypatch
        )


# ---- 5: one entry stops none of its neighbors, and belongs to one principal ------------------------------------------------------------------------


def _unchecked(path: str, node: Node | None, parse: Callable[[bytes], Any]) -> Any:
    return None if node is None else parse(node.data)


async def test_an_entry_of_a_subscriber_stops_its_neighbors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribers, "readable", _unchecked)
    with pytest.raises(ValueError, match="Expecting value"):
        await test_subscriber_calls.test_one_malformed_entry_is_skipped_reported_and_removable(b"x")


def test_an_entry_of_an_outbox_stops_its_neighbors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "readable", _unchecked)
    with pytest.raises(ValueError, match="Expecting value"):
        test_identity_repair.test_an_entry_that_is_none_stops_neither_servers_nor_commands_and_is_removed(b"x")


async def test_a_subscriber_belongs_to_every_principal(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SubscriberCalls, "_held", lambda self, binds: None)
    with pytest.raises(FAILED):
        await test_subscriber_calls.test_a_subscriber_is_its_principals_alone_and_does_not_exist_for_others(cluster)


# ---- 6 and 7: memory and time before trust, and beyond it ------------------------------------------------------------------------------------------


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Plants the bug of that name (`planted_costs.py`) in the nodes that tests of costs start."""
    real = test_request_costs.serving

    def planted(name: str) -> None:
        for module in (test_request_costs, test_stream_costs):
            monkeypatch.setattr(module, "serving", partial(real, plant=name))

    return planted


@KINDS
@pytest.mark.timeout(120)
async def test_requests_of_any_size_are_served(tmp_path: Path, kind: str, plant: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant("requests of any size")
    monkeypatch.setattr(test_request_costs, "ROWS", {methods.TRACES: test_request_costs.ROWS[methods.TRACES]})
    with pytest.raises(AssertionError, match=r"/waltz\.Server/Traces larger"):
        await test_request_costs.test_no_procedure_costs_more_memory_or_time_than_its_limits_say(tmp_path, kind)


@KINDS
@pytest.mark.timeout(120)
async def test_a_request_is_received_before_the_gate(
    tmp_path: Path, kind: str, plant: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant("gate after the request")
    monkeypatch.setattr(test_request_costs, "METHODS", [methods.TRACES])
    with pytest.raises(AssertionError):
        await test_request_costs.test_a_caller_without_a_role_is_refused_before_its_request_is_received(tmp_path, kind)


@KINDS
@pytest.mark.timeout(120)
async def test_a_frame_of_millions_of_locks_is_ordered_in_one_piece(tmp_path: Path, kind: str, plant: Callable[[str], None]) -> None:
    plant("frames in one piece")
    with pytest.raises(AssertionError, match="longest="):
        await test_stream_costs.test_a_frame_of_millions_of_locks_keeps_no_other_partition_waiting(tmp_path, kind)


@KINDS
@pytest.mark.parametrize("bug", ["places for all", "windows that grow"])
@pytest.mark.timeout(120)
async def test_calls_that_wait_receive_as_much_as_is_sent(tmp_path: Path, kind: str, bug: str, plant: Callable[[str], None]) -> None:
    plant(bug)
    with pytest.raises(ExceptionGroup) as found:
        await test_stream_costs.test_large_messages_that_arrive_slowly_hold_what_a_few_places_may(tmp_path, kind, "a request")
    assert "grown=" in str(found.value.exceptions[0])


@KINDS
@pytest.mark.timeout(120)
async def test_what_is_not_read_has_no_limit(tmp_path: Path, kind: str, plant: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant("unread without limit")
    monkeypatch.setattr(test_stream_costs, "FEEDS", 40)  # of 8 MiB each
    with pytest.raises(AssertionError, match="grown="):
        await test_stream_costs.test_feeds_that_are_not_read_hold_what_one_principal_may_and_delay_no_other(tmp_path, kind)


@KINDS
@pytest.mark.timeout(120)
async def test_a_frame_has_the_memory_that_it_announces(
    tmp_path: Path, kind: str, plant: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant("memory as announced")
    monkeypatch.setattr(test_stream_costs, "ANNOUNCED", 12)
    with pytest.raises(AssertionError, match="grown="):
        await test_stream_costs.test_frames_that_are_announced_and_not_sent_hold_little_and_give_it_back(tmp_path, kind)
