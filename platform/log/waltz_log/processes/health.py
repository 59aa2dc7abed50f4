"""gRPC's standard health service (`grpc.health.v1`) of a serving process, which follows the same checks as `/readyz`.

It answers for each service of the process and for the process as a whole (the empty name). All have the same answer, because a node that is not ready
should get no calls of any kind from a load balancer. Nothing is watched in the background: the state is judged when a client asks, and a `Watch` asks
again each second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any  # grpcio-health-checking's messages, and gRPC's context

import grpc
from grpc_health.v1 import health_pb2

__all__ = ["FRESH_S", "WATCHERS_MAX", "HealthService", "health_handler"]

FRESH_S = 0.2
"""An answer is reused for this long, so probes cost at most five snapshots of the statistics per second."""

WATCH_PAUSE_S = 1.0

WATCHERS_MAX = 64
"""At once. Each costs a task; a load balancer needs one for each connection."""

Ready = Callable[[], Awaitable[bool]]

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class HealthService:
    """`services`: the full names of those that the process serves. `ready` is called in the event loop of the process."""

    def __init__(self, services: Sequence[str], ready: Ready) -> None:
        self._services = frozenset({"", *services})
        self._ready = ready
        self._found: tuple[float, bool] | None = None
        self._turn = asyncio.Lock()
        self._watchers = 0

    async def Check(self, request: Any, context: Any) -> Any:
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no such service: {request.service}")
        return health_pb2.HealthCheckResponse(status=await self._status(request.service))

    async def Watch(self, request: Any, context: Any) -> None:
        if self._watchers >= WATCHERS_MAX:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"more than {WATCHERS_MAX} watch the health of this process")
        self._watchers += 1
        try:
            sent = None
            while True:
                status = await self._status(request.service)
                if status != sent:
                    await context.write(health_pb2.HealthCheckResponse(status=status))
                    sent = status
                await asyncio.sleep(WATCH_PAUSE_S)
        finally:
            self._watchers -= 1

    async def _status(self, service: str) -> object:
        if service not in self._services:
            return SERVICE_UNKNOWN
        async with self._turn:
            if self._found is None or time.monotonic() - self._found[0] >= FRESH_S:
                self._found = time.monotonic(), await self._ready()
            return SERVING if self._found[1] else NOT_SERVING


def health_handler(ready: Ready) -> Callable[[Sequence[str]], grpc.GenericRpcHandler[Any, Any]]:
    """What a `GrpcNetwork` serves in addition to the services of the process, once it knows their names."""

    def handler(services: Sequence[str]) -> grpc.GenericRpcHandler[Any, Any]:
        service = HealthService(services, ready)
        methods = {
            "Check": grpc.unary_unary_rpc_method_handler(
                service.Check,
                request_deserializer=health_pb2.HealthCheckRequest.FromString,
                response_serializer=health_pb2.HealthCheckResponse.SerializeToString,
            ),
            "Watch": grpc.unary_stream_rpc_method_handler(
                service.Watch,
                request_deserializer=health_pb2.HealthCheckRequest.FromString,
                response_serializer=health_pb2.HealthCheckResponse.SerializeToString,
            ),
        }
        return grpc.method_handlers_generic_handler("grpc.health.v1.Health", methods)

    return handler
