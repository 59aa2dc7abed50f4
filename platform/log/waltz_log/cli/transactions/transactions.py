"""`waltz append`: transactions from the command line or from standard input, to a partition of the log or to a topic."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from waltz_log.cli.connecting import reached
from waltz_log.cli.lock_tables import lock_tables
from waltz_log.cli.printing import print_item, print_line, print_result
from waltz_log.cli.transactions.piped_lines import BulkSink, InputLines, SingleSink, Sink, Tally, Unfit, append_lines
from waltz_log.client import BulkColumns, ClientSettings, KeyedDraft, Lock, Receipt, TopicHandle, WaltzClient
from waltz_log.client.transactions.transaction import DraftOptions, lock_hash
from waltz_log.core.formats.envelope import pack_keyed
from waltz_log.errors import InvalidSetting, LockConflict, WaltzError, exit_code_of
from waltz_log.exit_codes import FAILED, INTERRUPTED, OK

__all__ = ["Appending", "Place", "append", "client_settings", "parse_locks"]


CONTENDED_S: Final = 2.0
"""For the question which of several locks conflicted. Without an answer, all of them are named."""


class Place(NamedTuple):
    """Where, as the options say: a topic, with its partition or a key, or a partition of the log."""

    topic: str | None
    key: str | None
    partition: int | None

    def check(self) -> None:
        """Raises `InvalidSetting`."""
        if self.topic is None and self.key is not None:
            raise InvalidSetting(name="--key", reason="is for topics: --topic namespace/name", nearest=None)
        if self.topic is None and self.partition is None:
            raise InvalidSetting(name="--topic or --partition", reason="is required", nearest=None)

    @property
    def key_bytes(self) -> bytes | None:
        return None if self.key is None else os.fsencode(self.key)


@dataclass(frozen=True, slots=True)
class Appending:
    """How to append, as the options say. `delete`: a tombstone. `mark`: the last transaction that the decision is based on; None: the end of the
    partition when the client connects."""

    header: int = 0
    delete: bool = False
    write_locks: Sequence[Lock] = ()
    read_locks: Sequence[Lock] = ()
    mark: int | None = None
    output: str = "table"

    @property
    def locked(self) -> bool:
        return bool(self.write_locks or self.read_locks)

    @property
    def options(self) -> DraftOptions:
        return {
            "header": self.header,
            "write_locks": self.write_locks,
            "read_locks": self.read_locks,
            "high_water_mark": self.mark,
        }

    def check(self, place: Place, data: str | None) -> None:
        """Raises `InvalidSetting`."""
        if self.mark is not None and not self.locked:
            raise InvalidSetting(name="--mark", reason="needs --write-lock or --read-lock", nearest=None)
        if self.delete and (place.key is None or data is not None):
            raise InvalidSetting(name="--delete", reason="needs --key, and cannot be combined with data", nearest=None)


def client_settings(principal: str | None, timeout_s: float) -> ClientSettings:
    return ClientSettings(principal=principal, connect_timeout_s=timeout_s, append_timeout_s=timeout_s, request_timeout_s=timeout_s)


async def append(address: str, data: str | None, place: Place, appending: Appending, settings: ClientSettings) -> int:
    """Appends one transaction, or one for each line of standard input. Prints the partition of the log and the id of each, and for lines of a pipe
    how many each partition got."""
    place.check()
    appending.check(place, data)
    async with WaltzClient.open(address, settings) as client:
        topic = None if place.topic is None else await client.topic(place.topic)
        if data is not None or appending.delete:
            try:
                _report(await _one(client, topic, place, appending)(os.fsencode(data or "")), appending.output)
            except LockConflict as conflict:
                print_line(f"waltz: {_conflict(conflict, appending, await _contended(address, conflict, appending))}", file=sys.stderr)
                return conflict.exit_code
            return OK
        return await _append_input(client, topic, place, appending, address)


def _one(client: WaltzClient, topic: TopicHandle | None, place: Place, appending: Appending) -> Callable[[bytes], Awaitable[Receipt]]:
    """A function that appends one transaction and returns when it is committed."""

    async def append_one(data: bytes) -> Receipt:
        if topic is None:
            assert place.partition is not None
            return await client.append(place.partition, data, **appending.options)
        if appending.delete:
            return await topic.delete(place.key_bytes or b"", partition=place.partition, **appending.options)
        return await topic.append(data, key=place.key_bytes, partition=place.partition, **appending.options)

    return append_one


def parse_locks(option: str, texts: Sequence[str]) -> list[Lock]:
    """Locks as `name:key`; the key is text and may contain colons. Raises `InvalidSetting`."""
    found = []
    for text in texts:
        name, _, key = text.partition(":")
        if not name or not key:
            raise InvalidSetting(name=option, reason=f"must be name:key, not {text!r}", nearest=None)
        found.append(Lock(name, key))
    return found


async def _contended(address: str, conflict: LockConflict, appending: Appending) -> list[Lock]:
    """The locks that the winner can have written: one if it is known. The answer to an append does not say it, and the statistics of the owner do, to
    those who may administer."""
    locks = [*appending.write_locks, *appending.read_locks]
    if len(locks) == 1:
        return locks
    hashes = {lock_hash(lock).hex(): lock for lock in locks}
    try:
        async with reached(address, CONTENDED_S) as owners:
            tables = await lock_tables(owners, CONTENDED_S)
    except WaltzError:
        return locks
    recent = tables[conflict.partition].recent if conflict.partition in tables else ()
    return next(([hashes[each.lock]] for each in reversed(recent) if each.winner == conflict.winner and each.lock in hashes), locks)


def _conflict(conflict: LockConflict, appending: Appending, locks: Sequence[Lock]) -> str:
    """Which lock, who won, and what to do."""
    names = [f"{lock.name}:{lock.key}" for lock in locks]
    wrote = names[0] if len(names) == 1 else f"one of {', '.join(names)}"
    above = "" if appending.mark is None else f", after the mark {appending.mark}"
    todo = f"`waltz read` up to transaction {conflict.winner}, decide again, and repeat with --mark {conflict.winner}"
    return f"lock conflict, nothing was appended: transaction {conflict.winner} of log partition {conflict.partition} wrote {wrote}{above}; {todo}"


def _report(receipt: Receipt, output: str) -> None:
    if output != "table":
        print_item({"partition": receipt.partition, "transaction_id": receipt.transaction_id}, output)
    else:
        print_line(f"partition={receipt.partition} transaction_id={receipt.transaction_id}")


# ---- standard input --------------------------------------------------------------------------------------------------------------------------------

EMPTY_VALUE = Unfit("is empty, and an empty value would remove the key: use --delete")


async def _append_input(client: WaltzClient, topic: TopicHandle | None, place: Place, appending: Appending, address: str) -> int:
    """One transaction for each line: in bulk, but one after the other where a person types the lines and waits for each, or where each has locks."""
    if sys.stdin is None or sys.stdin.closed:
        raise InvalidSetting(name="DATA", reason="is required: standard input is closed", nearest=None)
    overhead = 0
    if topic is not None:
        topic.draft(b"-", key=place.key_bytes, partition=place.partition, **appending.options)  # raises what each line would, before any is read
        overhead = len(pack_keyed(place.key_bytes, b"")) if place.key_bytes is not None else 0
    one_by_one = appending.locked or sys.stdin.isatty()
    lines = InputLines(sys.stdin.fileno(), client.settings.record_bytes_max - overhead)
    single = SingleSink(_one(client, topic, place, appending), lambda receipt: _report(receipt, appending.output), lambda: lines.stopped)
    sink: Sink = single if one_by_one else _bulk(client, topic, place, appending)
    unfit = await append_lines(lines, sink, empty=EMPTY_VALUE if overhead else None)
    if not one_by_one:
        _report_placed(sink.tally, appending.output)
    contended = await _contended(address, sink.tally.error, appending) if isinstance(sink.tally.error, LockConflict) else ()
    return _outcome(sink.tally, unfit, appending, contended)


def _bulk(client: WaltzClient, topic: TopicHandle | None, place: Place, appending: Appending) -> BulkSink:
    if topic is None:
        partition = place.partition
        assert partition is not None
        return BulkSink(lambda: client.bulk(partition), lambda lines: BulkColumns(lines, appending.header))
    key = place.key_bytes
    if key is not None:
        return BulkSink(lambda: topic.bulk(), lambda lines: [KeyedDraft(key, line, appending.header) for line in lines])
    return BulkSink(lambda: topic.bulk(partition=place.partition), lambda lines: BulkColumns(lines, appending.header))


def _report_placed(tally: Tally, output: str) -> None:
    rows = [
        {"partition": partition, "lines": placed.lines, "first_transaction_id": placed.first, "last_transaction_id": placed.last}
        for partition, placed in sorted(tally.partitions.items())
    ]
    lines = [" ".join(f"{name}={value}" for name, value in row.items()) for row in rows]
    print_result({"committed": tally.committed, "partitions": rows}, lines, output)


def _outcome(tally: Tally, unfit: Unfit | None, appending: Appending, contended: Sequence[Lock]) -> int:
    """The exit code. `contended`: the locks of a conflict. One sentence on stderr if not every line was appended."""
    if tally.error is not None:
        reason = _conflict(tally.error, appending, contended) if isinstance(tally.error, LockConflict) else " ".join(str(tally.error).split())
        code = exit_code_of(tally.error)
    elif unfit is None:
        return OK
    else:
        reason = f"line {tally.read + 1} {unfit.reason}" if unfit.names_line else unfit.reason
        code = FAILED if unfit.names_line else INTERRUPTED
    print_line(f"waltz: {reason}: {tally.sentence()}", file=sys.stderr)
    return code
