"""Attacks on evidence and metadata: floods of denied calls, foreign partitions, and the coordinator itself."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Final  # Any: kazoo has no types

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from verification.hostile.target import SUBSCRIBER, Hostile
from waltz_log.errors import WaltzError
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import BOUND, LOCATE, OUTBOX, READ, RESOLVE, SUBSCRIBERS, TRACES, TRANSACTIONS

__all__ = ["flood_the_audit_log", "read_foreign_data", "write_foreign_entries", "write_to_the_coordinator"]

CONTROL_BYTES: Final = 2_600_000
NODES: Final = 8
NODE_BYTES: Final = 900_000


async def flood_the_audit_log(hostile: Hostile) -> list[str]:
    """Denied calls that name a topic of control characters."""
    request = pb.TransactionRequest(partition=hostile.target.foreign[0], count=1, cluster_key=hostile.key, topic="\x01" * CONTROL_BYTES)
    return [] if await hostile.refused(TRANSACTIONS, request) else ["a foreign partition was read"]


async def read_foreign_data(hostile: Hostile) -> list[str]:
    """Everything that reads, at servers and storage nodes, of a partition that no rule permits."""
    found: list[str] = []
    about: dict[str, Any] = {"partition": hostile.target.foreign[0], "cluster_key": hostile.key}
    for method, request in (
        (TRANSACTIONS, pb.TransactionRequest(**about, count=1)),
        (TRACES, pb.TracesRequest(**about, last_transaction_id=1, count_max=1)),
        (RESOLVE, pb.ResolveRequest(**about, client_id=hostile.target.victim, last_sequence=10, since=-1)),
    ):
        if not await hostile.refused(method, request):
            found.append(f"{method.name} answered for a foreign partition")
    for address in hostile.target.servers:
        try:
            answer = await hostile.channel(address).call(
                BOUND, pb.BoundRequest(cluster_key=hostile.key, partitions=[hostile.target.foreign[0]]), timeout_s=2.0
            )
        except WaltzError:
            continue
        if answer.bounds:
            found.append("Bound answered for a foreign partition")
    for address in hostile.target.storages:
        reader = hostile.channel(address).read(READ, pb.ReadRequest(**about, session=0, last_transaction_id=10, max_bytes=1 << 20))
        try:
            if await reader.receive() is not None:
                found.append("a storage node served a foreign partition")
        except WaltzError:
            pass  # refused, which is what should happen
        finally:
            await reader.cancel()
        try:
            await hostile.channel(address).call(LOCATE, pb.LocateRequest(**about, last_transaction_id=-1), timeout_s=2.0)
            found.append("a storage node located in a foreign partition")
        except WaltzError:
            continue
    return found


async def write_foreign_entries(hostile: Hostile) -> list[str]:
    """The outbox record of the victim, with and without a ticket, and a subscriber of the honest client."""
    found: list[str] = []
    for action in (pb.OutboxRequest.ACTION_READ, pb.OutboxRequest.ACTION_WRITE, pb.OutboxRequest.ACTION_ADOPT):
        request = pb.OutboxRequest(cluster_key=hostile.key, action=action, client_id=hostile.target.victim, ticket=hostile.wrong_ticket())
        request.version = hostile.rng.choice((0, 1, 2))
        request.record.epoch, request.record.nonce = 1 << 20, "hostile"
        if not await hostile.refused(OUTBOX, request):
            found.append(f"the outbox record of client {hostile.target.victim} was served: action={action}")
    for remove in (pb.SubscribersRequest.ACTION_REPORT, pb.SubscribersRequest.ACTION_SET, pb.SubscribersRequest.ACTION_REMOVE):
        subscriber = pb.SubscribersRequest(cluster_key=hostile.key, action=remove, name=SUBSCRIBER, partitions=bytes(4), marks=(9).to_bytes(8, "big"))
        if not await hostile.refused(SUBSCRIBERS, subscriber):
            found.append(f"a subscriber of another principal was changed: action={remove}")
    return found


async def write_to_the_coordinator(hostile: Hostile) -> list[str]:
    """In ZooKeeper, with the hostile client's certificate."""
    return await asyncio.to_thread(_write, hostile)


def _write(hostile: Hostile) -> list[str]:
    hosts, _, root = hostile.target.zookeeper.partition("/")
    client = KazooClient(
        hosts=hosts,
        timeout=4.0,
        use_ssl=True,
        verify_certs=False,
        certfile=str(hostile.tls.certificate),
        keyfile=str(hostile.tls.key),
        ca=str(hostile.tls.authorities),
    )
    found: list[str] = []
    try:
        client.start(timeout=4.0)
        for path, data in (
            *((f"/hostile-{hostile.rng.getrandbits(40)}", bytes(NODE_BYTES)) for _ in range(NODES)),
            (f"/{root}/subscribers/hostile-{hostile.rng.getrandbits(40)}", b"no subscriber"),
            (f"/{root}/outboxes/{hostile.target.victim}", b"{}"),
        ):
            if _succeeds(lambda path=path, data=data: client.create(path, data)):
                found.append(f"created {path.rstrip('0123456789')} in ZooKeeper")
        for path in ("cluster", "assignment", "topics", "ids/client", "access", "subscribers", "store/nodes"):
            if _succeeds(lambda path=path: client.get(f"/{root}/{path}")):
                found.append(f"read /{path} in ZooKeeper")
        if _succeeds(lambda: client.set(f"/{root}/ids/client", b"garbage")):
            found.append("wrote the counter of client ids")
    except (KazooTimeoutError, KazooException, OSError, ssl.SSLError):
        return found
    finally:
        client.stop()
        client.close()
    return found


def _succeeds(call: Any) -> bool:
    try:
        call()
    except (KazooException, OSError):
        return False
    return True
