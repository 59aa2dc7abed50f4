"""Attacks on evidence and metadata: floods of denied calls, foreign partitions, topics, and the coordinator itself."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Final  # Any: kazoo has no types

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoAuthError
from kazoo.handlers.threading import KazooTimeoutError

from verification.hostile.target import SUBSCRIBER, WAIT_S, Hostile, Outcome
from waltz_log.errors import WaltzError
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import BOUND, LOCATE, OUTBOX, READ, RESOLVE, SUBSCRIBERS, TOPICS, TRACES, TRANSACTIONS

__all__ = ["NAMESPACE", "flood_the_audit_log", "manage_topics", "read_foreign_data", "write_foreign_entries", "write_to_the_coordinator"]

NAMESPACE: Final = "hostile"
"""Whose topics the hostile client may create, change and delete."""

CONTROL_BYTES: Final = 2_600_000
NODES: Final = 8
NODE_BYTES: Final = 900_000

CONNECTED_S: Final = 20.0
"""ZooKeeper shares two processors with everything else that runs: an attempt that gives up earlier says nothing."""

SESSION_S: Final = 10.0


async def flood_the_audit_log(hostile: Hostile) -> Outcome:
    """Denied calls that name a topic of control characters."""
    outcome = Outcome()
    request = pb.TransactionRequest(partition=hostile.target.foreign[0], count=1, cluster_key=hostile.key, topic="\x01" * CONTROL_BYTES)
    await hostile.expect_refused(outcome, TRANSACTIONS, request, "a foreign partition was read")
    return outcome


async def read_foreign_data(hostile: Hostile) -> Outcome:
    """Everything that reads, at servers and storage nodes, of a partition that no rule permits."""
    outcome = Outcome()
    about: dict[str, Any] = {"partition": hostile.target.foreign[0], "cluster_key": hostile.key}
    for method, request in (
        (TRANSACTIONS, pb.TransactionRequest(**about, count=1)),
        (TRACES, pb.TracesRequest(**about, last_transaction_id=1, count_max=1)),
        (RESOLVE, pb.ResolveRequest(**about, client_id=hostile.target.victim, last_sequence=10, since=-1)),
    ):
        await hostile.expect_refused(outcome, method, request, f"{method.name} answered for a foreign partition")
    for address in hostile.target.servers:
        try:
            answer = await hostile.channel(address).call(
                BOUND, pb.BoundRequest(cluster_key=hostile.key, partitions=[hostile.target.foreign[0]]), timeout_s=2.0
            )
        except WaltzError as error:
            outcome.refused_with(error)
        else:
            outcome.breaches += ["Bound answered for a foreign partition"] if answer.bounds else []
    for address in hostile.target.storages:
        reader = hostile.channel(address).read(READ, pb.ReadRequest(**about, session=0, last_transaction_id=10, max_bytes=1 << 20))
        try:
            if await reader.receive() is not None:
                outcome.breaches.append("a storage node served a foreign partition")
        except WaltzError as error:
            outcome.refused_with(error)
        finally:
            await reader.cancel()
        try:
            await hostile.channel(address).call(LOCATE, pb.LocateRequest(**about, last_transaction_id=-1), timeout_s=2.0)
            outcome.breaches.append("a storage node located in a foreign partition")
        except WaltzError as error:
            outcome.refused_with(error)
    return outcome


async def write_foreign_entries(hostile: Hostile) -> Outcome:
    """The outbox record of the victim, with and without a ticket, and a subscriber of the honest client."""
    outcome = Outcome()
    victim = hostile.target.victim
    for action in (pb.OutboxRequest.ACTION_READ, pb.OutboxRequest.ACTION_WRITE, pb.OutboxRequest.ACTION_ADOPT):
        request = pb.OutboxRequest(cluster_key=hostile.key, action=action, client_id=victim, ticket=hostile.wrong_ticket())
        request.version = hostile.rng.choice((0, 1, 2))
        request.record.epoch, request.record.nonce = 1 << 20, "hostile"
        await hostile.expect_refused(outcome, OUTBOX, request, f"the outbox record of client {victim} was served: action={action}")
    for remove in (pb.SubscribersRequest.ACTION_REPORT, pb.SubscribersRequest.ACTION_SET, pb.SubscribersRequest.ACTION_REMOVE):
        subscriber = pb.SubscribersRequest(cluster_key=hostile.key, action=remove, name=SUBSCRIBER, partitions=bytes(4), marks=(9).to_bytes(8, "big"))
        await hostile.expect_refused(outcome, SUBSCRIBERS, subscriber, f"a subscriber of another principal was changed: action={remove}")
    return outcome


async def manage_topics(hostile: Hostile) -> Outcome:
    """Creates, changes and deletes a topic of its own namespace, and tries the same in another one and with log partitions of its choice. It achieves
    something only if the changes that it may make are made."""
    refused, own = Outcome(), f"{NAMESPACE}/owned"
    actions, plan = pb.TopicsRequest, pb.TopicPlan(partitions=1, type="regular")
    for topic in ("honest/orders", f"{NAMESPACE}s/orders"):
        for action in (actions.ACTION_CREATE, actions.ACTION_ALTER, actions.ACTION_DELETE):
            request = pb.TopicsRequest(cluster_key=hostile.key, action=action, topic=topic, plan=plan)
            await hostile.expect_refused(refused, TOPICS, request, f"a foreign topic was changed: action={action}")
    for partitions in ((hostile.target.shared[0],), hostile.target.foreign):
        named = pb.TopicPlan(partitions=len(partitions), type="regular", log_partitions=partitions, existing="discard", discards=1 << 40)
        request = pb.TopicsRequest(cluster_key=hostile.key, action=actions.ACTION_CREATE, topic=f"{NAMESPACE}/chosen", plan=named)
        await hostile.expect_refused(refused, TOPICS, request, f"log partitions of others became a topic: {partitions}")
    for action, fields in (
        (actions.ACTION_CREATE, {"plan": plan}),
        (actions.ACTION_ALTER, {"policies": {"retention_ms": "3600000"}}),
        (actions.ACTION_DELETE, {}),
    ):
        request = pb.TopicsRequest(cluster_key=hostile.key, action=action, topic=own, **fields)
        await hostile.server().call(TOPICS, request, timeout_s=WAIT_S)
    return refused


async def write_to_the_coordinator(hostile: Hostile) -> Outcome:
    """In ZooKeeper, with the hostile client's certificate."""
    return await asyncio.to_thread(_write, hostile)


