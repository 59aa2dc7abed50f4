"""What each procedure costs a node: the largest request that is accepted, and larger ones, from principals with and without a right.

Memory and processor time are those of another process (`costly_node.py`), alone and as one of two workers that passes the call on. The procedures are
those of the transport, of the table of permits, and of the services that a process offers beside them: one without a row here fails."""

from __future__ import annotations

import asyncio
import json
import re
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple  # Any: gRPC's channels and calls

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from tests.integration.log.costly_node import PARTITION
from waltz_log.core.ports import CallMethod, Method, ReadMethod
from waltz_log.processes import health
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.certificates import Certificates
from waltz_log.security.permits import PERMITTED
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.call_streams import EOF
from waltz_log.transport.grpc_channels import CHANNEL_OPTIONS
from waltz_log.transport.request_limits import REQUEST_BYTES_MAX, request_bytes_max

AnyMethod = Method[Any, Any]
METHODS: list[AnyMethod] = sorted((each for each in vars(methods).values() if isinstance(each, Method)), key=lambda method: method.name)

ROOT = Path(__file__).parents[3]

HEALTH = "/grpc.health.v1.Health"
CHECK = CallMethod(f"{HEALTH}/Check", health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse)
WATCH = ReadMethod(f"{HEALTH}/Watch", health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse)
BESIDE: list[AnyMethod] = [CHECK, WATCH]
"""Every certificate may call these, also one without a role."""

CALLS = 12
"""At once, of one principal."""

GROWTH_BYTES_MAX = 64 << 20
PEAK_BYTES_MAX = {"largest": 96 << 20, "larger": 48 << 20, "compressed": 16 << 20}
"""While an attack goes on, above what was resident before. Measured on two busy cores: 55 MiB (`Mount`), 30 MiB (any), less than 1 MiB."""

CALLBACK_S_MAX = 0.06
"""Processor time of one callback: three times what the largest accepted requests need."""

ENDLESS = (methods.MOUNT, methods.FOLLOW, WATCH)
"""Where they are accepted, they go on until their caller ends them."""

KINDS = pytest.mark.parametrize("kind", [pytest.param("alone", marks=pytest.mark.slow), "workers"])
"""In CI, two workers, of which one passes calls on that the other one serves, stand for a node of one process too (`make request-costs`: both)."""

CALLERS = {
    "without a role": ("stranger", "ada"),
    "without a rule": ("application", "ada"),
    "with every rule": ("application", "trusted-good"),
    "a node": ("node", "other"),
}

KEY_BYTES = 16
LARGER = (2 << 20) - 1
"""Bytes of a request that is refused, because it is larger than any may be."""

FILLER = 1999
"""A field that no message has: protobuf keeps it as it is."""


def _filled(message: Any, size: int) -> bytes:
    """The message with an unknown field, in that many bytes."""
    data: bytes = message.SerializeToString()
    left = size - len(data) - 2 - 3  # tag and length
    return data + _varint(FILLER << 3 | 2) + (bytes([left & 0x7F | 0x80, left >> 7 & 0x7F | 0x80, left >> 14]) + bytes(left))


def _varint(value: int) -> bytes:
    return bytes([value & 0x7F | 0x80, value >> 7]) if value > 0x7F else bytes([value])


def _plain(method: AnyMethod, key: bytes) -> Any:
    fields = {each.name: each for each in method.request.DESCRIPTOR.fields}
    given: dict[str, Any] = {"cluster_key": key} if "cluster_key" in fields else {}
    if "partition" in fields:
        given["partition"] = PARTITION
    return method.request(**given)


def _generic(method: AnyMethod, key: bytes, size: int) -> bytes:
    return _filled(_plain(method, key), size)


