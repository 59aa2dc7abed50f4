"""A client that may append and read everything, and acts under the client ids of others: it mounts, fences, resolves and claims outboxes with ids
that were given to others, with no ticket, its own, and those of the others. Any answer except a refusal is a complaint. It runs only if access rules
are enforced (`mix.ACCESS_IN`).
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from verification.simulation.clients import Actor, client_kind
from verification.simulation.identities import IMPOSTOR
from verification.simulation.intruder_client import servers_of
from waltz_log.core.mount_sequences import RESOLVING
from waltz_log.errors import ConnectionLost, PermissionDenied, Unavailable, WaltzError
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["IMPOSTOR", "act_as_others"]

ACTIONS: Final = (pb.OutboxRequest.ACTION_READ, pb.OutboxRequest.ACTION_WRITE, pb.OutboxRequest.ACTION_ADOPT)
NEVER_GIVEN: Final = 2**31 - 1
FENCES_FOR_GOOD: Final = 1 << 62


@client_kind(IMPOSTOR)
async def act_as_others(actor: Actor) -> None:
    """Until the load is over."""
    world, rng = actor.world, actor.rng
    own = pb.ClientIdResponse()
    while not actor.over.is_set():
        await actor.pause(0.05)
        servers = servers_of(world)
        if not servers:
            continue
        channel = actor.process.host.connect(rng.choice(servers))
        if not own.client_id:
            own = await _own_id(channel, world.key.bytes) or own
        others = [each for each in world.history.client_ids.values() if not each.host.startswith(IMPOSTOR)]
        if not others:
            continue
        stolen = rng.choice(others)
        client_id = rng.choice((stolen.client_id, stolen.client_id, NEVER_GIVEN))
        asked = await _ask(channel, *_question(actor, client_id, rng.choice(("", own.ticket, stolen.ticket))))
        if asked is not None:
            world.history.complaints.append(f"35: a principal acts under the client id of another: {asked}")


async def _own_id(channel: Any, key: bytes) -> pb.ClientIdResponse | None:
    try:
        found: pb.ClientIdResponse = await channel.call(methods.CLIENT_ID, pb.ClientIdRequest(cluster_key=key), timeout_s=0.5)
        return found
    except WaltzError:
        return None


def _question(actor: Actor, client_id: int, ticket: str) -> tuple[Any, Any]:
    world, rng = actor.world, actor.rng
    about: dict[str, Any] = {"cluster_key": world.key.bytes, "client_id": client_id, "ticket": ticket}
    of_partition = about | {"partition": rng.choice(range(world.mix.partitions))}
    mount = pb.MountRequest(
        **of_partition,
        mount_sequence=rng.choice((1, RESOLVING, FENCES_FOR_GOOD)),
        appends_nothing=rng.random() < 0.5,
        client_high_water_mark=-1,
        protocol_version=methods.PROTOCOL_VERSION,
    )
    record = pb.OutboxRecord(epoch=rng.choice((1, 2)), nonce="forged")
    outbox = pb.OutboxRequest(**about, action=rng.choice(ACTIONS), version=rng.choice((0, 1)), record=record)
    return rng.choice(
        (
            (methods.MOUNT, pb.ClientMessage(mount=mount)),
            (methods.RESOLVE, pb.ResolveRequest(**of_partition, last_sequence=1000, since=-1)),
            (methods.OUTBOX, outbox),
        )
    )


async def _ask(channel: Any, method: Any, request: Any) -> str | None:
    """What was answered; None if the request was refused, or no answer came."""
    try:
        async with asyncio.timeout(1.0):
            if method.kind == "call":
                answer = await channel.call(method, request, timeout_s=0.5)
            else:
                stream = channel.open(method)
                await stream.send(request)
                answer = await stream.receive()
                await stream.cancel()
    except (PermissionDenied, ConnectionLost, TimeoutError, Unavailable):
        return None
    except WaltzError as error:
        return f"{method.name} reported {error!r}"
    return f"{method.name} answered {type(answer).__name__}"
