"""The network of one worker of a node: every request is answered by the worker that owns its partition, whichever worker it arrives at.

All workers listen at the node's one address (the kernel spreads connections over them), and each at an address for its sibling workers. The first
message of a call names the partition (`routes`). A call for another worker is forwarded unchanged, message by message. Only the first message is
decoded, and none are collected. So this worker holds one message for each direction besides what the transport buffers, and back-pressure, half
close, deadline, cancellation and the status with its details reach the other end. A forwarded call is never forwarded again: if workers disagree
about an owner, they refuse the call. Decides nothing about partitions beyond `Shard`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any  # messages of any method, and gRPC's call

import grpc
import grpc.aio

from waltz_log import errors
from waltz_log.background_tasks import start_task
from waltz_log.core.metadata import PARTITIONS_MAX
from waltz_log.core.node_address import NodeAddress
from waltz_log.core.ports import AnyMethod, CallMethod, Handler, Listener, Network, Request, Response, Service
from waltz_log.core.status.worker_statistics import ForwardingStatistics, WorkerStatistics
from waltz_log.core.topics.sharding import Shard, worker_of
from waltz_log.errors import InvalidRequest, Unavailable
from waltz_log.loggers import get_logger
from waltz_log.security.callers import caller
from waltz_log.security.certificates import Certificates
from waltz_log.security.identity import Identity
from waltz_log.security.settings import TlsSettings
from waltz_log.transport.addresses import listen_error
from waltz_log.transport.admitted import AUTHORIZATION, CALLER, Gate, caller_metadata
from waltz_log.transport.announced import SIBLING_OPTIONS, AnnouncingContext, announced_size
from waltz_log.transport.call_status import CallStatus
from waltz_log.transport.call_streams import EOF, begun
from waltz_log.transport.cancelled import task_is_cancelled
from waltz_log.transport.connection_limits import DEFAULT_LIMITS, ConnectionLimits
from waltz_log.transport.direct.connection import DirectListener
from waltz_log.transport.gathering import GATHERED, describing
from waltz_log.transport.grpc import Beside, GrpcNetwork, server_options
from waltz_log.transport.grpc_channels import CHANNEL_OPTIONS, add_port
from waltz_log.transport.inherited import expect_usable
from waltz_log.transport.routes import ANYWHERE, partition_of, route_of
from waltz_log.transport.served_calls import Arrivals, DecodedStream, GrpcServices, answer, answered, decoded, grouped

__all__ = ["AllWorkers", "Forwarded", "WorkerNetwork"]

log = get_logger(__name__)

PASSED_ON = "waltz-passed-on"
"""Metadata of a call that one worker passes to another: `ANNOUNCE` if it passes the answers on, and wants large ones announced (`announced`)."""

ANNOUNCE = "announce"

GATHER_TIMEOUT_S = 1.5
"""The timeout of a call that all workers answer. It is shorter than the timeout of callers that request a node's state."""

PATIENCE = 0.8
"""The share of the caller's time that the workers have for an answer that may be late. The rest is for the answer's way."""

GATHERED_CALLS_MAX = 16
"""For a connection to another worker, kept for what all workers are asked."""

_OF_THE_TRANSPORT = frozenset({"user-agent", "content-type", "te", AUTHORIZATION, PASSED_ON, CALLER})
"""Metadata that each connection makes itself, besides names that begin with `_OF_GRPC`."""

_OF_GRPC = ("grpc-", ":")


@dataclass
class Forwarded:
    """What this worker passed on since it started; `open_calls` are in progress."""

    calls: int = 0
    open_calls: int = 0
    bytes_to_owners: int = 0
    bytes_from_owners: int = 0


class WorkerNetwork(GrpcNetwork):
    """The network port of one worker. `addresses`: the node's, and this worker's own if it has one; `siblings`: the addresses at which the workers
    reach each other, in their order; `describe`: what this process reports about itself in the node's statistics."""

    def __init__(
        self,
        shard: Shard,
        addresses: Sequence[str],
        siblings: Sequence[str],
        describe: Callable[[], WorkerStatistics] | None = None,
        *,
        direct_port: int = 0,
        limits: ConnectionLimits = DEFAULT_LIMITS,
        beside: Beside | None = None,
        tls: TlsSettings | Certificates | None = None,
    ) -> None:
        own_port = direct_port + shard.worker if direct_port > 0 else direct_port
        super().__init__(own_port, limits=limits, beside=beside, tls=tls)
        self._shard = shard
        self._addresses = [*addresses, siblings[shard.worker]]
        self._siblings = siblings
        self._describe = describe or partial(WorkerStatistics, shard.worker, answers=True)
        self.forwarded = Forwarded()

    async def serve(self, address: str, service: Service) -> Listener:
        """At the addresses of the worker, whatever `address` says; the listener's address is the node's."""
        expect_usable()
        server = grpc.aio.server(options=server_options(self._limits, share_port=True))
        direct = DirectListener(self._addresses[0], self._direct_port, service, self._gate, self._limits)
        offered = (*describing(service, self._report), *direct.service)
        calls = _Calls(self._shard, self._siblings, offered, self.forwarded, self._limits.streams, self._gate)
        self._offer(server, calls.grouped())
        for each in self._addresses:
            try:
                bound = add_port(server, each, self._certificates)
            except RuntimeError:
                raise listen_error(each) from None
            if bound == 0:
                raise listen_error(each)
        await direct.open()
        await server.start()
        return _WorkerListener(server, direct, calls, NodeAddress(self._addresses[0], self.principal))

    def _report(self) -> WorkerStatistics:
        return replace(self._describe(), passed_on=ForwardingStatistics(**asdict(self.forwarded)))


