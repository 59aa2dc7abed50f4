"""gRPC's health service over a real connection, as a prober of Kubernetes or a load balancer uses it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from waltz_log.processes import health
from waltz_log.processes.health import health_handler
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.grpc import GrpcNetwork

SERVING, NOT_SERVING, UNKNOWN = 1, 2, 3
SERVICE = methods.PING.name.split("/")[1]


@asynccontextmanager
async def _served(state: SimpleNamespace) -> AsyncIterator[Any]:
    async def ready() -> bool:
        state.asked += 1
        return bool(state.ready)

    async def ping(_request: pb.PingRequest) -> pb.PingResponse:
        return pb.PingResponse()

    listener = await GrpcNetwork(-1, beside=health_handler(ready)).serve("127.0.0.1:0", [methods.PING.served_by(ping)])
    async with grpc.aio.insecure_channel(listener.address) as channel:
        yield health_pb2_grpc.HealthStub(channel)
    await listener.close()


async def _check(stub: Any, service: str) -> int:
    return int((await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)).status)


async def test_each_service_and_the_process_follow_the_readiness_and_probes_share_an_answer() -> None:
    state = SimpleNamespace(ready=True, asked=0)
    async with _served(state) as stub:
        assert [await _check(stub, each) for each in ("", SERVICE, "", SERVICE)] == [SERVING] * 4
        assert state.asked < 4
        state.ready = False
        async with asyncio.timeout(30):
            while await _check(stub, SERVICE) != NOT_SERVING:
                await asyncio.sleep(health.FRESH_S / 2)
        assert await _check(stub, "") == NOT_SERVING


async def test_a_service_that_the_process_does_not_have_is_not_found() -> None:
    async with _served(SimpleNamespace(ready=True, asked=0)) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await _check(stub, "waltz.Other")
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_watch_reports_each_change_and_an_unknown_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "WATCH_PAUSE_S", 0.05)
    monkeypatch.setattr(health, "FRESH_S", 0.0)
    state = SimpleNamespace(ready=False, asked=0)
    async with _served(state) as stub, asyncio.timeout(30):
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == NOT_SERVING
        state.ready = True
        assert (await watch.read()).status == SERVING
        other = stub.Watch(health_pb2.HealthCheckRequest(service="waltz.Other"))
        assert (await other.read()).status == UNKNOWN
        watch.cancel()
        other.cancel()


async def test_of_too_many_watchers_the_oldest_of_the_peer_with_most_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "WATCHERS_MAX", 1)
    async with _served(SimpleNamespace(ready=True, asked=0)) as stub, asyncio.timeout(30):
        first = stub.Watch(health_pb2.HealthCheckRequest())
        assert (await first.read()).status == SERVING
        second = stub.Watch(health_pb2.HealthCheckRequest())
        assert (await second.read()).status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await first.read()
        assert ended.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        second.cancel()


async def test_strangers_that_watch_end_no_load_balancer_that_watches() -> None:
    service = health.HealthService([], _never)
    balancer = service._join("load balancer")
    strangers = [service._join("stranger") for _ in range(3 * health.WATCHERS_MAX)]
    assert not balancer.done()
    assert sum(not each.done() for each in strangers) == health.WATCHERS_MAX - 1
    late = service._join("another load balancer")
    assert not late.done()
    assert not balancer.done()


async def _never() -> bool:
    raise AssertionError("nobody asked")
