"""MERGE with marks: the shared part of upsert and history. Decides nothing about rows.

MERGE can set only one transaction identifier. Its version is a number that rises by one with each MERGE of this cluster, and Delta skips a MERGE
whose number was used: this makes it a compare-and-set. A writer that read the state before another writer's MERGE loses, and reads again. The
metadata of the MERGE's own commit holds the marks. A second commit right after it sets them as identifiers, one per log partition, as append does,
together with the number they belong to. If a driver dies between the two commits, the table has a MERGE whose number has no marks. The next writer
sets them from the metadata before anything else, so no MERGE is ever decided by marks that lag behind the rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from delta.tables import DeltaMergeBuilder
from pyspark.sql import SparkSession

from waltz_delta.base import internal
from waltz_delta.base.log_store import one_committer
from waltz_delta.base.table_transaction import TableTransaction
from waltz_delta.errors import KeyMoved
from waltz_delta.landing.merge_source import MOVED
from waltz_delta.marks.batch import LostRace
from waltz_delta.marks.marks import app_id, marks_among, merge_app_id, merged_app_id, position
from waltz_delta.marks.restored import commit_metadata

__all__ = ["MergeState", "MergedTable"]

_RAISED = re.compile(rf"{re.escape(MOVED)}(partitions \d+ and \d+ transaction_id -?\d+)")
"""The message with its values: Spark also prints the expression that would raise it, in the plan of an error of another kind."""

_SETTINGS = "spark.databricks.delta."


@dataclass(frozen=True, slots=True)
class MergeState:
    """`number`: of the last MERGE in the table, 0 before the first."""

    marks: Mapping[int, int]
    number: int
    version: int
    """The table version at which the marks were read."""


class MergedTable:
    def __init__(self, path: str, cluster_key: str) -> None:
        self.path = path
        self.cluster_key = cluster_key
        self._done = merged_app_id(cluster_key)

    def state(self, spark: SparkSession) -> MergeState:
        """The marks, after finishing the MERGE of a driver that died."""
        transaction = internal.TableTransaction(spark, self.path)
        versions = transaction.versions()
        if versions.get(merge_app_id(self.cluster_key), 0) > versions.get(self._done, 0):
            self.finish(transaction)
            transaction = internal.TableTransaction(spark, self.path)
            versions = transaction.versions()
        number = max(versions.get(merge_app_id(self.cluster_key), 0), versions.get(self._done, 0))
        return MergeState(marks_among(versions, self.cluster_key), number, transaction.read_version)

    def merge(self, spark: SparkSession, state: MergeState, new: Mapping[int, int], build: Callable[[], DeltaMergeBuilder], *, copied: bool) -> int:
        """Runs the MERGE that `build` returns as the one after `state`, then sets the marks. `copied`: the source is a copy that stays the same
        however often it is read, so Delta makes none of its own. Returns the version of the commit that set the marks, or a later one if another
        driver set them first. Raises `LostRace` if another writer committed first."""
        number = state.number + 1
        marks = {str(p): mark for p, mark in sorted({**state.marks, **new}.items())}
        record = {"cluster": self.cluster_key, "merge": number, "marks": marks, "read": state.version}
        settings = {
            "write.txnAppId": merge_app_id(self.cluster_key),
            "write.txnVersion": str(number),
            "commitInfo.userMetadata": json.dumps({"waltz": record}),
            **({"merge.materializeSource": "none"} if copied else {}),
        }
        try:
            for name, value in settings.items():
                spark.conf.set(_SETTINGS + name, value)
            merge = build()
            with one_committer(spark, self.path):
                merged = bool(merge.execute().collect())
        except Exception as error:
            if internal.is_conflict(error):
                raise LostRace from error
            if found := _RAISED.search(str(error)):
                raise KeyMoved(path=self.path, reason=found[1]) from None
            raise
        finally:
            for name in settings:
                spark.conf.unset(_SETTINGS + name)
        if not merged:
            raise LostRace  # Delta returns no row for a MERGE that it skips
        return self._mark(internal.TableTransaction(spark, self.path), new, number, state.version)

    def finish(self, transaction: TableTransaction) -> bool:
        """Sets the marks of the last MERGE, whose driver died before it did, by the engine of the transaction. False if that MERGE is in no commit of
        the log any more. Raises `LostRace`."""
        number = transaction.version(merge_app_id(self.cluster_key)) or 0
        # It is our last commit, with only other writers' commits (OPTIMIZE, users) above it.
        for _, info in transaction.commits(transaction.read_version + 1):
            found = _merge_record(info.get("userMetadata"), self.cluster_key)
            if found is not None and found[0] == number:
                self._mark(transaction, found[1], number, found[2])
                return True
        return False

    def _mark(self, transaction: TableTransaction, marks: Mapping[int, int], number: int, read: int) -> int:
        versions = {self._done: number, **{app_id(self.cluster_key, partition): mark for partition, mark in sorted(marks.items())}}
        ahead = {name: mark for name, mark in versions.items() if mark > (found if (found := transaction.version(name)) is not None else -1)}
        if not ahead:
            return transaction.read_version
        try:
            return transaction.mark(ahead, query="waltz", batch=-1, metadata=commit_metadata(self.cluster_key, read=read))
        except Exception as error:
            if not transaction.lost_to_another(error):
                raise
            raise LostRace from error  # the MERGE is committed; the next writer sets its marks


def _merge_record(metadata: str | None, cluster_key: str) -> tuple[int, dict[int, int], int] | None:
    """Number, marks and the version that they were decided by, from the metadata of a MERGE's commit. Early tables counted by position and record no
    number, and only newer ones record the version; without it, no commit is known to have come in between."""
    try:
        found = json.loads(metadata or "")["waltz"]
        marks = {int(partition): int(mark) for partition, mark in found["marks"].items()}
        return (int(found.get("merge", position(marks))), marks, int(found.get("read", -1))) if found["cluster"] == cluster_key else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
