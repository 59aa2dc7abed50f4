"""Reads and writes the records of outboxes for the principals that their client ids belong to, bounded in size and number.

An outbox that was made before there were tickets, or without TLS, has none, or one that proves nothing. It is bound at its first claim: it shows the
record that it wrote, whose nonce no other principal has, and gets a ticket for the caller's principal, which is then in the record.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from waltz_log.coordination.entries import UNREADABLE, readable
from waltz_log.core.metadata import OUTBOXES, ClusterParameters, outbox_path
from waltz_log.core.outbox_record import OUTBOXES_MAX, OUTBOXES_OF_PRINCIPAL_MAX, OutboxRecord, follows
from waltz_log.core.ports import Coordinator, Node
from waltz_log.errors import InvalidRequest, ProtocolViolation, Unavailable
from waltz_log.security.access import AccessControl
from waltz_log.server.base.fair_places import FairPlaces
from waltz_log.server.identities.client_ids import ClientIds
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["OutboxRecords"]

READ_TOGETHER: Final = 100


class OutboxRecords:
    """The outbox records of one server process."""

    def __init__(self, coordinator: Coordinator, access: AccessControl, client_ids: ClientIds) -> None:
        self._coordinator = coordinator
        self._access = access
        self._client_ids = client_ids
        self._principals: dict[str, str] = {}
        """For the records that were counted, by the name of their node."""
        self._counting = FairPlaces(1)
        """One count at a time, of each principal in turn."""

    async def serve(self, request: pb.OutboxRequest, cluster: ClusterParameters) -> pb.OutboxResponse:
        """Raises `PermissionDenied` for the client id of another principal, in the same words as for one that was never given."""
        if request.action == pb.OutboxRequest.ACTION_ADOPT:
            return await self._adopt(request)
        if request.action not in (pb.OutboxRequest.ACTION_READ, pb.OutboxRequest.ACTION_WRITE):
            raise ProtocolViolation(reason=f"no such action: {request.action}")
        if request.client_id <= 0:
            raise InvalidRequest(reason=f"no client id: {request.client_id}")
        self._client_ids.expect_owned(request.client_id, request.ticket)
        if request.action == pb.OutboxRequest.ACTION_READ:
            return await self._read(request.client_id)
        return await self._write(request, cluster)

    async def _read(self, client_id: int) -> pb.OutboxResponse:
        node, record = await self._found(client_id)
        return pb.OutboxResponse() if node is None or record is None else pb.OutboxResponse(version=1 + node.version, record=_message(record))

    async def _found(self, client_id: int) -> tuple[Node | None, OutboxRecord | None]:
        """Raises `Unavailable` for a record that cannot be parsed: nothing says then which copy forwards."""
        path = outbox_path(client_id)
        node = await self._coordinator.get(path, latest=True)  # what the outbox wrote through another server must be seen
        record = readable(path, node, OutboxRecord.from_bytes)
        if node is not None and record is None:
            raise Unavailable(reason=f"the outbox's record in the coordinator is unreadable, an operator repairs it: client_id={client_id}")
        return node, record

    async def _write(self, request: pb.OutboxRequest, cluster: ClusterParameters) -> pb.OutboxResponse:
        wanted = self._wanted(request, cluster)
        node, before = await self._found(request.client_id)
        if request.version != (0 if node is None else 1 + node.version):
            return pb.OutboxResponse(version=-1)
        if not follows(wanted, before):
            raise InvalidRequest(reason=f"not the next record of the outbox: client_id={request.client_id} epoch={wanted.epoch}")
        path, principal = outbox_path(request.client_id), self._client_ids.principal or ("" if before is None else before.principal)
        data = replace(wanted, principal=principal).to_bytes()
        if node is None:
            await self._expect_room()
            written = 0 if await self._coordinator.create(path, data) else None
        else:
            written = await self._coordinator.set(path, data, node.version)
        return pb.OutboxResponse(version=-1 if written is None else 1 + written)

    def _wanted(self, request: pb.OutboxRequest, cluster: ClusterParameters) -> OutboxRecord:
        partitions = tuple(request.record.partitions)
        if any(not 0 <= each < cluster.partitions for each in partitions) or len(set(partitions)) != len(partitions):
            raise InvalidRequest(reason="not partitions of the log")
        try:
            return OutboxRecord(request.record.epoch, request.record.nonce, partitions)
        except UNREADABLE as error:
            raise InvalidRequest(reason=f"not a record of an outbox: {error}") from None

    async def _adopt(self, request: pb.OutboxRequest) -> pb.OutboxResponse:
        path = outbox_path(request.client_id)
        while True:
            node = await self._coordinator.get(path, latest=True)
            record = readable(path, node, OutboxRecord.from_bytes)
            shown = (request.record.epoch, request.record.nonce)
            if node is None or record is None or shown != (record.epoch, record.nonce) or record.principal not in ("", self._client_ids.principal):
                # Whether there is such an outbox is not for this to say.
                self._client_ids.deny("use")
            elif record.principal == self._client_ids.principal:
                return pb.OutboxResponse(ticket=self._client_ids.sign(request.client_id))
            else:
                await self._coordinator.set(path, replace(record, principal=self._client_ids.principal).to_bytes(), node.version)

    async def _expect_room(self) -> None:
        """Raises `Unavailable` if the cluster, or the caller's principal, has as many outboxes as it may. The intents of a refused one wait."""
        async with self._counting.place(self._client_ids.principal):
            names = await self._coordinator.children(OUTBOXES)
            if len(names) >= OUTBOXES_MAX:
                raise Unavailable(reason=f"the cluster has {OUTBOXES_MAX} outboxes, which is the limit")
            if not self._access.enforced:
                return
            unknown = [name for name in names if name not in self._principals]
            for start in range(0, len(unknown), READ_TOGETHER):
                await asyncio.gather(*(self._count(name) for name in unknown[start : start + READ_TOGETHER]))
            there = set(names)
            self._principals = {name: principal for name, principal in self._principals.items() if name in there}
            if sum(each == self._client_ids.principal for each in self._principals.values()) >= OUTBOXES_OF_PRINCIPAL_MAX:
                raise Unavailable(reason=f"this principal has {OUTBOXES_OF_PRINCIPAL_MAX} outboxes, which is the limit")

    async def _count(self, name: str) -> None:
        path = f"{OUTBOXES}/{name}"
        record = readable(path, await self._coordinator.get(path), OutboxRecord.from_bytes)
        self._principals[name] = "" if record is None else record.principal


def _message(record: OutboxRecord) -> pb.OutboxRecord:
    return pb.OutboxRecord(epoch=record.epoch, nonce=record.nonce, partitions=record.partitions)
