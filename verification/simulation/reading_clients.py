"""The kinds of clients that only read, and those that must be refused: feeds, bulk readers of replicas, strangers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial

from verification.simulation.clients import Actor, client_kind, open_owners
from waltz_log.client.feed.decode_feed import decode_feed
from waltz_log.client.owners.owners import Owners
from waltz_log.core.ports import Channel
from waltz_log.errors import ClusterKeyMismatch, CorruptData, PermissionDenied, ProtocolViolation, SessionTooOld, Unavailable, WaltzError
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["come_from_elsewhere", "read_feeds", "read_replicas"]


@client_kind("reader")
async def read_feeds(actor: Actor) -> None:
    """Feeds from random positions, ended and continued, with and without data, and requests for marks in between."""
    client = await actor.connect()
    position = -1
    while not actor.over.is_set():
        try:
            mark = await client.high_water_mark(actor.partition)
        except Unavailable:
            continue
        actor.saw_mark(mark)
        after = min(position if actor.rng.random() < 0.7 else actor.rng.randint(-1, max(-1, mark)), mark)
        with_data = actor.rng.random() < 0.8
        stream = actor.stream()
        batches = client.feed_batches(actor.partition, after, data=with_data)
        try:
            async with asyncio.timeout(actor.rng.uniform(0.05, 1.0)):
                async for batch in batches:
                    actor.saw(stream, after, batch, with_data=with_data)
                    position = after = batch[-1].transaction_id
                    await actor.pause(0.01)
        except TimeoutError:
            pass  # long enough: it starts again elsewhere
        finally:
            await batches.aclose()
    await client.close()


@client_kind("bulk")
async def read_replicas(actor: Actor) -> None:
    """As Spark's executors do: a bound from the owner, then ranges from any replica."""
    async with open_owners(actor) as owners:
        key = owners.parameters.key.bytes
        while not actor.over.is_set():
            await actor.pause(0.2)
            try:
                await actor.world.maps_seen.confirm(actor.name, owners, 1.0)
                bound = await owners.bound(actor.partition, 1.0)
                addresses = owners.replica_addresses(actor.partition)
                if not addresses or bound.high_water_mark < 0:
                    continue
                actor.saw_mark(bound.high_water_mark)
                await _read_range(actor, actor.rng.choice(addresses), bound, key)
            except SessionTooOld:
                actor.announce("was refused by a replica of an older session")
            except WaltzError as error:
                actor.announce(f"reads elsewhere: {error}")


async def _read_range(actor: Actor, address: str, bound: pb.Bound, key: bytes) -> None:
    first = actor.rng.randint(0, bound.high_water_mark)
    request = pb.ReadRequest(
        cluster_key=key,
        partition=bound.partition,
        session=bound.session,
        first_transaction_id=first,
        last_transaction_id=bound.high_water_mark + BEYOND,  # what a replica serves is committed, whatever a reader asks for
        max_bytes=actor.rng.choice((500, 1 << 20)),
    )
    stream = actor.process.host.connect(address).read(methods.READ, request)
    number, after = actor.stream(), first - 1
    try:
        while (answer := await stream.receive()) is not None:
            for block in answer.blocks:
                try:
                    transactions = decode_feed(pb.FeedFrame(blocks=[block]), bound.partition, after + 1, data=True)
                except (CorruptData, ProtocolViolation) as error:
                    if "corrupt-messages" not in actor.world.mix.faults:  # it may have changed on its way, which the checksum showed
                        actor.world.history.complaints.append(f"13: {address} served {error}")
                    raise
                actor.saw(number, after, transactions, partition=bound.partition)
                after = transactions[-1].transaction_id
    finally:
        await stream.cancel()


BEYOND = 50
"""Transactions above the mark that a reader asks for."""

GUESSED_SESSION = 10**12


@client_kind("stranger")
async def come_from_elsewhere(actor: Actor) -> None:
    """Has the key of another cluster, or speaks another version: must be refused by name, everywhere."""
    async with open_owners(actor) as owners:
        other = b"\x99" * 16
        while not actor.over.is_set():
            await actor.pause(0.3)
            address, storage = owners.address(actor.partition), actor.world.storages.get(actor.rng.choice(actor.world.storage_names))
            if address is None or storage is None or storage.listener is None:
                continue
            session = 0
            channel = actor.process.host.connect(storage.listener.address)
            call = channel.call
            opening = pb.OpenRequest(cluster_key=other, partition=actor.partition, session=session)
            cutting = pb.TruncateRequest(cluster_key=other, partition=actor.partition, session=session)
            key = owners.parameters.key.bytes
            ask = owners.call_channel(address).call
            of_nodes = PermissionDenied if actor.world.mix.access else ClusterKeyMismatch
            asked: list[tuple[str, type[WaltzError], Callable[[], Awaitable[object]]]] = [
                ("open", of_nodes, partial(call, methods.OPEN, opening, timeout_s=1)),
                ("truncate", of_nodes, partial(call, methods.TRUNCATE, cutting, timeout_s=1)),
                ("bound", ClusterKeyMismatch, partial(ask, methods.BOUND, pb.BoundRequest(cluster_key=other), timeout_s=1)),
                ("mount of another version", ProtocolViolation, partial(_mount, owners, address, actor.partition, key, version=99)),
                (
                    "mount of another cluster",
                    ClusterKeyMismatch,
                    partial(_mount, owners, address, actor.partition, other, version=methods.PROTOCOL_VERSION),
                ),
            ]
            for what, refusal, answer in asked:
                try:
                    await answer()
                except refusal:
                    continue
                except Unavailable as error:
                    actor.announce(f"{what}: {error}")
                    continue
                except WaltzError as error:
                    reported = str(error)
                else:
                    reported = "an answer"
                actor.world.history.complaints.append(f"15: {what} of another cluster got {reported}: storage={storage.name} server={address}")
            await _guess_a_session(actor, storage.name, channel, key)


async def _guess_a_session(actor: Actor, storage: str, channel: Channel, key: bytes) -> None:
    """Reads with the number of a session that no owner opened. It must get nothing and raise no fence."""
    request = pb.ReadRequest(cluster_key=key, partition=actor.partition, session=-1, fence=GUESSED_SESSION, max_bytes=1000, owner_token=b"guessed")
    try:
        status = json.loads((await channel.call(methods.STORAGE_STATUS, pb.StorageStatusRequest(), timeout_s=1)).json)
        if all(each["partition"] != actor.partition for each in status["partitions"]):
            return  # a read would make it open the partition
        answer = await channel.read(methods.READ, request).receive()
        actor.world.history.complaints.append(f"15: a read in a session that nobody opened got {answer}: storage={storage}")
    except WaltzError as error:
        actor.announce(f"a read in a session that nobody opened: {error}")
    try:
        status = json.loads((await channel.call(methods.STORAGE_STATUS, pb.StorageStatusRequest(), timeout_s=1)).json)
    except WaltzError:
        return
    if any(each["fence"] >= GUESSED_SESSION for each in status["partitions"]):
        actor.world.history.complaints.append(f"15: a read raised the fence to a session that nobody opened: storage={storage}")


async def _mount(owners: Owners, address: str, partition: int, key: bytes, *, version: int) -> None:
    stream = owners.stream_channel(address).open(methods.MOUNT)
    try:
        async with asyncio.timeout(1):
            request = pb.MountRequest(protocol_version=version, cluster_key=key, partition=partition, client_high_water_mark=-1)
            await stream.send(pb.ClientMessage(mount=request))
            await stream.receive()
    except TimeoutError:
        raise Unavailable(reason="no answer") from None
    finally:
        await stream.cancel()
