"""Exports a journal's live records and its transactions in doubt as lines of JSON, and creates a new journal from them.

    {"waltz": "journal", "version": 1, "transactions": [9]}           the transactions in doubt, lowest first
    {"record": 7, "type": 2, "body": "YWJj"}                          an add; bodies in base64
    {"record": 7, "type": 3, "body": "", "update": true}              an update of it
    {"transaction": 9, "record": 8, "type": 2, "body": "YWJj"}        what a transaction in doubt adds, or with "update" updates
    {"transaction": 9, "delete": 7}
    {"transaction": 9, "prepared": true}
    {"end": true, "lines": 5}                                         the lines between the first and this one: a cut file is noticed

Ids, types, bodies and the order of records are kept; files, offsets and dead records are not. If a crash lost the add of a record, its first update
is exported as an add. Reading needs one line in memory; writing needs what loading keeps.
"""

from __future__ import annotations

import binascii
import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from typing import Any, Final  # Any: JSON values

from waltz_log.core.ports import Disk
from waltz_log.errors import InvalidRequest
from waltz_log.journal.directory import survey
from waltz_log.journal.journal import Journal
from waltz_log.journal.loading import LoadedRecord, load
from waltz_log.journal.settings import JournalSettings

__all__ = ["export_lines", "import_lines"]

VERSION: Final = 1
SYNC_EVERY: Final = 10_000
"""Records between two syncs of an import: what gathers is bounded, and a sync more or less does not count beside the lines."""


def export_lines(disk: Disk, settings: JournalSettings) -> Iterator[str]:
    """The lines, without line ends. Of the settings only the replaceable types matter: only the last update of these is exported. Raises
    `CorruptData` if the directory cannot be one journal, `InvalidRequest` if there is none."""
    directory = survey(disk)
    if directory.check is None:
        raise InvalidRequest(reason="there is no journal in the directory")
    loaded = load(disk, directory, settings).loaded
    assert loaded is not None
    yield _line(waltz="journal", version=VERSION, transactions=sorted(each.transaction_id for each in loaded.prepared))
    lines = 0
    for record in loaded.records:
        yield _line(**_record(record))
        lines += 1
    for transaction in loaded.prepared:
        fields = (
            [_record(record) for record in transaction.records] + [{"delete": record_id} for record_id in transaction.deletes] + [{"prepared": True}]
        )
        for each in fields:
            yield _line(transaction=transaction.transaction_id, **each)
            lines += 1
    yield _line(end=True, lines=lines)


def _record(record: LoadedRecord) -> dict[str, object]:
    fields: dict[str, object] = {"record": record.record_id, "type": record.user_type, "body": b64encode(record.body).decode()}
    return fields | {"update": True} if record.is_update else fields


def _line(**fields: object) -> str:
    return json.dumps(fields, separators=(",", ":"))


def import_lines(journal: Journal, lines: Iterable[str]) -> tuple[int, int]:
    """Fills a journal that holds nothing, and syncs. The number of records and of transactions in doubt that were imported. `InvalidRequest` if the
    journal holds something or has begun transactions of such ids, or where a line is not one of an export; the journal then holds a part; remove
    it."""
    loaded = journal.loaded
    if loaded.records or loaded.prepared or len(journal):
        raise InvalidRequest(reason="the journal is not empty")
    return _Import(journal).run(lines)


class _Import:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._open: set[int] = set()
        self._prepared = 0
        self._waiting = 0

    def run(self, lines: Iterable[str]) -> tuple[int, int]:
        ended: int | None = None
        number = 0
        for number, line in enumerate(lines, 1):
            try:
                fields = json.loads(line)
                if number == 1:
                    self._head(fields)
                elif ended is not None:
                    raise ValueError("stands behind the end")
                elif "end" in fields:
                    ended = int(fields["lines"])
                else:
                    self._import_line(fields)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
                raise InvalidRequest(reason=f"line {number} is not a line of a journal's export: {type(error).__name__} {error}") from None
        if ended is None or ended != number - 2:
            raise InvalidRequest(
                reason="the export is cut off: its last line is missing, or its counts do not match" if number else "the export is empty"
            )
        if self._open:
            raise InvalidRequest(reason=f"transaction {min(self._open)} is not listed as prepared")
        self._journal.sync()
        return len(self._journal), self._prepared

    def _head(self, fields: dict[str, Any]) -> None:
        if fields["waltz"] != "journal" or fields["version"] != VERSION:
            raise ValueError("not a journal's export, or one of a later version")
        for transaction in fields["transactions"]:  # all at once, so that nothing else gets one of their ids meanwhile
            self._open.add(self._journal.begin(_number(transaction)))

    def _import_line(self, fields: dict[str, object]) -> None:
        journal = self._journal
        transaction = fields.get("transaction")
        if transaction is None:
            record_id, user_type, body = _parts(fields)
            if fields.get("update") and record_id in journal:
                journal.update(record_id, user_type, body)
            else:
                journal.add(record_id, user_type, body)
        else:
            self._import_in_transaction(_number(transaction), fields)
        self._waiting += 1
        if self._waiting >= SYNC_EVERY:
            journal.sync()
            self._waiting = 0

    def _import_in_transaction(self, transaction: int, fields: dict[str, object]) -> None:
        journal = self._journal
        if transaction not in self._open:
            raise ValueError("a transaction that the first line does not name, or a finished one")
        if "prepared" in fields:
            journal.prepare(transaction)
            self._open.discard(transaction)
            self._prepared += 1
        elif "delete" in fields:
            journal.delete_in(transaction, _number(fields["delete"]))
        elif fields.get("update"):
            journal.update_in(transaction, *_parts(fields))
        else:
            journal.add_in(transaction, *_parts(fields))


def _parts(fields: dict[str, Any]) -> tuple[int, int, bytes]:
    return _number(fields["record"]), _number(fields["type"]), b64decode(fields["body"], validate=True)


def _number(found: object) -> int:
    if type(found) is not int:
        raise ValueError(f"{found!r} is not a number")
    return found