def _write(hostile: Hostile) -> Outcome:
    hosts, _, root = hostile.target.zookeeper.partition("/")
    client = KazooClient(
        hosts=hosts,
        timeout=SESSION_S,
        use_ssl=True,
        verify_certs=False,
        certfile=str(hostile.tls.certificate),
        keyfile=str(hostile.tls.key),
        ca=str(hostile.tls.authorities),
    )
    outcome = Outcome()

    def attempt(breach: str, call: Callable[[], object]) -> None:
        try:
            call()
        except NoAuthError:
            outcome.achieved += 1
        except (KazooException, OSError):
            pass  # not an answer to whether it may
        else:
            outcome.breaches.append(breach)

    try:
        client.start(timeout=CONNECTED_S)
        for path, data in (
            *((f"/hostile-{hostile.rng.getrandbits(40)}", bytes(NODE_BYTES)) for _ in range(NODES)),
            (f"/{root}/subscribers/hostile-{hostile.rng.getrandbits(40)}", b"no subscriber"),
            (f"/{root}/outboxes/{hostile.target.victim}", b"{}"),
        ):
            attempt(f"created {path.rstrip('0123456789')} in ZooKeeper", partial(client.create, path, data))
        for path in ("cluster", "assignment", "topics", "ids/client", "access", "subscribers", "store/nodes"):
            attempt(f"read /{path} in ZooKeeper", partial(client.get, f"/{root}/{path}"))
        attempt("wrote the counter of client ids", partial(client.set, f"/{root}/ids/client", b"garbage"))
    except (KazooTimeoutError, KazooException, OSError, ssl.SSLError):
        return outcome
    finally:
        client.stop()
        client.close()
    return outcome
