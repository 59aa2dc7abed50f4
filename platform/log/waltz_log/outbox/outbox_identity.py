"""The identity of an outbox directory: a permanent client id with its ticket, and an epoch that every start raises by compare-and-set in the
coordinator, through a log server.

The epoch becomes the high part of the mount sequence, so the first mount of a start fences whatever an earlier process still has on the wire. The
lock on the directory excludes a second process on the machine; the identity excludes a second copy of the directory. A copy is refused

- if its nonce is not the one in the coordinator: the other copy was started since;
- if the coordinator records partitions that it never used: the other copy used them since;
- if the log holds sequences that it never sent (the lane searches for them): the other copy sent them since.

A nonce is on disk before it is written to the coordinator, so a crash in between does not look like a copy. Uses neither a clock nor randomness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from waltz_log.client.owners.owners import Owners
from waltz_log.errors import ClusterKeyMismatch, OutboxFenced, PermissionDenied
from waltz_log.outbox.journal_writer import JournalWriter
from waltz_log.outbox.ledger import Identity, Ledger
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import OUTBOX

__all__ = ["MOUNTS_PER_EPOCH", "claim", "declare", "renew"]

MOUNTS_PER_EPOCH = 1 << 41
"""Mount sequences of one epoch: more than a process uses, and above the first one of a client that resolves for another client. 2^22 epochs fit."""

TIMEOUT_S = 10.0
"""For one call, at all log servers together. The session begins again after it."""


class _Found(NamedTuple):
    """The record in the coordinator: epoch 0 and version 0 if there is none."""

    version: int
    epoch: int
    nonce: str
    partitions: frozenset[int]


async def _ask(
    owners: Owners, action: pb.OutboxRequest.Action.ValueType, client_id: int, version: int, record: pb.OutboxRecord | None
) -> pb.OutboxResponse:
    request = pb.OutboxRequest(
        cluster_key=owners.parameters.key.bytes,
        action=action,
        client_id=client_id,
        ticket=owners.ticket_of(client_id),
        version=version,
        record=record,
    )
    return await owners.call_any(OUTBOX, request, timeout_s=TIMEOUT_S)


async def _read(owners: Owners, client_id: int) -> _Found:
    answer = await _ask(owners, pb.OutboxRequest.ACTION_READ, client_id, 0, None)
    return _Found(answer.version, answer.record.epoch, answer.record.nonce, frozenset(answer.record.partitions))


async def _write(owners: Owners, client_id: int, version: int, epoch: int, nonce: str, partitions: Iterable[int]) -> bool:
    """False if another process was faster, or if that is not known: read again."""
    record = pb.OutboxRecord(epoch=epoch, nonce=nonce, partitions=sorted(partitions))
    return (await _ask(owners, pb.OutboxRequest.ACTION_WRITE, client_id, version, record)).version > 0


async def claim(owners: Owners, ledger: Ledger, writer: JournalWriter, nonce: Callable[[], str]) -> Identity:
    """Raises the epoch, or creates the identity. Raises `OutboxFenced`, `ClusterKeyMismatch`, `PermissionDenied`, `Unavailable`."""
    key = str(owners.parameters.key)
    if ledger.identity is not None and ledger.identity.cluster_key != key:
        raise ClusterKeyMismatch(where="the outbox")
    identity = ledger.identity or await _create_identity(owners, ledger, writer, key)
    owners.keep_ticket(identity.client_id, identity.ticket)
    mine = ""  # a claim found on disk may be known to a copy; only one made by this start is this start's alone
    while True:
        try:
            found = await _read(owners, identity.client_id)
        except PermissionDenied:
            identity = await _bound(owners, ledger, writer, identity)
            found = await _read(owners, identity.client_id)
        if identity.claim and (found.epoch, found.nonce) == (identity.epoch + 1, identity.claim):
            identity = replace(identity, epoch=found.epoch, nonce=found.nonce, claim="")
            await writer.write(ledger.identify(identity))
        elif (found.epoch, found.nonce) != (identity.epoch, identity.nonce) or not found.partitions <= set(identity.partitions):
            raise _fenced(identity, found)
        if mine and found.nonce == mine:
            return identity
        if not identity.claim:
            mine = nonce()
            identity = replace(identity, claim=mine)
            await writer.write(ledger.identify(identity))
        await _write(owners, identity.client_id, found.version, identity.epoch + 1, identity.claim, identity.partitions)


def _fenced(identity: Identity, found: _Found) -> OutboxFenced:
    return OutboxFenced(client_id=identity.client_id, mine=identity.epoch, newer=found.epoch, reason="another copy of this directory was started")


async def _bound(owners: Owners, ledger: Ledger, writer: JournalWriter, identity: Identity) -> Identity:
    """The identity with a ticket of this principal. A directory that was made before there were tickets, or without TLS, gets it for the record that
    it wrote; one that never claimed its client id gets another id. Raises `PermissionDenied` if the outbox is another principal's."""
    shown = [(identity.epoch, identity.nonce)] if identity.nonce else []
    shown += [(identity.epoch + 1, identity.claim)] if identity.claim else []
    for epoch, nonce in shown:
        record = pb.OutboxRecord(epoch=epoch, nonce=nonce)
        try:
            answer = await _ask(owners, pb.OutboxRequest.ACTION_ADOPT, identity.client_id, 0, record)
        except PermissionDenied:
            if identity.epoch and (epoch, nonce) == shown[-1]:
                raise
            continue
        owners.keep_ticket(identity.client_id, answer.ticket)
        bound = replace(identity, ticket=answer.ticket)
        await writer.write(ledger.identify(bound))
        return bound
    return await _create_identity(owners, ledger, writer, identity.cluster_key)


async def _create_identity(owners: Owners, ledger: Ledger, writer: JournalWriter, key: str) -> Identity:
    client_id = await owners.next_client_id()
    identity = Identity(key, client_id, 0, "", "", (), owners.ticket_of(client_id))
    await writer.write(ledger.identify(identity))
    return identity


async def renew(owners: Owners, ledger: Ledger, writer: JournalWriter) -> None:
    """Assigns another client id after a partition has used up the sequences of this one. Only while nothing is in doubt."""
    if any(entry.attempt is not None for entry in ledger.entries.values()):
        raise AssertionError("an outbox changed its client id with intents in doubt")
    await _create_identity(owners, ledger, writer, str(owners.parameters.key))


async def declare(owners: Owners, ledger: Ledger, writer: JournalWriter, partition: int) -> None:
    """Records in the coordinator that the partition is used from now on, which every copy of this directory can read. Raises `OutboxFenced`,
    `PermissionDenied`, `Unavailable`."""
    identity = ledger.identity
    assert identity is not None
    if partition not in identity.partitions:
        identity = replace(identity, partitions=tuple(sorted((*identity.partitions, partition))))
        await writer.write(ledger.identify(identity))
    while True:
        found = await _read(owners, identity.client_id)
        if (found.epoch, found.nonce) != (identity.epoch, identity.nonce):
            raise _fenced(identity, found)
        if partition in found.partitions:
            return
        # Keeps the recorded partitions and adds only this one: what another lane is about to declare may not be on disk yet.
        if await _write(owners, identity.client_id, found.version, found.epoch, found.nonce, {*found.partitions, partition}):
            return
