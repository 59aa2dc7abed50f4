"""Appends over mutual TLS compared with appends in plain text, in turns in one run: two clusters that differ in nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.load import pipelined, prepare, single
from benchmarks.measurement import Measurement, in_turns, percentile
from benchmarks.setting import Workload
from waltz_log.client import ClientSettings, WaltzClient
from waltz_log.processes.local_cluster import LocalCluster
from waltz_log.security.settings import TlsSettings
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.grpc import GrpcNetwork

__all__ = ["run"]

ROUNDS = 4
IN_FLIGHT = 16_000
HANDSHAKES = 20


def run(directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    with ExitStack() as stack:
        plain, secure = (
            stack.enter_context(LocalCluster(directory / name, partitions=1, storages=3, servers=1, secure=name == "secure"))
            for name in ("plain", "secure")
        )
        tls = secure.certificate("application", "bench")
        found = asyncio.run(_measure(plain.cluster, secure.cluster, tls, workload, conditions))
        handshake_ms = asyncio.run(_handshake_ms(tls, secure.certificate("node", "bench")))
        return [*found, Measurement("tls.handshake_ms", handshake_ms, "ms", {**conditions, "handshakes": HANDSHAKES})]


async def _measure(plain: str, secure: str, tls: TlsSettings, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    count, rates, latencies_ms = workload.pipelined // 2, list[tuple[float, float]](), list[tuple[float, float]]()
    prepare([1, IN_FLIGHT])
    async with (
        WaltzClient.open(plain) as without,
        WaltzClient.open(secure, ClientSettings(tls=tls)) as with_tls,
    ):
        for client in (without, with_tls):
            await pipelined(client, count // 4, window=IN_FLIGHT)
        for number in range(ROUNDS):
            clients = {"plain": without, "tls": with_tls}
            order = list(clients) if number % 2 else list(reversed(clients))
            fast = {name: (await pipelined(clients[name], count, window=IN_FLIGHT)).rate for name in order}
            alone = {name: percentile((await single(clients[name], workload.single // 2)).latencies_ms, 0.5) for name in order}
            rates.append((fast["tls"], fast["plain"]))
            latencies_ms.append((alone["tls"], alone["plain"]))
    more = [tls_ms - plain_ms for tls_ms, plain_ms in latencies_ms]
    spread = {"rounds": ROUNDS, "more_ms": f"{min(more):.2f} to {max(more):.2f}"}
    alone_ms = Measurement("tls.single_ms", median(each for each, _ in latencies_ms), "ms", {**conditions, "in_flight": 1, **spread})
    return [
        in_turns("tls.append", rates, "plain_text", {**conditions, "in_flight": IN_FLIGHT}),
        alone_ms.compared_with(median(each for _, each in latencies_ms), "plain text, in turns"),
    ]


async def _handshake_ms(tls: TlsSettings, node: TlsSettings) -> float:
    """The median extra time of a first call on a new connection, compared with a connection without TLS."""

    async def bound(_request: pb.BoundRequest) -> pb.BoundResponse:
        return pb.BoundResponse()

    async def first_call_ms(network: GrpcNetwork, serving: GrpcNetwork) -> float:
        listener = await serving.serve("127.0.0.1:0", [methods.BOUND.served_by(bound)])
        calls_ms: list[float] = []
        for _ in range(HANDSHAKES):
            channel = network.connect(listener.address)
            started_s = perf_counter()
            await channel.call(methods.BOUND, pb.BoundRequest(), timeout_s=10)
            calls_ms.append((perf_counter() - started_s) * 1000)
            await channel.close()
        await listener.close()
        return median(calls_ms)

    secured_ms = await first_call_ms(GrpcNetwork(-1, tls=tls), GrpcNetwork(-1, tls=node))
    return max(0.0, secured_ms - await first_call_ms(GrpcNetwork(-1), GrpcNetwork(-1)))
