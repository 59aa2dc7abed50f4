"""A client without any permission. It sends servers and storage nodes every kind of request: fences, tokens, the principals of others, partitions
that exist and that do not. Any answer except a refusal is a complaint. It runs only if access rules are enforced (`mix.ACCESS_IN`). After the faults
it is permitted to read and loses the permission again (`lose_a_right`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from verification.simulation.clients import Actor, client_kind
from verification.simulation.identities import INTRUDER, identity_of
from waltz_log.coordination.access import change_rules
from waltz_log.core.topics.access import CLUSTER_PRINCIPAL
from waltz_log.errors import ConnectionLost, PermissionDenied, Unavailable, WaltzError
from waltz_log.security.access import NOT_KNOWN
from waltz_log.security.rules import Operation, Rule
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

if TYPE_CHECKING:
    from verification.simulation.world import World

__all__ = ["INTRUDER", "ask_as_an_intruder", "lose_a_right", "servers_of"]

NEWEST: Final = 1 << 40
"""A session number above all those of a run."""

UNDER_WAY_S: Final = 2.0
"""In which a reader that has not read receives what a server sent it before. A feed that goes on has no end after it."""

WITHIN_S: Final = 1.0
"""A permission ends within this time on every node that reaches the coordinator."""

PATIENCE_S: Final = 10.0


@client_kind(INTRUDER)
async def ask_as_an_intruder(actor: Actor) -> None:
    """Until the load is over."""
    while not actor.over.is_set():
        await actor.pause(0.05)
        asked = await _ask(actor, *_question(actor))
        if isinstance(asked, str):
            actor.world.history.complaints.append(f"31: a principal that no rule permits anything was served: {asked}")


def _question(actor: Actor) -> tuple[str | None, Any, Any]:
    """An address, a method and a request."""
    world, rng = actor.world, actor.rng
    partition = rng.choice((*range(world.mix.partitions), 1000))
    about: dict[str, Any] = {"cluster_key": world.key.bytes, "partition": partition}
    stated = rng.choice(("", CLUSTER_PRINCIPAL, "spiffe://sim/application/client-0", "spiffe://sim/node/server-0"))
    session = rng.choice((0, 1, 2, 3, 5, NEWEST))
    as_owner: dict[str, Any] = {"principal": stated, "fence": rng.choice((0, session)), "owner_token": rng.choice((b"", bytes(16)))}
    to_server = (
        (methods.TRANSACTIONS, pb.TransactionRequest(**about, count=1, principal=stated)),
        (methods.RESOLVE, pb.ResolveRequest(**about, client_id=1, last_sequence=1, since=-1)),
        (methods.BOUND, pb.BoundRequest(cluster_key=world.key.bytes, partitions=[partition])),
        (methods.MOUNT, _mount(about, stated, pb.FEED_RECORDS, client_id=0)),
        (methods.MOUNT, _mount(about, stated, pb.FEED_NONE, client_id=1)),
        (methods.SERVER_STATUS, pb.ServerStatusRequest()),
        (methods.FOLLOW, pb.FollowRequest(cluster_key=world.key.bytes)),
        (methods.CONFIRM, pb.ConfirmRequest(cluster_key=world.key.bytes)),
    )
    to_storage = (
        (methods.READ, pb.ReadRequest(**about, session=rng.choice((0, -1)), last_transaction_id=0, **as_owner)),
        (methods.READ_VIEW, pb.ReadViewRequest(**about, **as_owner)),
        (methods.LOCATE, pb.LocateRequest(**about, last_transaction_id=-1)),
        (methods.OPEN, pb.OpenRequest(**about, session=session, owner_token=bytes(16))),
        (methods.TRUNCATE, pb.TruncateRequest(**about, session=session, last_transaction_id=-1)),
        (methods.STORAGE_STATUS, pb.StorageStatusRequest()),
    )
    there, asked = (servers_of(world), to_server) if rng.random() < 0.5 else (_storages(world), to_storage)
    return (rng.choice(there) if there else None, *rng.choice(asked))


def servers_of(world: World) -> list[str]:
    """The addresses of those that serve, in order."""
    found = []
    for each in world.servers.values():
        with suppress(Unavailable):  # it is starting
            found += [] if each.server is None else [each.server.address]
    return sorted(found)


def _storages(world: World) -> list[str]:
    return sorted(each.listener.address for each in world.storages.values() if each.listener is not None)


def _mount(about: dict[str, Any], principal: str, feed: pb.FeedMode.ValueType, *, client_id: int) -> pb.ClientMessage:
    return pb.ClientMessage(
        mount=pb.MountRequest(
            **about,
            principal=principal,
            client_id=client_id,
            mount_sequence=1,
            feed=feed,
            client_high_water_mark=-1,
            protocol_version=methods.PROTOCOL_VERSION,
        )
    )


async def _ask(actor: Actor, address: str | None, method: Any, request: Any) -> str | None:
    """The answer; None if the request was refused or no node was there."""
    if address is None:
        return None
    channel = actor.process.host.connect(address)
    try:
        async with asyncio.timeout(1.0):
            if method.kind == "call":
                answer = await channel.call(method, request, timeout_s=0.5)
            elif method.kind == "read":
                answer = await channel.read(method, request).receive()
            else:
                stream = channel.open(method)
                await stream.send(request)
                answer = await stream.receive()
    except (PermissionDenied, ConnectionLost, TimeoutError):
        return None
    except WaltzError as error:
        if isinstance(error, Unavailable) and error.reason == NOT_KNOWN:  # a node that starts, while most storage nodes are down
            return None
        return f"{method.name} reported {error!r}"
    return f"{method.name} answered {type(answer).__name__} partition={getattr(request, 'partition', '')}"


# ---- after the faults ------------------------------------------------------------------------------------------------------------------------------


async def lose_a_right(world: World) -> None:
    """A reader is permitted to read partition 0 and follows it. When it loses the permission, its feed ends within a second, and no storage node
    serves it."""
    process = world.client(f"{INTRUDER}-reader")
    principal = identity_of(process.name).principal
    rule = Rule(principal=principal, operations=(Operation.READ,), resource="*")
    await change_rules(world.coordinator, lambda found: found.granted(rule))
    reads = {
        name: _reading(world, process.host, storage.listener.address) for name, storage in world.storages.items() if storage.listener is not None
    }
    feed = await _granted(world, process, reads)
    if feed is None:
        world.history.complaints.append(f"31: a right that was granted is not known everywhere after {PATIENCE_S:g} s")
        return
    await change_rules(world.coordinator, lambda found: found.revoked(principal))
    await asyncio.sleep(WITHIN_S + 2 * world.mix.follower_lag_s)
    for name, read in reads.items():
        if await read():
            world.history.complaints.append(f"31: a right that was revoked is still served: storage={name}")
    try:
        async with asyncio.timeout(UNDER_WAY_S):  # what was sent before the revocation arrives first, then the end
            while await feed.receive() is not None:
                pass
    except TimeoutError:
        world.history.complaints.append("31: a feed goes on whose right was revoked")
    except WaltzError:
        pass
    await feed.cancel()


def _reading(world: World, host: Any, address: str) -> Any:
    async def read() -> bool:
        request = pb.ReadRequest(cluster_key=world.key.bytes, partition=0, session=0, last_transaction_id=0)
        try:
            async with asyncio.timeout(1.0):
                return await host.connect(address).read(methods.READ, request).receive() is not None
        except PermissionDenied:
            return False
        except (TimeoutError, WaltzError):
            return False

    return read


async def _granted(world: World, process: Any, reads: dict[str, Any]) -> Any | None:
    """A feed that was served once, when every replica of the partition serves the reader too; None if that does not happen in time."""
    until = world.now_s + PATIENCE_S
    replicas = set(await world.assigned(0))
    mount = _mount({"cluster_key": world.key.bytes, "partition": 0}, "", pb.FEED_RECORDS, client_id=0)
    while world.now_s < until:
        await asyncio.sleep(0.1)
        if not all([await reads[name]() for name in sorted(replicas & reads.keys())]):
            continue
        for address in servers_of(world):
            stream = process.host.connect(address).open(methods.MOUNT)
            try:
                async with asyncio.timeout(1.0):
                    await stream.send(mount)
                    if await stream.receive() is not None:
                        return stream
            except (TimeoutError, WaltzError):
                await stream.cancel()
    return None