class _WorkerListener:
    def __init__(self, server: grpc.aio.Server, direct: DirectListener, calls: _Calls, address: NodeAddress) -> None:
        self._server = server
        self._direct = direct
        self._calls = calls
        self._address = address

    @property
    def address(self) -> str:
        return self._address

    async def close(self, grace_s: float = 0.0) -> None:
        await asyncio.gather(self._server.stop(grace_s), self._direct.close(grace_s))
        await self._calls.close()


@dataclass
class _SiblingChannel:
    """A connection to another worker, and how many calls it carries now."""

    channel: grpc.aio.Channel
    calls: int = 0


class _Calls:
    """Answers or forwards the calls that arrive."""

    def __init__(
        self, shard: Shard, siblings: Sequence[str], service: Service, forwarded: Forwarded, streams_per_connection: int, gate: Gate
    ) -> None:
        self._gate = gate
        self._shard = shard
        self._siblings = siblings
        self._service = service
        self._forwarded = forwarded
        self._streams_max = max(1, streams_per_connection - GATHERED_CALLS_MAX)
        self._channels: dict[int, list[_SiblingChannel]] = {}
        self._arrivals = Arrivals()

    def grouped(self) -> GrpcServices:
        return grouped(self._service, self._handler)

    def _handler(self, method: AnyMethod, handler: Handler) -> Callable[..., Awaitable[None]]:
        path, gather = route_of(method), GATHERED.get(method)
        anywhere = method in ANYWHERE
        assert path is not None or gather is not None or anywhere, f"{method.name} names no partition, and nobody puts its answers together"

        async def run(_requests: Any, context: Any) -> None:
            await answered(method, received(context), context)

        async def received(context: Any) -> None:
            of_sibling = _passed_on(context) is not None and (self._gate.is_open or str(context.peer()).startswith("unix:"))
            if of_sibling:
                self._gate.admit_sibling(context)
                first = await self._arrivals.receive(method, context)
                announcing = AnnouncingContext(context) if _passed_on(context) == ANNOUNCE else context
                await self._answer(method, handler, None if first is None else decoded(method, first), announcing)
                return
            async with self._gate.call(method, context) as identity:
                await admitted(context, identity)

        async def admitted(context: Any, identity: Identity | None) -> None:
            first = await self._arrivals.receive(method, context)
            message = None if first is None else decoded(method, first)
            if message is not None and self._gate.admit(method, identity, message):
                first = message.SerializeToString()
            if first is not None and not anywhere:
                if path is None:
                    gathered = partial(self._gathered, method, handler, first, remaining_s=context.time_remaining())
                    await answer(method, gathered, message, context, self._gate.unread)
                    return
                partition = partition_of(message, path)
                if not self._shard.owns(partition):
                    await self._pass_on(method, first, context, worker_of(partition, self._shard.workers))
                    return
            await self._answer(method, handler, message, context)

        return run

    async def _answer(self, method: AnyMethod, handler: Handler, message: Any | None, context: Any) -> None:
        if method.kind != "stream":
            await answer(method, handler, message, context, self._gate.unread)
            return

        async def received() -> Any | None:
            return message

        served = DecodedStream(context, method, received)
        await served.begin()
        await handler(served)

    # ---- all workers ---------------------------------------------------------------------------------------------------------------------------

    async def _gathered(self, method: AnyMethod, handler: Handler, first: bytes, request: Any, *, remaining_s: float | None) -> Any:
        """`first`: the request as it came. Raises `InvalidRequest` for more partitions than a log has, and `Unavailable` if the answer needs a worker
        that does not answer."""
        gather = GATHERED[method]
        named = gather.partitions(request)
        if len(named) > PARTITIONS_MAX:
            raise InvalidRequest(reason=f"a log has {PARTITIONS_MAX} partitions at most, the request names {len(named)}")
        timeout_s = max(GATHER_TIMEOUT_S, PATIENCE * remaining_s) if remaining_s is not None and gather.waits(request) else GATHER_TIMEOUT_S

        async def ask(worker: int) -> Any | None:
            if worker == self._shard.worker:
                return await handler(request)
            return await _part(self._channel(worker).channel, worker, method, first, caller(), timeout_s=timeout_s)

        owners = sorted({worker_of(partition, self._shard.workers) for partition in named}) or range(self._shard.workers)
        parts = await asyncio.gather(*(ask(worker) for worker in owners))
        silent = [worker for worker, part in zip(owners, parts, strict=True) if part is None]
        if silent and gather.needs_all:
            raise Unavailable(reason=f"workers of the node do not answer: {', '.join(map(str, silent))}")
        return gather.together(parts)

    # ---- another worker ------------------------------------------------------------------------------------------------------------------------

    def _channel(self, worker: int) -> _SiblingChannel:
        """A connection to the worker with a free stream, or a new one: calls of many clients go to a worker, so a connection may be full."""
        channels = self._channels.setdefault(worker, [])
        for channel in channels:
            if channel.calls < self._streams_max:
                return channel
        channels.append(_SiblingChannel(grpc.aio.insecure_channel(self._siblings[worker], options=[*CHANNEL_OPTIONS, *SIBLING_OPTIONS])))
        return channels[-1]

    async def _pass_on(self, method: AnyMethod, first: bytes, context: Any, worker: int) -> None:
        channel = self._channel(worker)
        metadata = (*_passable(context.invocation_metadata()), (PASSED_ON, ANNOUNCE), *caller_metadata(caller()))
        call = channel.channel.stream_stream(method.name, None, None)(None, timeout=context.time_remaining(), metadata=metadata)
        status = CallStatus(call)
        channel.calls += 1
        self._forwarded.calls += 1
        self._forwarded.open_calls += 1
        upwards = start_task(self._upwards(call, first, context))
        try:
            await self._downwards(call, status, context)
        finally:
            channel.calls -= 1
            self._forwarded.open_calls -= 1
            upwards.cancel()
            call.cancel()
            await asyncio.gather(upwards, return_exceptions=True)

    async def _upwards(self, call: Any, message: Any, context: Any) -> None:
        """What the caller sends, one message after the other. Where the call has ended, its status says why, to `_downwards`."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            if not await begun(call):
                return
            while message is not EOF:
                self._forwarded.bytes_to_owners += len(message)
                await call.write(message)
                message = await context.read()
            await call.done_writing()

    async def _downwards(self, call: Any, status: CallStatus, context: Any) -> None:
        """What the owner answers, and how the call ended."""
        try:
            if await begun(call):
                while (message := await call.read()) is not EOF:
                    if (size := announced_size(message)) is None:
                        self._forwarded.bytes_from_owners += len(message)
                        await context.write(message)
                        continue
                    room = await self._gate.unread.acquire(caller(), size)
                    room.shrink(size)  # it is that large, and delays the next one by as much
                    async with room:
                        if (message := await call.read()) is EOF:
                            break
                        self._forwarded.bytes_from_owners += len(message)
                        await context.write(message)
        except grpc.aio.AioRpcError:
            pass  # its status follows
        except asyncio.CancelledError:
            if task_is_cancelled():
                raise
        code, details, trailing = await status.get()
        if code is grpc.StatusCode.OK:
            context.set_trailing_metadata(_passable(trailing))
        else:
            await context.abort(code, details, _passable(trailing))

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        await asyncio.gather(*(each.channel.close(None) for of_worker in channels.values() for each in of_worker))


class AllWorkers:
    """Asks all workers of a node from outside of them, as their supervisor does."""

    def __init__(self, siblings: Sequence[str]) -> None:
        expect_usable()
        self._channels = [grpc.aio.insecure_channel(each, options=CHANNEL_OPTIONS) for each in siblings]

    async def ask(self, method: CallMethod[Request, Response], request: Request) -> Response:
        """One answer of the parts of all workers that answer in time. Raises `Unavailable` if none does."""
        message = request.SerializeToString()
        parts = await asyncio.gather(*(_part(channel, worker, method, message) for worker, channel in enumerate(self._channels)))
        if all(part is None for part in parts):
            raise Unavailable(reason="no worker of the node answers")
        answer: Response = GATHERED[method].together(parts)
        return answer

    async def close(self) -> None:
        await asyncio.gather(*(channel.close(None) for channel in self._channels))


async def _part(
    channel: grpc.aio.Channel, worker: int, method: AnyMethod, request: bytes, peer: Identity | None = None, *, timeout_s: float = GATHER_TIMEOUT_S
) -> Any | None:
    """What one worker answers for itself; None if it does not answer in time. Raises what it refuses. `peer`: who asks; None: the node itself."""
    call = channel.unary_unary(method.name, None, method.response.FromString)
    try:
        return await call(request, timeout=timeout_s, metadata=((PASSED_ON, "1"), *caller_metadata(peer)))
    except grpc.aio.AioRpcError as error:
        refused = errors.decode(error.details() or "")
        if refused is not None:
            raise refused from None
        log.warning("worker does not answer", worker=worker, method=method.name, reason=error.details())
        return None


def _passed_on(context: Any) -> str | None:
    """How a sibling passed the call on; None: a caller made it."""
    return next((str(value) for name, value in context.invocation_metadata() or () if name == PASSED_ON), None)


def _passable(metadata: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((name, value) for name, value in metadata or () if name not in _OF_THE_TRANSPORT and not name.startswith(_OF_GRPC))


_network: type[Network] = WorkerNetwork  # holds the class to the port when types are checked
