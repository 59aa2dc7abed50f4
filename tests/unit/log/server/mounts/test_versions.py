"""Protocol versions: two that overlap talk in the highest they share; others are refused with both ranges."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_log.client import ClientSettings
from waltz_log.errors import OutcomeUnknown, ProtocolViolation, WaltzError
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time
from waltz_log.transport import methods, versions
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.versions import Versions, agreed

RANGES = st.tuples(st.integers(1, 6), st.integers(1, 6)).map(lambda pair: Versions(min(pair), max(pair)))


@settings(max_examples=100, deadline=None)
@given(RANGES, RANGES)
def test_the_highest_version_that_both_speak_is_used(client: Versions, server: Versions) -> None:
    common = set(range(client.lowest, client.highest + 1)) & set(range(server.lowest, server.highest + 1))
    if common:
        assert agreed(client, server) == max(common)
    else:
        with pytest.raises(ProtocolViolation) as refused:
            agreed(client, server)
        assert str(client) in str(refused.value)
        assert str(server) in str(refused.value)


async def _mounted(cluster: MemoryCluster, *, highest: int, lowest: int) -> pb.MountResponse:
    address = next(iter(cluster.servers.values()))[0].address
    stream = cluster.network.connect(address).open(methods.MOUNT)
    request = pb.MountRequest(protocol_version=highest, lowest_protocol_version=lowest, cluster_key=cluster.key.bytes, client_high_water_mark=-1)
    try:
        await stream.send(pb.ClientMessage(mount=request))
        answer = await stream.receive()
    finally:
        await stream.cancel()
    assert answer is not None
    mounted: pb.MountResponse = answer.mounted
    return mounted


def test_a_server_talks_with_clients_of_other_versions_as_far_as_they_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(versions, "SPOKEN", Versions(1, 1))
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        client = await cluster.connect()
        await client.append(0, b"x")
        # a newer client that still accepts ours, an old one that names no lowest
        assert (await _mounted(cluster, highest=2, lowest=1)).protocol_version == 1
        assert (await _mounted(cluster, highest=1, lowest=0)).protocol_version == 1
        for highest, lowest, reported in ((3, 2, "versions 2 to 3"), (2, 0, "version 2"), (0, 0, "version 0")):
            with pytest.raises(ProtocolViolation) as refused:
                await _mounted(cluster, highest=highest, lowest=lowest)
            assert f"the client speaks {reported}, this server version 1" in str(refused.value)
        monkeypatch.setattr(versions, "SPOKEN", Versions(1, 2))
        assert (await _mounted(cluster, highest=1, lowest=0)).protocol_version == 1
        assert (await _mounted(cluster, highest=2, lowest=0)).protocol_version == 2
        assert (await _mounted(cluster, highest=9, lowest=1)).protocol_version == 2
        # and the whole client, newer than its server was a moment ago, appends and reads on
        assert (await client.append(0, b"y")).transaction_id == 1
        newer = await cluster.connect()
        assert (await newer.append(0, b"z")).transaction_id == 2
        async with asyncio.timeout(10):
            async for transaction in newer.feed(0):
                if transaction.transaction_id == 2:
                    break
        await client.close()
        await newer.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_a_client_without_a_common_version_appends_nothing_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(versions, "SPOKEN", Versions(1, 1))
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        client = await cluster.connect(ClientSettings(retry_base_s=0.01, append_timeout_s=2))
        mounting = versions.SPOKEN
        monkeypatch.setattr("waltz_log.client.owners.mounting.versions.SPOKEN", Versions(2, 3))
        monkeypatch.setattr("waltz_log.server.node.server.versions", type("Older", (), {"SPOKEN": mounting}))
        with pytest.raises(WaltzError) as failed:
            await client.append(0, b"x")
        assert not isinstance(failed.value, OutcomeUnknown)
        assert "the client speaks versions 2 to 3, this server version 1" in str(failed.value)
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_a_version_that_the_client_does_not_speak_is_refused_by_it() -> None:
    versions.expect_spoken(2, Versions(1, 2), "a:1")
    with pytest.raises(ProtocolViolation, match=r"version 3, this client speaks versions 1 to 2: address=a:1"):
        versions.expect_spoken(3, Versions(1, 2), "a:1")
