"""Garbage, truncated and oversized frames on every port, and strangers: the connection ends with an error, the process lives on."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import grpc.aio
import pytest

from waltz_log.client import SyncWaltzClient
from waltz_log.core.ports import AnyMethod
from waltz_log.errors import ClusterKeyMismatch, ProtocolViolation, WaltzError
from waltz_log.processes.local_cluster import LocalCluster
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.grpc import GrpcNetwork

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory: Path = tmp_path_factory.mktemp("cluster")
    with LocalCluster(directory, partitions=1, servers=1) as running:
        yield running


def _ports(cluster: LocalCluster) -> dict[str, int]:
    found: dict[str, int] = json.loads((cluster.directory / "dev.json").read_text())["ports"]
    return {name: port for name, port in found.items() if name != "zookeeper"}


def _still_serves(cluster: LocalCluster, before: dict[str, int]) -> None:
    assert cluster.processes == before
    with SyncWaltzClient(cluster.cluster) as client:
        client.append(0, b"still here")


def test_raw_garbage_on_a_port_does_not_end_a_process(cluster: LocalCluster) -> None:
    before = cluster.processes
    for port in _ports(cluster).values():
        for junk in (os.urandom(100_000), b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(5000), b"\0" * 65536):
            with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                try:
                    connection.sendall(junk)
                    while connection.recv(65536):
                        pass
                except (ConnectionError, TimeoutError):
                    pass  # closed by the peer, as it should be
    _still_serves(cluster, before)


@pytest.mark.parametrize("junk", [b"\xff" * 100, os.urandom(1000), b"\x0a\xff\xff\xff\x7f"], ids=["ones", "random", "truncated"])
async def test_messages_that_are_garbage_end_their_call_with_an_error(cluster: LocalCluster, junk: bytes) -> None:
    before = cluster.processes
    calls: dict[str, list[AnyMethod]] = {
        "server": [methods.MOUNT, methods.BOUND, methods.RESOLVE, methods.TRANSACTIONS],
        "storage": [methods.OPEN, methods.SET_LOW_WATER_MARK, methods.TRUNCATE, methods.REPLICATE, methods.READ, methods.LOCATE],
    }
    for name, port in _ports(cluster).items():
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for method in calls[name.split("-")[0]]:
                make: Any = {"call": channel.unary_unary, "read": channel.unary_stream, "stream": channel.stream_stream}[method.kind]
                call = make(method.name)(iter([junk]) if method.kind == "stream" else junk, timeout=10)
                with pytest.raises(grpc.aio.AioRpcError):
                    if method.kind == "call":
                        await call
                    else:
                        async for _ in call:
                            pass
    await asyncio.to_thread(_still_serves, cluster, before)


async def test_a_frame_above_the_limit_is_refused_before_it_is_read(cluster: LocalCluster) -> None:
    before = cluster.processes
    huge = pb.ClientMessage(append=pb.AppendFrame(records=bytes(methods.MAX_FRAME_BYTES + 1))).SerializeToString()
    port = next(port for name, port in _ports(cluster).items() if name.startswith("server"))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.max_send_message_length", -1)]) as channel:
        call = channel.stream_stream(methods.MOUNT.name, None, None)(iter([huge]), timeout=20)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await asyncio.to_thread(_still_serves, cluster, before)


async def test_a_foreign_cluster_key_is_refused_by_storage_and_server(cluster: LocalCluster) -> None:
    network = GrpcNetwork()
    key = uuid4().bytes
    for name, port in _ports(cluster).items():
        channel = network.connect(f"127.0.0.1:{port}")
        with pytest.raises(ClusterKeyMismatch):
            if name.startswith("storage"):
                await channel.call(methods.OPEN, pb.OpenRequest(cluster_key=key, partition=0, session=10**9), timeout_s=5)
            else:
                await channel.call(methods.BOUND, pb.BoundRequest(cluster_key=key), timeout_s=5)
        await channel.close()


async def test_an_unknown_protocol_version_and_a_stream_without_mount_are_refused_with_a_word(cluster: LocalCluster) -> None:
    port = next(port for name, port in _ports(cluster).items() if name.startswith("server"))
    channel = GrpcNetwork().connect(f"127.0.0.1:{port}")
    for message, word in (
        (pb.ClientMessage(mount=pb.MountRequest(protocol_version=99)), "version 99"),
        (pb.ClientMessage(flush=pb.FlushRequest()), "must be a mount"),
    ):
        stream = channel.open(methods.MOUNT)
        with pytest.raises(ProtocolViolation, match=word):
            await stream.send(message)
            await stream.receive()
    await channel.close()


async def test_appending_before_ready_or_as_a_reader_ends_the_stream(cluster: LocalCluster) -> None:
    from waltz_log.coordination.coordinator import ZooKeeperCoordinator
    from waltz_log.core import metadata as paths
    from waltz_log.core.metadata import ClusterParameters

    coordinator = await ZooKeeperCoordinator.connect(cluster.coordinator, session_timeout_s=4, timeout_s=10)
    node = await coordinator.get(paths.CLUSTER)
    await coordinator.close()
    assert node is not None
    port = next(port for name, port in _ports(cluster).items() if name.startswith("server"))
    channel = GrpcNetwork().connect(f"127.0.0.1:{port}")
    stream = channel.open(methods.MOUNT)
    mount = pb.MountRequest(
        protocol_version=methods.PROTOCOL_VERSION,
        cluster_key=ClusterParameters.from_bytes(node.data).key.bytes,
        client_id=0,
        partition=0,
        mount_sequence=1,
        client_high_water_mark=-1,
        feed=pb.FEED_NONE,
    )
    await stream.send(pb.ClientMessage(mount=mount))
    answer = await stream.receive()
    assert answer is not None
    assert answer.WhichOneof("kind") == "mounted"
    await stream.send(pb.ClientMessage(append=pb.AppendFrame()))
    with pytest.raises(WaltzError, match="not mounted for appends"):
        await stream.receive()
    await channel.close()
