"""A takeover: a table that one cluster filled continues with its successor, whose transaction ids begin at 0 again.

One UPDATE lowers every transaction id in the table by `EPOCH_IDS`. So the rows of a former cluster have ids below 0, in their order, and any row of
the new cluster is newer. Code that compares ids needs no other rule for it.

The order of the steps lets any crash be continued by the next start:
1. A MERGE of the former cluster whose marks are missing gets them.
2. A commit marks the former cluster as superseded. Its writers check that in each batch. A commit that is on its way fails: an append because it has
   read the identifier (`refuse_superseded`), a MERGE because its number is used. So no row of the former cluster comes after the UPDATE.
3. The tombstones are lowered, then the table. Each UPDATE sets the epoch of the new cluster as its transaction identifier in the same commit, and
   Delta skips an UPDATE whose identifier is set. The epoch in the table itself comes last, and ends the takeover.
"""

from __future__ import annotations

from collections.abc import Sequence

from delta.tables import DeltaTable
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f

from waltz_delta.base import internal
from waltz_delta.base.log_store import one_committer, require_one_winner
from waltz_delta.base.quoting import quoted
from waltz_delta.errors import UnsafeTable, WriteContended
from waltz_delta.landing.merge import MergedTable
from waltz_delta.marks.batch import LostRace
from waltz_delta.marks.marks import EPOCH_IDS, epoch_app_id, epochs_among, merge_app_id, merged_app_id, superseded_app_id
from waltz_delta.marks.restored import commit_metadata, follow_restore
from waltz_delta.tables.mode import written_as
from waltz_delta.tables.table import is_table
from waltz_log.loggers import get_logger

__all__ = ["inherit_table"]

log = get_logger(__name__)

ATTEMPTS = 8


def inherit_table(spark: SparkSession, path: str, former: Sequence[str], cluster_key: str, ids: Sequence[str], tombstones: str | None = None) -> None:
    """Does nothing without `former` clusters. `ids`: the columns of the table that hold transaction ids. `tombstones`: path of their table. Raises
    `WriteContended` if other writers, such as OPTIMIZE, commit at each attempt; `UnsupportedDelta`, `UnsafeTable` and the errors of `is_table`."""
    if not former:
        return
    internal.check_versions(spark)  # UPDATE runs in Spark, also for a table that the Arrow engine writes
    try:
        require_one_winner(spark, path)
    except UnsafeTable as error:
        raise UnsafeTable(path=path, reason=f"Spark's engine inherits a table of former_clusters, and {error.reason}") from None
    is_table(spark, path)
    for _ in range(ATTEMPTS):
        try:
            for key in former:
                _supersede(spark, path, key, cluster_key)
            epoch = 1 + max(epochs_among(internal.transaction_versions(spark, path)).values())
            if tombstones is not None and is_table(spark, tombstones):
                _lower(spark, tombstones, cluster_key, epoch, ("transaction_id",))
            _lower(spark, path, cluster_key, epoch, ids)
        except Exception as error:
            if not isinstance(error, LostRace) and not internal.is_conflict(error):
                raise
        else:
            log.info("table inherited", table=path, former=", ".join(former), cluster=cluster_key)
            return
    raise WriteContended(path=path, attempts=ATTEMPTS)


def _supersede(spark: SparkSession, path: str, former: str, cluster_key: str) -> None:
    follow_restore(spark, path, former)
    number = MergedTable(path, former).state(spark).number
    transaction = internal.TableTransaction(spark, path)
    if (transaction.version(superseded_app_id(former)) or 0) > 0:
        return
    if (transaction.version(merge_app_id(former)) or 0) > number:
        raise LostRace  # a MERGE came in between, whose marks may be missing
    versions = {superseded_app_id(former): 1}
    if written_as(transaction.properties(), transaction.versions(), [former]) != "append":
        versions |= {merge_app_id(former): number + 1, merged_app_id(former): number + 1}
    transaction.mark(versions, query="waltz", batch=-1, metadata=commit_metadata(cluster_key))


def _lower(spark: SparkSession, path: str, cluster_key: str, epoch: int, ids: Sequence[str]) -> None:
    identifier, metadata = epoch_app_id(cluster_key), commit_metadata(cluster_key)
    session = internal.cloned_session(spark)  # pipelines that start at the same time share a session, and its settings
    settings = {"write.txnAppId": identifier, "write.txnVersion": str(epoch), "commitInfo.userMetadata": metadata}
    for name, value in settings.items():
        session.conf.set(f"spark.databricks.delta.{name}", value)
    lowered: dict[str, str | Column] = {quoted(name): f.col(quoted(name)) - EPOCH_IDS for name in ids}
    with one_committer(spark, path):
        DeltaTable.forPath(session, path).update(f.col("transaction_id").isNotNull(), lowered)
    transaction = internal.TableTransaction(spark, path)
    if (transaction.version(identifier) or 0) < epoch:  # an UPDATE that finds no row may commit nothing
        transaction.mark({identifier: epoch}, query="waltz", batch=-1, metadata=metadata)