def _mount(method: AnyMethod, key: bytes, size: int) -> bytes:
    """As many empty names as fit: each needs two bytes here, and 16 decoded."""
    request = pb.MountRequest(cluster_key=key, partition=PARTITION, protocol_version=methods.PROTOCOL_VERSION, client_high_water_mark=-1)
    request.topics.extend([""] * ((size - 128) // 2))
    return _filled(pb.ClientMessage(mount=request), size)


def _bound(method: AnyMethod, key: bytes, size: int) -> bytes:
    """As many partitions as a log has; more of them in a larger one."""
    count = 4096 if size <= request_bytes_max(method) else size - 256
    return _filled(pb.BoundRequest(cluster_key=key, partitions=[PARTITION] * count), size)


def _transactions(method: AnyMethod, key: bytes, size: int) -> bytes:
    count = min(65_536, (size - 128) // 8)
    return _filled(pb.TransactionRequest(cluster_key=key, partition=PARTITION, transaction_ids=struct.pack(f">{count}q", *range(count))), size)


def _resolve(method: AnyMethod, key: bytes, size: int) -> bytes:
    return _filled(pb.ResolveRequest(cluster_key=key, partition=PARTITION, client_id=1, last_sequence=1 << 60, since=-1), size)


def _open(method: AnyMethod, key: bytes, size: int) -> bytes:
    return _filled(pb.OpenRequest(cluster_key=key, partition=PARTITION, readers=[""] * ((size - 128) // 2)), size)


def _read(method: AnyMethod, key: bytes, size: int) -> bytes:
    return _filled(pb.ReadRequest(cluster_key=key, partition=PARTITION, last_transaction_id=1 << 60, max_bytes=1 << 60), size)


def _locate(method: AnyMethod, key: bytes, size: int) -> bytes:
    request = pb.LocateRequest(cluster_key=key, partition=PARTITION, times_ms=bytes(8 * 64), last_transaction_id=1 << 60, max_bytes=1 << 60)
    return _filled(request, size)


def _compact(method: AnyMethod, key: bytes, size: int) -> bytes:
    of = pb.TopicPartition(namespace="a", topic="b", properties={f"{each:05}": "" for each in range(size // 16)})
    return _filled(pb.CompactRequest(cluster_key=key, partition=PARTITION, of=of), size)


def _subscribers(method: AnyMethod, key: bytes, size: int) -> bytes:
    labels = {f"{each:05}": "" for each in range((size - 128) // 16)}
    return _filled(pb.SubscribersRequest(cluster_key=key, action=pb.SubscribersRequest.ACTION_REPORT, name="a", labels=labels), size)


def _topics(method: AnyMethod, key: bytes, size: int) -> bytes:
    plan = pb.TopicPlan(partitions=1, type="regular", properties={f"{each:05}": "" for each in range((size - 128) // 16)})
    return _filled(pb.TopicsRequest(cluster_key=key, action=pb.TopicsRequest.ACTION_CREATE, topic="a/b", plan=plan, dry_run=True), size)


def _placement(method: AnyMethod, key: bytes, size: int) -> bytes:
    partitions = [PARTITION] * min(4096, size - 128)
    return _filled(
        pb.PlacementRequest(cluster_key=key, action=pb.PlacementRequest.ACTION_MOVE, partitions=partitions, server="a", dry_run=True), size
    )


Request = Callable[[AnyMethod, bytes, int], bytes]

ROWS: dict[AnyMethod, Request] = {
    methods.MOUNT: _mount,
    methods.SERVER_DIRECT: _mount,
    methods.BOUND: _bound,
    methods.RESOLVE: _resolve,
    methods.TRANSACTIONS: _transactions,
    methods.TRACES: _generic,
    methods.SERVER_STATUS: _generic,
    methods.FOLLOW: _generic,
    methods.CONFIRM: _generic,
    methods.CLIENT_ID: _generic,
    methods.OUTBOX: _generic,
    methods.SUBSCRIBERS: _subscribers,
    methods.TOPICS: _topics,
    methods.CLUSTER: _generic,
    methods.PLACEMENT: _placement,
    methods.KEEP_CLIENT_IDS: _generic,
    methods.OPEN: _open,
    methods.SET_LOW_WATER_MARK: _generic,
    methods.KEEP_PROGRESS: _generic,
    methods.TRUNCATE: _generic,
    methods.REPLICATE: _generic,
    methods.STORAGE_DIRECT: _generic,
    methods.READ: _read,
    methods.LOCATE: _locate,
    methods.PING: _generic,
    methods.STORAGE_STATUS: _generic,
    methods.DESCRIBE: _generic,
    methods.TRIM: _generic,
    methods.BEGIN: _generic,
    methods.COMPACT: _compact,
    methods.READ_VIEW: _generic,
    methods.LOAD_VIEW: _generic,
    methods.DROP_VIEW: _generic,
    CHECK: _generic,
    WATCH: _generic,
}


def _limit(method: AnyMethod) -> int:
    return health.REQUEST_BYTES_MAX if method in BESIDE else request_bytes_max(method)


FOR_TESTS_OF_USERS = "platform/spark_source/pyspark_waltz/testing.py"
"""It serves no peers but those of a test."""


async def _ready() -> bool:
    raise AssertionError("no call is made")


def test_every_procedure_has_a_row_and_a_limit() -> None:
    of_the_transport = {each.name for each in METHODS}
    assert of_the_transport == set(PERMITTED) == {each.name for each in REQUEST_BYTES_MAX}
    beside = {f"/{service}/{name}" for service, handlers in health.health_handler(_ready)(()).items() for name in handlers}
    assert {each.name for each in ROWS} == of_the_transport | beside


def test_processes_offer_nothing_beside_their_services_but_the_health_service() -> None:
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "platform").rglob("*.py")}
    given = {found for text in sources.values() for found in re.findall(r"\bbeside=(\w+)", text)}
    assert given == {"beside", "health_handler"}, "its procedures need rows here"
    registering = {name for name, text in sources.items() if re.search(r"\badd_(registered_method|generic_rpc)_handlers\b", text)}
    assert registering == {"platform/log/waltz_log/transport/served_calls.py", FOR_TESTS_OF_USERS}


@pytest.mark.parametrize("method", ROWS, ids=lambda each: each.name)
def test_the_largest_request_of_a_row_is_as_large_as_is_accepted(method: AnyMethod) -> None:
    assert len(ROWS[method](method, bytes(KEY_BYTES), _limit(method))) == _limit(method)


# ---- the node --------------------------------------------------------------------------------------------------------------------------------------


class Used(NamedTuple):
    resident_bytes: int
    peak_bytes: int
    """The most that was resident since the last time."""
    longest_s: float


class Cost(NamedTuple):
    grown_bytes: int
    """What is left behind."""
    peak_bytes: int
    """The most that was resident meanwhile, above what was before."""
    longest_s: float


class Node:
    def __init__(self, process: asyncio.subprocess.Process, address: str, key: bytes, authority: DevelopmentAuthority) -> None:
        self._process = process
        self.address = address
        self.key = key
        self.authority = authority

    async def used(self) -> Used:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        async with asyncio.timeout(30):
            return Used(**json.loads(await self._process.stdout.readline()))

    @asynccontextmanager
    async def channel(self, role: str, name: str, **options: Any) -> AsyncIterator[Any]:
        tls = self.authority.find(role, name) or self.authority.issue(role, name)
        pem = Certificates(tls).current()
        credentials = grpc.ssl_channel_credentials(pem.authorities, pem.key, pem.certificate)
        sending = [
            *(each for each in CHANNEL_OPTIONS if "compression" not in each[0]),
            ("grpc.http2.bdp_probe", 0),
        ]  # it buffers no more than it must
        channel = grpc.aio.secure_channel(self.address, credentials, options=sending, **options)
        try:
            yield channel
        finally:
            await channel.close(None)


@asynccontextmanager
async def serving(directory: Path, kind: str, **settings: Any) -> AsyncIterator[Node]:
    authority = DevelopmentAuthority(directory)
    authority.issue("node", "served")
    program = Path(__file__).with_name("costly_node.py")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(program), str(directory), kind, json.dumps(settings)), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            said = json.loads(await process.stdout.readline())
        yield Node(process, said["address"], bytes.fromhex(said["key"]), authority)
    finally:
        process.kill()
        await process.wait()


async def _call(channel: Any, method: AnyMethod, request: bytes) -> grpc.StatusCode:
    """How one call ends that sends this and reads what it is answered."""
    call = channel.stream_stream(method.name)(timeout=1 if method in ENDLESS else 20)
    try:
        await call.write(request)
        await call.done_writing()
        while await call.read() is not EOF:
            pass
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass
    code: grpc.StatusCode = await call.code()
    return code


async def cost(node: Node, work: Callable[[], Awaitable[Any]]) -> Cost:
    """The shortest of three longest callbacks counts, if the first is longer than may be: processes that share a core and its caches make the same
    work need more processor time, never less."""
    before = await node.used()
    longest_s, peak_bytes = float("inf"), 0
    for _ in range(3):
        await work()
        after = await node.used()
        longest_s, peak_bytes = min(longest_s, after.longest_s), max(peak_bytes, after.peak_bytes)
        if longest_s <= CALLBACK_S_MAX:
            break
    return Cost(after.resident_bytes - before.resident_bytes, peak_bytes - before.resident_bytes, longest_s)


async def _largest(node: Node, callers: dict[str, tuple[str, str]]) -> list[str]:
    """Each procedure with the largest request, a larger one, and a small one that is large decompressed. Returns what costs too much."""
    faults = []
    for who, (role, name) in callers.items():
        async with node.channel(role, name) as channel, node.channel(role, name, compression=grpc.Compression.Gzip) as compressing:
            for method, request in ROWS.items():
                limit = _limit(method)
                largest, larger = request(method, node.key, limit), request(method, node.key, LARGER)
                attacks = {
                    "largest": [(channel, largest)] * CALLS,
                    "larger": [(channel, larger)] * (CALLS // 2),
                    "compressed": [(compressing, larger)] * (CALLS // 2),
                }
                for what, calls in attacks.items():
                    codes: list[grpc.StatusCode] = []

                    async def work() -> None:
                        codes.extend(await asyncio.gather(*(_call(each, method, data) for each, data in calls)))  # noqa: B023

                    grown, peak, longest_s = await cost(node, work)
                    ended = sorted({each.name for each in codes})
                    memory = f"grown={grown >> 20} MiB peak={peak >> 20} MiB"
                    where = f"{method.name} {what} {who}: {memory} longest={1000 * longest_s:.0f} ms {ended}"
                    if grown > GROWTH_BYTES_MAX or peak > PEAK_BYTES_MAX[what] or longest_s > CALLBACK_S_MAX:
                        faults.append(where)
                    by_limit = grpc.StatusCode.INVALID_ARGUMENT if method in BESIDE else grpc.StatusCode.FAILED_PRECONDITION
                    refused = {grpc.StatusCode.UNIMPLEMENTED if what == "compressed" else by_limit}
                    refused |= {grpc.StatusCode.INTERNAL}  # gRPC's own, where the call ended while its request was being sent
                    served = {grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED} if what == "largest" else set[grpc.StatusCode]()
                    if not {*codes} <= refused | served:
                        faults.append(f"not refused as it should be: {where}")
    return faults


@KINDS
@pytest.mark.timeout(240)
async def test_no_procedure_costs_more_memory_or_time_than_its_limits_say(tmp_path: Path, kind: str) -> None:
    async with serving(tmp_path, kind) as node:
        assert await _largest(node, {who: CALLERS[who] for who in ("without a role", "without a rule", "with every rule")}) == []


@KINDS
@pytest.mark.timeout(120)
async def test_a_caller_without_a_role_is_refused_before_its_request_is_received(tmp_path: Path, kind: str) -> None:
    """It sends none: a node that waited for it would not answer."""
    async with serving(tmp_path, kind) as node, node.channel("stranger", "ada") as channel:

        async def refused(method: AnyMethod) -> str:
            call = channel.stream_stream(method.name)(timeout=15)
            await call.code()
            return str(await call.details())

        assert all("PermissionDenied" in each for each in await asyncio.gather(*map(refused, METHODS)))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["alone", "workers"])
async def test_no_procedure_costs_more_for_any_caller_however_often(tmp_path: Path, kind: str) -> None:
    async with serving(tmp_path, kind) as node:
        began = await node.used()
        for _ in range(5):
            assert await _largest(node, CALLERS) == []
        assert (await node.used()).resident_bytes - began.resident_bytes < 2 * GROWTH_BYTES_MAX
