"""gRPC's standard health service (`grpc.health.v1`) of a serving process, which follows the same checks as `/readyz`.

It answers for each service of the process and for the process as a whole (the empty name). All have the same answer, because a node that is not ready
should get no calls of any kind from a load balancer. Nothing is watched in the background: the state is judged when a client asks, and a `Watch` asks
again each second.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final  # Any: grpcio-health-checking's messages, and gRPC's context

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from waltz_log.errors import ProtocolViolation
from waltz_log.transport.admitted import names_of
from waltz_log.transport.served_calls import Arrivals, Arriving, GrpcServices

__all__ = ["FRESH_S", "WATCHERS_MAX", "HealthService", "health_handler"]

FRESH_S = 0.2
"""An answer is reused for this long, so probes cost at most five snapshots of the statistics per second."""

WATCH_PAUSE_S = 1.0

WATCHERS_MAX = 64
"""At once. Each costs a task; a load balancer needs one for each connection. If there are more, the oldest one ends of the peer that has most."""

REQUEST_BYTES_MAX: Final = 1024

ARRIVAL_S: Final = 2.0
"""With the wait for a place. So a peer that is paused after a request that was too large is refused meanwhile, and fails its own probes alone."""

REQUEST: Final = Arriving("the health service", REQUEST_BYTES_MAX, ARRIVAL_S, places=4)
"""gRPC receives up to 16 MiB of each before its size can be checked. A probe arrives together with its call, and so frees its place at once."""

WAITING_MAX: Final = 64
"""Calls of one peer whose request is not received yet."""

Ready = Callable[[], Awaitable[bool]]

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class HealthService:
    """`services`: the full names of those that the process serves. `ready` is called in the event loop of the process. Every peer gets an answer, so
    what one peer can hold is counted by its certificate's name, or its address."""

    def __init__(self, services: Sequence[str], ready: Ready) -> None:
        self._services = frozenset({"", *services})
        self._ready = ready
        self._found: tuple[float, bool] | None = None
        self._turn = asyncio.Lock()
        self._watchers: dict[asyncio.Future[None], str] = {}
        """The oldest first, with their peers. A future that is done ends its watcher."""
        self._waiting: Counter[str] = Counter()
        self._arrivals = Arrivals()

    async def check(self, _requests: Any, context: Any) -> None:
        request = await self._request(context)
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        await context.write(health_pb2.HealthCheckResponse(status=await self._status(request.service)))

    async def watch(self, _requests: Any, context: Any) -> None:
        request = await self._request(context)
        ended = self._join(_peer_of(context))
        try:
            sent = None
            while not ended.done():
                status = await self._status(request.service)
                if status != sent:
                    await context.write(health_pb2.HealthCheckResponse(status=status))
                    sent = status
                await asyncio.wait([ended], timeout=WATCH_PAUSE_S)
        finally:
            self._watchers.pop(ended, None)
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"more than {WATCHERS_MAX} watch the health of this process")

    def _join(self, peer: str) -> asyncio.Future[None]:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers[ended] = peer
        if len(self._watchers) > WATCHERS_MAX:
            of_peers = Counter(self._watchers.values())
            most = max(of_peers.values())
            oldest = next(watcher for watcher, of in self._watchers.items() if of_peers[of] == most)
            del self._watchers[oldest]
            oldest.set_result(None)
        return ended

    async def _request(self, context: Any) -> Any:
        peer = _peer_of(context)
        if self._waiting[peer] >= WAITING_MAX:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many requests at the same time")
        self._waiting[peer] += 1
        data = None
        try:
            async with asyncio.timeout(ARRIVAL_S):
                data = await self._arrivals.receive_from(peer, REQUEST, context)
        except (TimeoutError, ProtocolViolation):
            pass
        finally:
            self._waiting[peer] -= 1
            if not self._waiting[peer]:
                del self._waiting[peer]
        if data is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"a request has up to {REQUEST_BYTES_MAX} bytes, in {ARRIVAL_S:g} s")
        try:
            return health_pb2.HealthCheckRequest.FromString(data)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a request of the health service")

    async def _status(self, service: str) -> object:
        if service not in self._services:
            return SERVICE_UNKNOWN
        async with self._turn:
            if self._found is None or time.monotonic() - self._found[0] >= FRESH_S:
                self._found = time.monotonic(), await self._ready()
            return SERVING if self._found[1] else NOT_SERVING


def _peer_of(context: Any) -> str:
    uris, dns_names = names_of(context)
    return next(iter([*uris, *dns_names]), None) or str(context.peer()).rpartition(":")[0]


def health_handler(ready: Ready) -> Callable[[Sequence[str]], GrpcServices]:
    """What a `GrpcNetwork` serves in addition to the services of the process, once it knows their names."""

    def handler(services: Sequence[str]) -> GrpcServices:
        service = HealthService(services, ready)
        encode = health_pb2.HealthCheckResponse.SerializeToString
        methods = {
            "Check": grpc.stream_stream_rpc_method_handler(service.check, None, encode),
            "Watch": grpc.stream_stream_rpc_method_handler(service.watch, None, encode),
        }
        return {"grpc.health.v1.Health": methods}

    return handler
