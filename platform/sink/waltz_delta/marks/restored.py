"""A table that RESTORE brought back to an older version: its marks are brought back with it, before the first batch of a query.

RESTORE changes rows and leaves every transaction identifier as it is (delta-io/delta issue 1813). The table would go on to state what it no longer
holds, and the log would never come again. So whoever prepares a table looks at its newest commits: where a RESTORE is newer than any commit of ours,
the marks of the restored version are set, in a commit that says so. From there on everything is as it was then: a checkpoint that is ahead is told as
a gap, without it the query begins after those marks.

The marks of dead letters, in a table of those, are marks like the others. A RESTORE under a running query is `table_watch`'s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from waltz_delta.base import internal
from waltz_delta.errors import WriteContended
from waltz_delta.marks.marks import marks_among, merge_app_id, merged_app_id
from waltz_delta.marks.restores import standing_restore

__all__ = ["follow_restore", "marks_as_restored", "told_by"]

_MARK = re.compile(r"\d+(@.*)?")
"""What stands behind the cluster in the identifier of a mark: a partition, in a table of dead letters with a target behind."""

ATTEMPTS = 8


def told_by(cluster_key: str, **more: Any) -> str:
    """The metadata by which a commit is known as ours, of this cluster."""
    return json.dumps({"waltz": {"cluster": cluster_key, **more}})


def follow_restore(spark: SparkSession, path: str, cluster_key: str) -> int:
    """The version of the table that its marks are in line with now; -1 where there is no table. Raises `RestoreOvertaken`."""
    for _ in range(ATTEMPTS):
        transaction = internal.TableTransaction(spark, path)
        found, changed = _taken_back(spark, path, cluster_key, transaction)
        if not changed:
            return transaction.read_version
        try:
            transaction.mark(changed, query="waltz", batch=-1, metadata=told_by(cluster_key, restored=found))
        except Exception as error:
            if not internal.is_conflict(error):
                raise
        else:
            return transaction.read_version
    raise WriteContended(path=path, attempts=ATTEMPTS)


def marks_as_restored(spark: SparkSession, path: str, cluster_key: str) -> dict[int, int]:
    """The table's marks as `follow_restore` leaves them. Writes nothing."""
    transaction = internal.TableTransaction(spark, path)
    _, changed = _taken_back(spark, path, cluster_key, transaction)
    return marks_among(transaction.versions() | changed, cluster_key)


def _taken_back(spark: SparkSession, path: str, cluster_key: str, transaction: internal.TableTransaction) -> tuple[int | None, dict[str, int]]:
    """The version that was restored, and the identifiers that must change for it."""
    transaction.refuse_strange_checksum()
    now = transaction.versions()
    ours = f"waltz:{cluster_key}:"
    found = _restored(spark, path, cluster_key, transaction) if any(name.startswith(ours) for name in now) else None
    if found is None:
        return None, {}
    then = transaction.versions_at(found)
    back = {name: then.get(name, -1) for name in now if _MARK.fullmatch(name.removeprefix(ours))}
    if merge_app_id(cluster_key) in now:  # the number goes on, and nothing of before is unfinished
        back[merged_app_id(cluster_key)] = now[merge_app_id(cluster_key)]
    return found, {name: version for name, version in sorted(back.items()) if transaction.version(name) != version}


def _restored(spark: SparkSession, path: str, cluster_key: str, transaction: internal.TableTransaction) -> int | None:
    def target(version: int, given: Mapping[str, Any]) -> int:
        return _target(spark, path, version, given)

    # Back to our last commit, however many others came after it. Each costs the reading of one line.
    return standing_restore(path, transaction.commits(transaction.read_version + 1), cluster_key, target)


def _target(spark: SparkSession, path: str, version: int, given: Mapping[str, Any]) -> int:
    """RESTORE is given a version, or a time: then it takes the last version until then."""
    if given.get("version") is not None:
        return int(given["version"])
    if given.get("datetime") is not None:  # as delta-rs tells it, in milliseconds
        given = {"timestamp": datetime.fromtimestamp(int(given["datetime"]) / 1000, UTC).isoformat()}
    before = DeltaTable.forPath(spark, path).history().where(f.col("version") < version)
    return int(before.where(f.col("timestamp") <= f.lit(given["timestamp"]).cast("timestamp")).agg(f.max("version")).collect()[0][0])
