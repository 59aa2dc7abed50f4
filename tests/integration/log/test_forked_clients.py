"""Processes that fork while a client is open, or after it was closed. Each pattern runs in a process of its own, against servers of this one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest

from waltz_log.testing.memory_coordinator import MemoryEnsemble
from waltz_log.testing.scripted_server import ScriptedCluster
from waltz_log.transport.grpc import GrpcNetwork

pytestmark = pytest.mark.timeout(120)

BEGIN = """
import asyncio, multiprocessing, os, signal, sys, tempfile, time, warnings
from waltz_log.client import Intent, Outbox, SyncOutbox, SyncWaltzClient, WaltzClient
from waltz_log.client.inspection.inspect import ClusterInspector
from waltz_log.errors import InvalidRequest
from pyspark_waltz.channels import channel_to

warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of a fork beside threads, which is what is tried
CLUSTER = sys.argv[1]

def append_blocking():
    with SyncWaltzClient(CLUSTER) as client:
        client.append(0, b"child")

async def append_in_loop():
    async with WaltzClient.open(CLUSTER) as client:
        await client.append(0, b"child")

def append_asynchronous():
    asyncio.run(append_in_loop())

def submit():
    with tempfile.TemporaryDirectory() as directory, SyncOutbox(directory, CLUSTER) as outbox:
        outbox.submit(Intent.data(0, b"child"))

def inspect():
    with ClusterInspector(CLUSTER) as cluster:
        assert cluster.bounds()

def read_as_spark():
    channel_to(CLUSTER).close()

WAYS = [append_blocking, append_asynchronous, submit, inspect, read_as_spark]

def outcome(way):
    try:
        way()
    except InvalidRequest as error:
        return "refused" if "spawn or forkserver" in str(error) else f"unclear: {error}"
    except BaseException as error:
        return repr(error)
    return "done"

def in_child(way):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os.write(writing, outcome(way).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as found:
        text = found.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return text if code == 0 else f"exit code {code}"
"""

CLOSED_BLOCKING = """
append_blocking()
found = [in_child(way) for way in WAYS for _ in range(2)]
assert found == ["done"] * len(found), found
append_blocking()
"""

CLOSED_ASYNCHRONOUS = """
append_asynchronous()
inspect()
submit()
found = [in_child(way) for way in WAYS for _ in range(2)]
assert found == ["done"] * len(found), found
"""

OPEN_BLOCKING = """
with SyncWaltzClient(CLUSTER) as client:
    client.append(0, b"parent")
    inherited = lambda: client.append(0, b"child")
    feed = client.feed(0)
    found = [in_child(way) for way in [*WAYS, inherited, lambda: next(feed), lambda: client.append_nowait(0, b"").result()] for _ in range(3)]
    assert found == ["refused"] * len(found), found
    client.append(0, b"parent")
assert in_child(append_blocking) == "done"
"""

OPEN_ASYNCHRONOUS = """
async def fork():
    async with WaltzClient.open(CLUSTER) as client:
        await client.append(0, b"parent")
        found = [in_child(way) for way in [append_blocking, submit, inspect, read_as_spark] for _ in range(3)]
        assert found == ["refused"] * len(found), found
        await client.append(0, b"parent")

asyncio.run(fork())
"""

SPARK_CHANNEL = """
import gc
from waltz_log.transport import waltz_pb2
channel = channel_to(CLUSTER)
try:
    channel.unary_unary("/none")(b"", timeout=5)
except Exception as error:
    assert "UNIMPLEMENTED" in str(error), error
found = [in_child(way) for way in WAYS]
assert found == ["refused"] * len(found), found
"""

OUTBOX_OF_PARENT = """
async def run():
    with tempfile.TemporaryDirectory() as directory:
        async with Outbox.open(directory, CLUSTER) as outbox:
            await outbox.submit(Intent.data(0, b"parent"))
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                try:
                    await outbox.submit(Intent.data(0, b"child"))
                except InvalidRequest as error:
                    await outbox.close()
                    os._exit(0 if "forked" in str(error) else 3)
                os._exit(4)
            code = os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, child, 0))[1])
            assert code == 0, code
            await outbox.submit(Intent.data(0, b"parent"))

asyncio.run(run())
"""

UNRELATED_CHILDREN = """
import gc
with SyncWaltzClient(CLUSTER) as client:
    client.append(0, b"parent")

    def work():
        gc.collect()
        time.sleep(0.02)

    found = [in_child(work) for _ in range(40)]
    assert found == ["done"] * 40, found
    client.append(0, b"parent")
"""

POOL = """
append_blocking()
with multiprocessing.get_context("fork").Pool(3) as pool:
    found = pool.map(outcome, [append_blocking, append_asynchronous, inspect] * 4)
assert found == ["done"] * len(found), found
"""

POOL_BESIDE_A_CLIENT = """
with SyncWaltzClient(CLUSTER) as client:
    client.append(0, b"parent")
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(outcome, [append_blocking] * 4) == ["refused"] * 4
    for method in ("spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.map(len, ["abc"]) == [3]
"""

PRELOADED_SERVER = """
append_blocking()  # the application is imported once, checks the log, and then the server forks its workers, and forks again where one has ended

def serve():
    with SyncWaltzClient(CLUSTER) as client:
        for _ in range(50):
            client.append(0, b"worker")

def worker():
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if outcome(serve) == "done" else 1)
    return child

def ends(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

first = [worker() for _ in range(3)]
codes = [ends(child) for child in first] + [ends(worker()) for _ in range(3)]
assert codes == [0] * 6, codes
"""


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    made = ScriptedCluster(GrpcNetwork(), MemoryEnsemble().session(), address="127.0.0.1:0")
    await made.start()
    yield made
    await made.stop()


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param(CLOSED_BLOCKING, id="closed blocking clients: every way works in the child"),
        pytest.param(CLOSED_ASYNCHRONOUS, id="closed asynchronous clients: every way works in the child"),
        pytest.param(OPEN_BLOCKING, id="an open blocking client: every way is refused in the child"),
        pytest.param(OPEN_ASYNCHRONOUS, id="an open asynchronous client: every way is refused in the child"),
        pytest.param(SPARK_CHANNEL, id="an open channel of a Spark reader: every way is refused in the child"),
        pytest.param(OUTBOX_OF_PARENT, id="the child does not write the journal of its parent's outbox"),
        pytest.param(UNRELATED_CHILDREN, id="children that use no client live beside an open one"),
        pytest.param(POOL, id="a pool of processes after a closed client"),
        pytest.param(POOL_BESIDE_A_CLIENT, id="a pool of processes beside an open client"),
        pytest.param(PRELOADED_SERVER, id="a server that loads the application before it forks its workers"),
    ],
)
async def test_a_forked_child_works_or_is_refused_with_the_remedy(pattern: str, cluster: ScriptedCluster) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", BEGIN + pattern, cluster.servers[0].address, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await asyncio.wait_for(process.communicate(), 100)
    assert process.returncode == 0, output.decode(errors="replace")[-4000:]
