"""One worker process of a node. Its supervisor starts it and passes its end of the link and the supervisor's process id.

Serves its share of the partitions and forwards requests for those of its siblings. Ends on SIGTERM, in order, within a time that the supervisor
limits, and at once when its supervisor has ended for any reason: the kernel signals that if it can, and the link shows it on every system.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any  # settings of either kind of node
from uuid import UUID

from waltz_log.core.status.worker_statistics import WorkerStatistics
from waltz_log.loggers import get_logger
from waltz_log.outside_text import printable
from waltz_log.processes.grpc_environment import GRPC_ENVIRONMENT

os.environ.update(GRPC_ENVIRONMENT | os.environ)  # what is set already stays


from waltz_log.core.status.server_statistics import ServerStatistics
from waltz_log.core.status.storage_statistics import NodeStatistics
from waltz_log.errors import ClusterUnavailable, WaltzError, exit_code_of
from waltz_log.exit_codes import OK
from waltz_log.monitoring.readiness import checks_of, is_ready
from waltz_log.node_settings import NodeSettings
from waltz_log.processes.access import FollowedAccess, access_control, following
from waltz_log.processes.clock import WallClock
from waltz_log.processes.coordinator_certificate import CoordinatorCertificate
from waltz_log.processes.health import health_handler
from waltz_log.processes.joining import AGAIN_PAUSE_S, join
from waltz_log.processes.logs import configure_logs
from waltz_log.processes.serving import either, run
from waltz_log.processes.tracing import tracing
from waltz_log.processes.worker_link import ALIVE, ALIVE_PAUSE_S, GROW, READY, Link, Orders
from waltz_log.security.access import AccessControl
from waltz_log.security.audit_log import open_audit
from waltz_log.statistics import from_json
from waltz_log.telemetry.tracer import Tracer
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.forwarding import AllWorkers, WorkerNetwork

if TYPE_CHECKING:
    from waltz_log.server import ServerSettings
    from waltz_log.storage import StorageNode

__all__ = ["main"]

log = get_logger(__name__)

PR_SET_PDEATHSIG = 1


def main() -> None:
    end, supervisor = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    if _end_with(supervisor):
        sys.exit(run(_main(end)))


def _end_with(supervisor: int) -> bool:
    """Asks the kernel to kill this process when the thread that started it ends. False if that thread has ended already."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == supervisor


async def _main(end: socket.socket) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    link = await Link.over(end)
    orders = await link.receive_orders()
    if orders is None:
        return OK
    configure_logs(orders.log_level)
    watching = asyncio.gather(_watch(link, orders), _beat(link))
    try:
        await {"server": _serve_partitions, "storage": _serve_storage}[orders.kind](orders, link, stop)
        return OK
    except (WaltzError, OSError) as error:
        print(f"waltz: worker {orders.worker}: {printable(' '.join(str(error).split()))}", file=sys.stderr)
        return exit_code_of(error)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _watch(link: Link, orders: Orders) -> None:
    """Never returns: the supervisor sends nothing more, and when it ends, this process ends."""
    async for _ in link.messages():
        pass
    log.error("supervisor ended", worker=orders.worker)
    os._exit(1)


async def _beat(link: Link) -> None:
    """Never returns. A supervisor that hears nothing ends this process."""
    while True:
        link.send(ALIVE)
        await asyncio.sleep(ALIVE_PAUSE_S)


def _network(orders: Orders, settings: NodeSettings) -> WorkerNetwork:
    shared = (orders.address, *orders.own[orders.worker : orders.worker + 1])
    return WorkerNetwork(
        orders.shard,
        shared,
        orders.siblings,
        partial(_describe, orders),
        direct_port=settings.direct_port,
        limits=settings.connection_limits,
        beside=health_handler(partial(_ready, orders)),
        tls=settings.tls,
    )


async def _ready(orders: Orders) -> bool:
    """Whether the whole node is: its address is one, and a client does not choose the worker. As the supervisor judges `/readyz`."""
    every = AllWorkers(orders.siblings)
    try:
        statistics: ServerStatistics | NodeStatistics
        if orders.kind == "server":
            server = await every.ask(methods.SERVER_STATUS, pb.ServerStatusRequest())
            statistics = from_json(ServerStatistics, json.loads(server.json), unknown="refuse")
        else:
            storage = await every.ask(methods.STORAGE_STATUS, pb.StorageStatusRequest())
            statistics = from_json(NodeStatistics, json.loads(storage.json), unknown="refuse")
    except (WaltzError, OSError):
        return False
    finally:
        await every.close()
    return is_ready(checks_of(statistics))


