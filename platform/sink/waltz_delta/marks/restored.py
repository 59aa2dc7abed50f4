"""After a RESTORE of a table to an older version, restores its marks too, before the first batch of a query.

RESTORE changes rows and leaves every transaction identifier as it is (delta-io/delta issue 1813). The table would then claim transactions that it no
longer holds, and they would never be read again. So each query that prepares a table reads its newest commits. If a RESTORE is newer than any commit
of ours, the marks of the restored version are set, in a commit that says so. From then on the table behaves as it did at that version: a checkpoint
that is ahead is reported as a gap, and without a checkpoint the query begins after those marks.

The marks of dead letters, in their own table, are handled in the same way. `table_watch` handles a RESTORE under a running query.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any  # JSON values

from pyspark.sql import SparkSession

from waltz_delta.base import internal
from waltz_delta.base.table_transaction import BeginTransaction, TableTransaction
from waltz_delta.errors import WriteContended
from waltz_delta.marks.marks import marks_among, merge_app_id, merged_app_id
from waltz_delta.marks.restores import standing_restore

__all__ = ["commit_metadata", "follow_restore", "marks_as_restored"]

_MARK = re.compile(r"\d+(@.*)?|epoch|superseded")
"""What follows the cluster key in the identifiers that a RESTORE undoes: a partition, in a table of dead letters also a target, and what a
takeover sets."""
_EPOCH = re.compile(r"waltz:(.+):epoch")

ATTEMPTS = 8


def commit_metadata(cluster_key: str, **more: Any) -> str:
    """The commit metadata that identifies a commit as ours, of this cluster."""
    return json.dumps({"waltz": {"cluster": cluster_key, **more}})


def follow_restore(spark: SparkSession, path: str, cluster_key: str, begin: BeginTransaction | None = None) -> int:
    """The version of the table up to which its marks are correct; -1 if there is no table. `begin`: by another engine than Spark's. Raises
    `RestoreOvertaken`."""
    for _ in range(ATTEMPTS):
        transaction = internal.TableTransaction(spark, path) if begin is None else begin()
        found, changed = _marks_to_restore(path, cluster_key, transaction)
        if not changed:
            return transaction.read_version
        try:
            transaction.mark(changed, query="waltz", batch=-1, metadata=commit_metadata(cluster_key, restored=found))
        except Exception as error:
            if not transaction.lost_to_another(error):
                raise
        else:
            return transaction.read_version
    raise WriteContended(path=path, attempts=ATTEMPTS)


def marks_as_restored(spark: SparkSession, path: str, cluster_key: str, begin: BeginTransaction | None = None) -> dict[int, int]:
    """The marks that `follow_restore` would set. Writes nothing."""
    transaction = internal.TableTransaction(spark, path) if begin is None else begin()
    _, changed = _marks_to_restore(path, cluster_key, transaction)
    return marks_among(transaction.versions() | changed, cluster_key)


def _marks_to_restore(path: str, cluster_key: str, transaction: TableTransaction) -> tuple[int | None, dict[str, int]]:
    """The version that was restored, and the identifiers that must change for it."""
    transaction.refuse_strange_checksum()
    now = transaction.versions()
    inherited = {match[1] for name in now if (match := _EPOCH.fullmatch(name))}  # a takeover may be undone too
    found: int | None = None
    back: dict[str, int] = {}
    for key in sorted({cluster_key, *inherited}):
        ours = f"waltz:{key}:"
        restored = _restored(path, key, transaction) if any(name.startswith(ours) for name in now) else None
        if restored is not None:
            found, then = restored, transaction.versions_at(restored)
            back |= {name: then.get(name, -1) for name in now if _MARK.fullmatch(name.removeprefix(ours))}
            if merge_app_id(key) in now:  # the number keeps rising, and no earlier MERGE is unfinished
                back[merged_app_id(key)] = now[merge_app_id(key)]
    return found, {name: version for name, version in sorted(back.items()) if transaction.version(name) != version}


def _restored(path: str, cluster_key: str, transaction: TableTransaction) -> int | None:
    def target(version: int, given: Mapping[str, Any]) -> int:
        return _target(transaction, version, given)

    # Back to our last commit, however many other commits came after it. Each costs one line to read.
    return standing_restore(path, transaction.commits(transaction.read_version + 1), cluster_key, target)


def _target(transaction: TableTransaction, version: int, given: Mapping[str, Any]) -> int:
    """The version that a RESTORE names. If it names a time, that is the last version until then."""
    if given.get("version") is not None:
        return int(given["version"])
    if given.get("datetime") is not None:  # as delta-rs records it, in milliseconds
        given = {"timestamp": datetime.fromtimestamp(int(given["datetime"]) / 1000, UTC).isoformat()}
    return transaction.version_until(version, str(given["timestamp"]))
