"""`waltz server`: one log server, until it is asked to stop.

A server whose coordinator session ended (it was suspended for too long, or disconnected) restarts as a new one at the same address: other servers own
its partitions by then. With several workers this process is their supervisor (`processes.supervisor`) and the member of the cluster, and serves
nothing itself.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections.abc import Awaitable, Callable

from waltz_log.background_tasks import start_task
from waltz_log.coordination.administration import AdministrationAudit
from waltz_log.coordination.followed import KnownValues
from waltz_log.coordination.other_nodes import OtherNodes
from waltz_log.core.status.server_statistics import ServerStatistics
from waltz_log.errors import ClusterUnavailable
from waltz_log.loggers import get_logger
from waltz_log.monitoring.endpoint import serve_http
from waltz_log.monitoring.monitored import Monitored
from waltz_log.processes.access import access_control, auditing
from waltz_log.processes.clock import WallClock
from waltz_log.processes.coordinator_certificate import CoordinatorCertificate
from waltz_log.processes.file_limit import prepare_open_files
from waltz_log.processes.health import health_handler
from waltz_log.processes.joining import AGAIN_PAUSE_S, join
from waltz_log.processes.protection import check_protection, principal_of
from waltz_log.processes.serving import either, say_ready, serve
from waltz_log.processes.subscriber_lag import SubscriberLag
from waltz_log.processes.supervisor import NodeAddresses, Workers, orders_of
from waltz_log.processes.tracing import tracing
from waltz_log.security.access import AccessControl
from waltz_log.security.audit_log import open_audit
from waltz_log.security.settings import chosen_tls
from waltz_log.server import LogServer, ServerSettings
from waltz_log.server.node.membership import Membership, read_cluster
from waltz_log.statistics import from_json
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.forwarding import AllWorkers
from waltz_log.transport.grpc import GrpcNetwork

__all__ = ["run", "share_of"]

log = get_logger(__name__)

CACHE_BYTES_MIN = 1024 * 1024


def run(settings: ServerSettings, *, log_level: str | None = None) -> None:
    prepare_open_files(0)
    certificates = check_protection(settings)
    open_audit(settings.audit)
    monitored = Monitored("server")
    with serve_http(settings.http, monitored, certificates) as http:
        _run(settings.model_copy(update={"http": http}), monitored, log_level, principal_of(certificates))


def _run(settings: ServerSettings, monitored: Monitored, log_level: str | None, principal: str) -> None:
    recorded = AdministrationAudit(rules=settings.workers > 1)  # workers start again with each session and do not see what changed in between
    if settings.workers > 1:
        with NodeAddresses(settings.listen, settings.workers, settings.worker_ports, principal) as addresses:
            serve(lambda stop: _lives(lambda: _life_of_workers(settings, monitored, addresses, stop, log_level, recorded), monitored, stop))
        return

    access = access_control(settings.tls)

    async def main(stop: asyncio.Event) -> None:
        listen = settings.listen

        async def life() -> None:
            nonlocal listen
            listen = await _life(settings.model_copy(update={"listen": listen}), monitored, stop, access, recorded)

        await _lives(life, monitored, stop)

    serve(main)


async def _lives(life: Callable[[], Awaitable[None]], monitored: Monitored, stop: asyncio.Event) -> None:
    """Runs one coordinator session after the other."""
    monitored.starting("joining the cluster")
    await life()
    while not stop.is_set():
        log.warning("coordinator session ended, starting over")
        monitored.starting("the coordinator session ended, joining the cluster again")
        try:
            await life()
        except ClusterUnavailable as error:
            log.warning("no coordinator, retrying", reason=str(error))
            await either(stop.wait(), asyncio.sleep(AGAIN_PAUSE_S))


async def _life(settings: ServerSettings, monitored: Monitored, stop: asyncio.Event, access: AccessControl, recorded: AdministrationAudit) -> str:
    """One server from its session's start to its end; returns the address that it served at, or would have served at if the session ended
    before. If it is asked to stop, it hands its partitions over first. `access`: the rules that the previous life knew, to record a change in
    between."""
    coordinator = await join(settings.coordinator, settings.tls, settings.session_timeout_s)
    try:
        network = GrpcNetwork(settings.direct_port, limits=settings.connection_limits, beside=health_handler(monitored.ready), tls=settings.tls)
        async with tracing(settings.tracing, "waltz-server") as tracer, auditing(settings.audit, recorded, coordinator):
            secret = os.urandom(32)
            server = LogServer(settings, coordinator, network, WallClock(), owner_secret=secret, tracer=tracer, access=access)
            certificate = CoordinatorCertificate(settings.coordinator, settings.tls)
            server.coordinator_expiry_s = certificate.expires_s
            try:
                await server.start()
            except ClusterUnavailable:
                await server.abort()
                if not coordinator.ended:
                    raise
                return settings.listen
            coordinator.joined()
            subscribers = SubscriberLag(coordinator)
            address = server.address

            async def statistics() -> ServerStatistics:
                return subscribers.added_to(server.statistics())

            monitored.serving(statistics)
            say_ready("server", address=address, coordinator=settings.coordinator)
            await either(stop.wait(), server.wait_lost())
            if stop.is_set():
                monitored.stopping()
                await server.stop()
            else:
                await server.abort()
            await subscribers.close()
            await certificate.close()
            return address
    finally:
        await coordinator.close()


async def _life_of_workers(
    settings: ServerSettings,
    monitored: Monitored,
    addresses: NodeAddresses,
    stop: asyncio.Event,
    log_level: str | None,
    recorded: AdministrationAudit,
) -> None:
    """Like `_life`, in several processes. The workers give their partitions back before the server leaves the cluster. If its session ended, other
    servers own them already, and their recovery decides the blocks in flight."""
    coordinator = await join(settings.coordinator, settings.tls, settings.session_timeout_s)
    try:
        known = KnownValues()
        cluster = await read_cluster(coordinator, settings.coordinator, known)
        if chosen_tls(settings.tls) is not None:
            await OtherNodes(GrpcNetwork(tls=settings.tls), known).ask(coordinator)
        membership = Membership(settings, coordinator, known)
        orders = orders_of("server", share_of(settings), addresses, log_level, server_id=await membership.register())
        lost = start_task(coordinator.wait_session_lost())
        every = AllWorkers(addresses.siblings)
        subscribers = SubscriberLag(coordinator)

        async def statistics() -> ServerStatistics:
            answer = await every.ask(methods.SERVER_STATUS, pb.ServerStatusRequest())
            found = from_json(ServerStatistics, json.loads(answer.json), unknown="refuse")
            refused = membership.known.refused() | dict(found.refused_values or {})
            return subscribers.added_to(dataclasses.replace(found, refused_values=refused or None))

        try:
            async with Workers(orders, silence_s=settings.worker_silence_s) as workers, auditing(settings.audit, recorded, coordinator):
                await either(workers.start(), stop.wait(), asyncio.shield(lost))
                monitored.stuck_workers = workers.stuck
                if workers.serve:
                    await membership.announce(cluster, addresses.address, addresses.own)
                    coordinator.joined()
                    monitored.serving(statistics)
                    say_ready("server", address=addresses.address, coordinator=settings.coordinator, workers=settings.workers)
                    await either(stop.wait(), asyncio.shield(lost), workers.wait_failed())
                if stop.is_set():
                    monitored.stopping()
                await membership.end()
                if not lost.done():
                    await workers.stop()
        finally:
            await membership.end()
            if not lost.done():
                await membership.leave()
            lost.cancel()
            await subscribers.close()
            await every.close()
    except ClusterUnavailable:
        if not coordinator.ended:
            raise
    finally:
        await coordinator.close()


def share_of(settings: ServerSettings) -> ServerSettings:
    """The share of one worker in limits that apply to the whole server."""
    names = ("transaction_cache_bytes", "feed_cache_bytes")
    return settings.model_copy(update={name: max(CACHE_BYTES_MIN, getattr(settings, name) // settings.workers) for name in names})
