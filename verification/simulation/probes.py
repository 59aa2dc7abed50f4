"""Requests that a client with an outdated view of the cluster would send at the worst moment. The harness sends them, so that every run has them. It
asks a lagging replica for transactions that a newer session committed, and an owner that does not know that it was deposed for a transaction that its
successor committed.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING

from verification.simulation.clients import SETTINGS
from verification.simulation.history import Attempt, Seen
from waltz_log.client.feed.decode_feed import decode_feed
from waltz_log.client.owners.mounting import ranges
from waltz_log.core.ports import Channel
from waltz_log.errors import NotAppended, OutcomeUnknown, WaltzError
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

if TYPE_CHECKING:
    from verification.simulation.world import World

__all__ = ["confirm_ownership", "probe_fork", "probe_stranded"]

MOUNT_SEQUENCE = 1 << 41
"""Above the sequences of the client, which is closed by then."""


async def confirm_ownership(world: World, server: str) -> None:
    """Asks the server for an outcome in each partition, so that it has just confirmed with its replicas that it is the owner."""
    owner = world.servers[server].server
    if owner is None:
        return
    for partition in range(world.mix.partitions):
        request = pb.ResolveRequest(partition=partition, client_id=1, first_sequence=1, last_sequence=1, since=-1, cluster_key=world.key.bytes)
        with suppress(WaltzError):  # of another owner, or without a majority just now
            await _channel(world, owner.address).call(methods.RESOLVE, request, timeout_s=0.1)


async def probe_stranded(world: World, server: str, storage: str, seconds: float) -> None:
    """Asks both again and again for so long."""
    until = world.now_s + seconds
    while world.now_s < until:
        await asyncio.sleep(0.1)
        for asking in (_read_with_new_bounds(world, server, storage), _ask_the_deposed(world, server)):
            try:
                await asking
            except (TimeoutError, WaltzError) as error:
                world.trace.add("probe", f"was told {error!r}")


async def probe_fork(world: World, server: str, storage: str, partition: int, seconds: float) -> None:
    """Lets the newer owner commit, and meanwhile asks the replica that it has not reached, for this time."""
    until = world.now_s + seconds
    while world.now_s < until:
        await asyncio.sleep(0.1)
        try:
            await _appended_elsewhere(world, partition)
            await _read_with_new_bounds(world, server, storage)
        except (TimeoutError, WaltzError) as error:
            world.trace.add("probe", f"was told {error!r}")


def _channel(world: World, address: str) -> Channel:
    return world.network.host("probe").connect(address)


async def _read_with_new_bounds(world: World, server: str, storage: str) -> None:
    key = world.key.bytes
    replica = world.storages.get(storage)
    if replica is None or replica.listener is None:
        return
    for name, other in sorted(world.servers.items()):
        if name == server or other.server is None:
            continue
        bounds = await _channel(world, other.server.address).call(methods.BOUND, pb.BoundRequest(cluster_key=key), timeout_s=0.2)
        for bound in bounds.bounds:
            if storage not in world.replicas[bound.partition] or bound.high_water_mark < 0:
                continue
            request = pb.ReadRequest(
                cluster_key=key,
                partition=bound.partition,
                session=bound.session,
                first_transaction_id=max(0, bound.high_water_mark - 20),
                last_transaction_id=bound.high_water_mark,
                max_bytes=1 << 20,
            )
            stream = _channel(world, replica.listener.address).read(methods.READ, request)
            world.history.streams += 1
            number, after = world.history.streams, request.first_transaction_id - 1
            try:
                while (answer := await stream.receive()) is not None:
                    for block in answer.blocks:
                        batch = decode_feed(pb.FeedFrame(blocks=[block]), bound.partition, after + 1, data=True)
                        world.history.seen.append(Seen(f"probe at {storage}", number, bound.partition, world.now_s, after, batch))
                        after = batch[-1].transaction_id
            except WaltzError as error:
                world.trace.add("probe", f"read of {storage} in session {bound.session}: {error}")
            finally:
                await stream.cancel()


async def _appended_elsewhere(world: World, partition: int) -> int | None:
    """A transaction of a new client through the server that owns the partition now; the client's id."""
    world.probes += 1
    process = world.client(f"canary-{world.probes}")
    try:
        client = await process.connect(SETTINGS, Random(world.probes))
        history = world.history
        attempt = Attempt(len(history.attempts), process.name, "canary", partition, world.now_s, 0.5)
        history.attempts.append(attempt)
        try:
            receipt = await client.append(partition, f"{attempt.number}||".encode(), timeout_s=0.5)
            attempt.outcome, attempt.transaction_id = "committed", receipt.transaction_id
            attempt.in_memory = receipt.durability == "quorum_memory"
        except OutcomeUnknown:
            attempt.outcome = "unknown"
        except NotAppended:
            attempt.outcome = "not appended"
        attempt.ended_s, attempt.answers = world.now_s, 1
        return client.client_id if attempt.outcome == "committed" else None
    finally:
        await process.close()
        del world.clients[process.name]


async def _ask_the_deposed(world: World, server: str) -> None:
    """Another client's transaction that its successor committed: it must not say that it is not in the log."""
    deposed = world.servers.get(server)
    if deposed is None or deposed.server is None or not all(session.ended for session in deposed.sessions):
        return
    key = world.key.bytes
    for partition in range(world.mix.partitions):
        client_id = await _appended_elsewhere(world, partition)
        if client_id is None:
            continue
        stream = _channel(world, deposed.server.address).open(methods.MOUNT)
        try:
            async with asyncio.timeout(0.3):
                mount = pb.MountRequest(
                    protocol_version=methods.PROTOCOL_VERSION,
                    cluster_key=key,
                    client_id=client_id,
                    partition=partition,
                    mount_sequence=MOUNT_SEQUENCE,
                    client_high_water_mark=-1,
                    appends_nothing=True,
                )
                await stream.send(pb.ClientMessage(mount=mount))
                if await stream.receive() is None:
                    continue
                request = pb.ResolveRequest(
                    partition=partition,
                    client_id=client_id,
                    first_sequence=1,
                    last_sequence=1000,
                    since=-1,
                    cluster_key=key,
                )
                answer = await _channel(world, deposed.server.address).call(methods.RESOLVE, request, timeout_s=0.3)
            if answer.final and not ranges(answer.committed, 3):
                world.history.complaints.append(f"3: {server} said that nothing of client {client_id} is in the log, which is: partition={partition}")
        except (TimeoutError, WaltzError) as error:
            world.trace.add("probe", f"{server} does not tell: {error!r}")
        finally:
            await stream.cancel()
