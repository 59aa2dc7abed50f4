"""Which directory is the outbox: a client id for life, and an epoch that every start raises by compare-and-set in the coordinator.

The epoch becomes the high part of the mount sequence, so the first mount of a start fences whatever an earlier process still has on the wire. The
lock on the directory keeps two processes of one machine apart; this keeps apart two copies of a directory. A copy is refused

- where its nonce is not the one in the coordinator: the other copy was started since;
- where the coordinator knows of partitions that it never heard of: the other copy used them since;
- where the log holds sequences that it never sent (the lane looks for them): the other copy sent them since.

A nonce is on disk before it is put into the coordinator, so a crash in between is not taken for a copy. No clock, no randomness of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace

from waltz_log.client.owners.owners import Owners
from waltz_log.core.metadata import outbox_path
from waltz_log.core.ports import Coordinator
from waltz_log.errors import ClusterKeyMismatch, ClusterUnavailable, OutboxTaken
from waltz_log.outbox.ledger import Identity, Ledger
from waltz_log.outbox.writer import JournalWriter

__all__ = ["MOUNTS_PER_EPOCH", "claim", "declare", "renew"]

MOUNTS_PER_EPOCH = 1 << 41
"""Mount sequences of one epoch: more than a process makes, and above where somebody who resolves for another client begins. 2^22 epochs fit."""


def _value(epoch: int, nonce: str, partitions: Iterable[int]) -> bytes:
    return json.dumps({"epoch": epoch, "nonce": nonce, "partitions": sorted(partitions)}).encode()


def _coordinator(owners: Owners) -> Coordinator:
    if owners.coordinator is None:
        raise ClusterUnavailable(address="coordinator", reason="session is being replaced")
    return owners.coordinator


async def claim(owners: Owners, ledger: Ledger, writer: JournalWriter, nonce: Callable[[], str]) -> Identity:
    """Raises the epoch, or makes an identity where there is none. Raises `OutboxTaken`, `ClusterKeyMismatch`, `Unavailable`."""
    key = str(owners.parameters.key)
    if ledger.identity is not None and ledger.identity.cluster_key != key:
        raise ClusterKeyMismatch(expected=ledger.identity.cluster_key, got=key)
    identity = ledger.identity or await _born(owners, ledger, writer, key)
    mine = ""  # a claim found on disk may be known to a copy; only one made by this start is this start's alone
    while True:
        coordinator = _coordinator(owners)
        path = outbox_path(identity.client_id)
        node = await coordinator.get(path, latest=True)  # what this directory wrote in an earlier session must be seen
        epoch, held, partitions = (0, "", []) if node is None else _read(node.data)
        if identity.claim and (epoch, held) == (identity.epoch + 1, identity.claim):
            identity = replace(identity, epoch=epoch, nonce=held, claim="")
            await writer.write(ledger.identify(identity))
        elif (epoch, held) != (identity.epoch, identity.nonce) or not set(partitions) <= set(identity.partitions):
            raise OutboxTaken(client_id=identity.client_id, mine=identity.epoch, newer=epoch, reason="another copy of this directory was started")
        if mine and held == mine:
            return identity
        if not identity.claim:
            mine = nonce()
            identity = replace(identity, claim=mine)
            await writer.write(ledger.identify(identity))
        value = _value(identity.epoch + 1, identity.claim, identity.partitions)
        if node is None:
            await coordinator.create(path, value)
        else:
            await coordinator.set(path, value, node.version)


def _read(data: bytes) -> tuple[int, str, list[int]]:
    found = json.loads(data)
    return found["epoch"], found["nonce"], found["partitions"]


async def _born(owners: Owners, ledger: Ledger, writer: JournalWriter, key: str) -> Identity:
    identity = Identity(key, await owners.next_client_id(), 0, "", "", ())
    await writer.write(ledger.identify(identity))
    return identity


async def renew(owners: Owners, ledger: Ledger, writer: JournalWriter) -> None:
    """Another client id, where a partition has used up the sequences of this one. Only where nothing is in doubt."""
    if any(entry.attempt is not None for entry in ledger.entries.values()):
        raise AssertionError("an outbox changed its client id with intents in doubt")
    await _born(owners, ledger, writer, str(owners.parameters.key))


async def declare(owners: Owners, ledger: Ledger, writer: JournalWriter, partition: int) -> None:
    """The partition is used from now on, and every copy of this directory can know it. Raises `OutboxTaken`, `Unavailable`."""
    identity = ledger.identity
    assert identity is not None
    if partition not in identity.partitions:
        identity = replace(identity, partitions=tuple(sorted((*identity.partitions, partition))))
        await writer.write(ledger.identify(identity))
    while True:
        coordinator = _coordinator(owners)
        node = await coordinator.get(outbox_path(identity.client_id), latest=True)
        epoch, held, partitions = (0, "", []) if node is None else _read(node.data)
        if node is None or (epoch, held) != (identity.epoch, identity.nonce):
            raise OutboxTaken(client_id=identity.client_id, mine=identity.epoch, newer=epoch, reason="another copy of this directory was started")
        if partition in partitions:
            return
        # Others are added only as they stand there: what another lane is about to declare may not be on disk yet.
        if await coordinator.set(outbox_path(identity.client_id), _value(epoch, held, {*partitions, partition}), node.version) is not None:
            return
