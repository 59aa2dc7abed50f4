"""Resolves the attempts of a partition: asks the log for their outcomes.

Each question is asked under a mount that appends nothing. Its mount sequence is above every earlier one, so it fences what an earlier process still
has on the wire, and an owner accepts it whatever topic the partition belongs to (docs/decisions, 26). The answer is final if the owner says so: this
mount is the newest and ready, and the log reaches back to when the oldest attempt was sent. After a long absence there is much to search. What was
searched is not searched again after an error.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol

from waltz_log.client.append.producer import SEQUENCE_MAX, Producer
from waltz_log.client.append.sequence_query import SequenceQuery
from waltz_log.client.base.retry import Backoff
from waltz_log.client.owners.mounting import mount_for_appends
from waltz_log.client.owners.owners import Owners
from waltz_log.errors import ClusterKeyMismatch, Fenced, InvalidRequest, NotAllowed, NotOwner, OutOfRange, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.outbox.ledger import Attempt
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import BOUND, RESOLVE, MountStream

__all__ = ["REFUSED_PAUSE_S", "Settled", "SettlingMount", "settle"]

log = get_logger(__name__)

REFUSED_PAUSE_S = 5.0
"""The pause before the next mount after an owner answered that this principal may not append."""

PAUSE_S = 0.05
"""Between two questions to an owner that is not ready to answer permanently."""


class Mounting(Protocol):
    partition: int

    async def mounted(self) -> None: ...


class Settled(NamedTuple):
    """`committed`: transaction id by sequence, of everything this client has in the log since the oldest attempt. Not `final`: the log was trimmed
    beyond that point, and what is not in `committed` may have been in it."""

    committed: dict[int, int]
    final: bool


async def settle(lane: Mounting, owners: Owners, attempts: list[Attempt], client_id: int, timeout_s: float) -> Settled:
    """Waits for the answer without a time limit. Raises errors that no retry can resolve."""
    first, since = min(each.first_sequence for each in attempts), min(each.since for each in attempts)
    search = SequenceQuery(lane.partition, client_id, first, SEQUENCE_MAX, since, owners.parameters.key.bytes, owners.ticket_of(client_id))
    while True:
        await lane.mounted()
        try:
            address = await owners.owner(lane.partition, timeout_s)
            if not search.add_answer(await owners.call_channel(address).call(RESOLVE, search.question(timeout_s), timeout_s=timeout_s)):
                continue
            if search.final or await _trimmed(lane.partition, owners, address, since, timeout_s):
                committed = {start + offset: transaction_id + offset for start, count, transaction_id in search.committed for offset in range(count)}
                return Settled(committed, search.final)
        except (ClusterKeyMismatch, InvalidRequest):
            raise
        except WaltzError as error:
            if not error.retriable:
                raise
        await asyncio.sleep(PAUSE_S)


class SettlingMount:
    """Mounts under the producer's client id only to fence and to ask. The producer must not mount meanwhile."""

    def __init__(self, producer: Producer, owners: Owners, timeout_s: float, pauses: Backoff) -> None:
        """`timeout_s`: of one mount; `pauses`: between mounts that fail."""
        self.partition = producer.partition
        self._producer = producer
        self._owners = owners
        self._timeout_s = timeout_s
        self._pauses = pauses
        self._mark = producer.known_mark
        self._stream: MountStream | None = None

    async def mounted(self) -> None:
        """Mounts again, above every earlier mount, and returns when an owner has decided everything that this client sent before. Raises `Fenced` if
        another process mounted as this client later, `ClusterKeyMismatch`, `InvalidRequest`."""
        await self.close()
        producer, timeout_s = self._producer, self._timeout_s
        while True:
            sequence = producer.next_mount_sequence()
            try:
                address = await self._owners.owner(self.partition, timeout_s)
                mine = (self.partition, producer.client_id, sequence, self._mark)
                self._stream, _ = await mount_for_appends(self._owners, address, *mine, timeout_s, appends_nothing=True)
            except (ClusterKeyMismatch, InvalidRequest):
                raise
            except Fenced as error:
                if error.what == "mount" and error.newer > sequence:
                    raise  # a copy of the outbox was started: the claim of the next session says so
            except OutOfRange as error:
                self._mark = max(self._mark, error.first - 1)
            except NotAllowed as error:  # the intents are kept until the permissions, or these settings, are right
                log.warning("outbox may not append", partition=self.partition, error=str(error))
                await asyncio.sleep(REFUSED_PAUSE_S)
            except WaltzError:
                pass  # the log is away, which an outbox is for: its statistics say so, and a line per try would fill an application's output
            else:
                self._pauses.reset()
                return
            await self._owners.wait_changed(self._pauses.next_s())

    async def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.cancel()


async def _trimmed(partition: int, owners: Owners, address: str, since: int, timeout_s: float) -> bool:
    """Whether the log begins after `since`, so that no answer can be final."""
    request = pb.BoundRequest(partitions=[partition], cluster_key=owners.parameters.key.bytes)
    answer: pb.BoundResponse = await owners.call_channel(address).call(BOUND, request, timeout_s=timeout_s)
    if len(answer.bounds) != 1:
        raise NotOwner(partition=partition, reason=f"{address} does not serve it")
    return bool(answer.bounds[0].first_transaction_id > since + 1)