def _describe(orders: Orders) -> WorkerStatistics:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return WorkerStatistics(
        orders.worker,
        answers=True,
        pid=os.getpid(),
        restarts=orders.restarts,
        cpu_s=round(used.ru_utime + used.ru_stime, 3),
        memory_max_kib=used.ru_maxrss,
    )


# ---- log server --------------------------------------------------------------------------------------------------------------------------------


async def _serve_partitions(orders: Orders, link: Link, stop: asyncio.Event) -> None:
    """Runs one coordinator session after the other. The server's ownership does not depend on a worker's session, but a worker without one cannot
    open store sessions, nor learn that its server lost a partition."""
    from waltz_log.server import ServerSettings

    settings = ServerSettings(**orders.settings)
    open_audit(settings.audit, orders.worker)
    access = access_control(settings.tls)
    await _partitions_session(orders, settings, link, stop, access)
    while not stop.is_set():
        log.warning("coordinator session ended, starting over", worker=orders.worker)
        try:
            await _partitions_session(orders, settings, link, stop, access)
        except ClusterUnavailable as error:
            log.warning("no coordinator, retrying", reason=str(error))
            await either(stop.wait(), asyncio.sleep(AGAIN_PAUSE_S))


async def _partitions_session(orders: Orders, settings: ServerSettings, link: Link, stop: asyncio.Event, access: AccessControl) -> None:
    """`access`: the rules that the session before knew, so that a change in between is recorded."""
    from waltz_log.server import LogServer

    coordinator = await join(settings.coordinator, settings.tls, settings.session_timeout_s)
    try:
        async with tracing(settings.tracing, "waltz-server") as tracer:
            server = LogServer(
                settings,
                coordinator,
                _network(orders, settings),
                WallClock(),
                owner_secret=os.urandom(32),
                shard=orders.shard,
                server_id=orders.server_id,
                tracer=tracer,
                access=access,
            )
            certificate = CoordinatorCertificate(settings.coordinator, settings.tls)
            server.coordinator_expiry_s = certificate.expires_s
            await server.start()
            coordinator.joined()
            link.send(READY)
            await either(stop.wait(), server.wait_lost())
            await (server.stop() if stop.is_set() else server.abort())
            await certificate.close()
    finally:
        await coordinator.close()


# ---- storage node ------------------------------------------------------------------------------------------------------------------------------


async def _serve_storage(orders: Orders, link: Link, stop: asyncio.Event) -> None:
    from waltz_log.storage import StorageSettings

    settings = StorageSettings(**orders.settings)
    open_audit(settings.audit, orders.worker)
    instance = f"{settings.name}-{orders.worker}"
    control = access_control(settings.tls)
    async with (
        tracing(settings.tracing, "waltz-storage", instance) as tracer,
        _storage(settings, orders, link, tracer, control) as node,
        following(settings.coordinator, settings.tls, FollowedAccess(control, settings.tls, node) if control.enforced else None),
    ):
        link.send(READY)
        await stop.wait()


@asynccontextmanager
async def _storage(settings: Any, orders: Orders, link: Link, tracer: Tracer | None, control: AccessControl) -> AsyncIterator[StorageNode]:
    from waltz_log.filesystem import FileSystemDisk, ThreadOffload
    from waltz_log.processes.storage import find_peers, measure_peers
    from waltz_log.storage import StorageNode
    from waltz_log.storage.integrity.peers import PeerReplicas

    offload = ThreadOffload(settings.disk_threads)
    node = StorageNode(
        settings,
        FileSystemDisk(settings.directory),
        WallClock(),
        offload,
        shard=orders.shard,
        request_growth=partial(link.send, GROW),
        tracer=tracer,
        access=control,
    )
    try:
        await node.join(UUID(orders.cluster_key))
        network = _network(orders, settings)
        try:
            listener = await network.serve(settings.listen, node.service())
            try:
                node.start_scrub(PeerReplicas(network, partial(find_peers, settings.coordinator, settings.name, settings.tls)))
                node.measure_round_trips = partial(measure_peers, settings, network, node.cluster_key)
                yield node
            finally:
                await listener.close()
        finally:
            await node.close()
    finally:
        offload.close()


if __name__ == "__main__":
    main()
