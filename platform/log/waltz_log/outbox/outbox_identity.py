"""The identity of an outbox directory: a permanent client id, and an epoch that every start raises by compare-and-set in the coordinator.

The epoch becomes the high part of the mount sequence, so the first mount of a start fences whatever an earlier process still has on the wire. The
lock on the directory excludes a second process on the machine; the identity excludes a second copy of the directory. A copy is refused

- if its nonce is not the one in the coordinator: the other copy was started since;
- if the coordinator records partitions that it never used: the other copy used them since;
- if the log holds sequences that it never sent (the lane searches for them): the other copy sent them since.

A nonce is on disk before it is written to the coordinator, so a crash in between does not look like a copy. Uses neither a clock nor randomness.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace

from waltz_log.client.owners.owners import Owners
from waltz_log.core.metadata import outbox_path
from waltz_log.core.ports import Coordinator
from waltz_log.errors import ClusterKeyMismatch, ClusterUnavailable, OutboxFenced
from waltz_log.outbox.journal_writer import JournalWriter
from waltz_log.outbox.ledger import Identity, Ledger

__all__ = ["MOUNTS_PER_EPOCH", "claim", "declare", "renew"]

MOUNTS_PER_EPOCH = 1 << 41
"""Mount sequences of one epoch: more than a process uses, and above the first one of a client that resolves for another client. 2^22 epochs fit."""


def _value(epoch: int, nonce: str, partitions: Iterable[int]) -> bytes:
    return json.dumps({"epoch": epoch, "nonce": nonce, "partitions": sorted(partitions)}).encode()


def _coordinator(owners: Owners) -> Coordinator:
    if owners.coordinator is None:
        raise ClusterUnavailable(address="coordinator", reason="session is being replaced")
    return owners.coordinator


async def claim(owners: Owners, ledger: Ledger, writer: JournalWriter, nonce: Callable[[], str]) -> Identity:
    """Raises the epoch, or creates the identity. Raises `OutboxFenced`, `ClusterKeyMismatch`, `Unavailable`."""
    key = str(owners.parameters.key)
    if ledger.identity is not None and ledger.identity.cluster_key != key:
        raise ClusterKeyMismatch(expected=ledger.identity.cluster_key, got=key)
    identity = ledger.identity or await _create_identity(owners, ledger, writer, key)
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
            raise OutboxFenced(client_id=identity.client_id, mine=identity.epoch, newer=epoch, reason="another copy of this directory was started")
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


async def _create_identity(owners: Owners, ledger: Ledger, writer: JournalWriter, key: str) -> Identity:
    identity = Identity(key, await owners.next_client_id(), 0, "", "", ())
    await writer.write(ledger.identify(identity))
    return identity


async def renew(owners: Owners, ledger: Ledger, writer: JournalWriter) -> None:
    """Assigns another client id after a partition has used up the sequences of this one. Only while nothing is in doubt."""
    if any(entry.attempt is not None for entry in ledger.entries.values()):
        raise AssertionError("an outbox changed its client id with intents in doubt")
    await _create_identity(owners, ledger, writer, str(owners.parameters.key))


async def declare(owners: Owners, ledger: Ledger, writer: JournalWriter, partition: int) -> None:
    """Records in the coordinator that the partition is used from now on, which every copy of this directory can read. Raises `OutboxFenced`,
    `Unavailable`."""
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
            raise OutboxFenced(client_id=identity.client_id, mine=identity.epoch, newer=epoch, reason="another copy of this directory was started")
        if partition in partitions:
            return
        # Keeps the recorded partitions and adds only this one: what another lane is about to declare may not be on disk yet.
        if await coordinator.set(outbox_path(identity.client_id), _value(epoch, held, {*partitions, partition}), node.version) is not None:
            return
