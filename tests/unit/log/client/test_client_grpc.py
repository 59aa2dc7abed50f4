"""The client over real connections, against a scripted cluster in the same loop: what only the transport can get wrong."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from structlog.testing import capture_logs

from waltz_log.client import ClientSettings, WaltzClient
from waltz_log.errors import ClusterUnavailable, ConnectionLost, InvalidRequest, InvalidSetting, NotAppended, OutcomeUnknown, WaltzError
from waltz_log.testing.known_servers import KnownServers
from waltz_log.testing.memory_coordinator import MemoryEnsemble
from waltz_log.testing.scripted_server import Break, ScriptedCluster
from waltz_log.transport.grpc import GrpcNetwork
from waltz_log.transport.methods import MOUNT


@pytest.fixture
async def ensemble() -> MemoryEnsemble:
    return MemoryEnsemble()


@pytest.fixture(params=[0, -1], ids=["direct", "grpc"])
async def cluster(request: pytest.FixtureRequest, ensemble: MemoryEnsemble) -> AsyncIterator[ScriptedCluster]:
    made = ScriptedCluster(GrpcNetwork(request.param), ensemble.session(), partitions=2, address="127.0.0.1:0")
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def client(cluster: ScriptedCluster) -> AsyncIterator[WaltzClient]:
    settings = ClientSettings(retry_base_s=0.001, retry_cap_s=0.01, append_timeout_s=10, frame_bytes=4096)
    async with await WaltzClient.connect_over(cluster.seeds, GrpcNetwork(), settings) as made:
        yield made


async def test_breaks_on_a_real_connection_cost_nothing_and_repeat_nothing(client: WaltzClient, cluster: ScriptedCluster) -> None:
    cluster.logs[0].faults.extend([None, Break("before"), None, Break("after"), None, Break("after")])
    futures = [await client.append_nowait(0, b"%d" % n) for n in range(1000)]
    assert [(await future).transaction_id for future in futures] == list(range(1000))
    assert cluster.logs[0].data() == [b"%d" % n for n in range(1000)]


async def test_a_feed_leaves_an_owner_that_does_not_know_it_was_deposed(client: WaltzClient, cluster: ScriptedCluster) -> None:
    async with asyncio.timeout(10), aclosing(client.feed(0)) as feed:
        for number in range(4):
            await client.append(0, b"%d" % number)
            assert (await anext(feed)).data == b"%d" % number
            await cluster.move(0, 2 - number % 2, notify=False)


async def test_a_server_that_closes_is_followed_by_the_next(client: WaltzClient, cluster: ScriptedCluster) -> None:
    await client.append(0, b"0")
    first = cluster.servers[0].listener
    assert first is not None
    await first.close()
    cluster.servers[0].listener = None
    appended = asyncio.create_task(client.append(0, b"1"))
    await cluster.move(0, 2)
    assert (await appended).transaction_id == 1


async def test_a_client_whose_event_loop_is_closed_says_so_and_can_be_closed(cluster: ScriptedCluster) -> None:
    async def begin() -> WaltzClient:
        client = await WaltzClient.connect_over(cluster.seeds, GrpcNetwork())
        await client.append(0, b"in the first loop")
        return client

    async def go_on(client: WaltzClient) -> None:
        for _ in range(2):
            with pytest.raises(InvalidRequest, match="another event loop, which is closed"):
                await client.append(0, b"")
        await client.close()
        await client.close()

    client = await asyncio.to_thread(asyncio.run, begin())
    await asyncio.to_thread(asyncio.run, go_on(client))
    assert cluster.logs[0].data() == [b"in the first loop"]


CLOSE_WHILE_READING = """
import gc, sys, threading, time
from waltz_log.client import SyncWaltzClient
from waltz_log.errors import InvalidRequest

for _ in range(5):
    client = SyncWaltzClient(sys.argv[1])
    client.append(0, b"x")
    ends, reading = [], threading.Barrier(9)

    def iterate(stops):
        try:
            for number, _ in enumerate(client.feed(0)):
                if number == 0:
                    reading.wait(10)
                if stops:
                    time.sleep(0.01)
        except InvalidRequest as error:
            ends.append(str(error))

    threads = [threading.Thread(target=iterate, args=(number % 2,)) for number in range(8)]
    for thread in threads:
        thread.start()
    reading.wait(10)
    client.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert ends == ["invalid request: the client is closed"] * 8 or ends == ["the client is closed"] * 8, ends
    del threads
    gc.collect()
print("done")
"""


async def test_a_blocking_client_that_is_closed_ends_the_feeds_of_other_threads_quietly(cluster: ScriptedCluster) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CLOSE_WHILE_READING, cluster.servers[0].address), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await asyncio.wait_for(process.communicate(), 60)
    assert (output.decode(), errors.decode(), process.returncode) == ("done\n", "", 0)


async def test_a_port_that_is_not_a_log_servers_is_named_at_once() -> None:
    network = GrpcNetwork()
    listener = await network.serve("127.0.0.1:0", [])
    with pytest.raises(InvalidSetting, match="not the address of log servers, another kind of node answers"):
        await WaltzClient.connect_over(KnownServers(lambda: [listener.address]), GrpcNetwork(), ClientSettings(connect_timeout_s=60))
    await listener.close()


async def test_an_address_where_nothing_listens_is_logged_at_once_and_reported_in_time() -> None:
    with capture_logs() as logs, pytest.raises(ClusterUnavailable, match="Connection refused"):
        await WaltzClient.connect("127.0.0.1:9", ClientSettings(connect_timeout_s=1))
    assert [(each["event"], each["log_level"]) for each in logs] == [("no log server answers yet, retrying", "warning")]
    assert "Connection refused" in logs[0]["reason"]
    with pytest.raises(ClusterUnavailable, match=r"no name resolves: nosuchhost\.invalid"):
        await WaltzClient.connect("nosuchhost.invalid:5101", ClientSettings(connect_timeout_s=1))


async def test_closing_the_client_ends_what_waits_on_its_connections(client: WaltzClient, cluster: ScriptedCluster) -> None:
    async with aclosing(client.feed(0)) as feed:
        reading = asyncio.ensure_future(anext(feed))
        await client.append(0, b"0")
        await reading
        reading = asyncio.ensure_future(anext(feed))
        cluster.logs[1].gate.clear()
        stuck = asyncio.create_task(client.append(1, b"", timeout_s=0.2))
        await asyncio.sleep(0.05)
        await client.close()
        with pytest.raises(InvalidRequest, match="closed"):
            await reading
        with pytest.raises((OutcomeUnknown, NotAppended)):
            await stuck


async def test_a_stream_cancelled_here_is_a_lost_connection_and_not_a_cancelled_task(cluster: ScriptedCluster) -> None:
    channel = GrpcNetwork().connect(cluster.servers[0].address)
    stream = channel.open(MOUNT)
    reading = asyncio.ensure_future(stream.receive())
    await asyncio.sleep(0.05)
    await stream.cancel()
    with pytest.raises(ConnectionLost):
        await reading
    other = channel.open(MOUNT)
    reading = asyncio.ensure_future(other.receive())
    await asyncio.sleep(0.05)
    await channel.close()
    with pytest.raises(WaltzError):
        await reading
    waiting = GrpcNetwork().connect(cluster.servers[0].address)
    task = asyncio.ensure_future(waiting.open(MOUNT).receive())
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await waiting.close()
