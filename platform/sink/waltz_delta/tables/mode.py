"""Whether a table goes on as it was filled: from the same cluster, in the same mode. It records the mode in the property `waltz.mode`, or, where the
Arrow engine created it for a MERGE, in the name of an identifier of its first commit. The property counts if there are both.

Rows that were appended have no single row for a key, and a MERGE would update each of them. A table from before the property is known by its
identifiers: a MERGE sets one of its own (`marks`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal, get_args

from pyspark.sql.types import StructType

from waltz_delta.base.table_transaction import TableTransaction
from waltz_delta.errors import ModeChanged
from waltz_delta.marks.marks import clusters_now, epochs_among, marks_among, merge_app_id, merged_app_id, superseded_app_id
from waltz_delta.tables.column_names import check_columns
from waltz_log.errors import ClusterKeyMismatch

__all__ = ["Mode", "check_declared", "mode_app_id", "refuse_superseded", "with_mode", "written_as"]

Mode = Literal["append", "upsert", "history"]
PROPERTY: Final = "waltz.mode"


def with_mode(properties: Mapping[str, str], mode: Mode) -> dict[str, str]:
    """The properties of a table that is created."""
    return {**properties, PROPERTY: mode}


def mode_app_id(mode: Mode) -> str:
    """The identifier that records the mode in the first commit of a table. `deltalake` creates no table with a property of ours."""
    return f"{PROPERTY}:{mode}"


def written_as(properties: Mapping[str, str], versions: Mapping[str, int], cluster_keys: Iterable[str]) -> str | None:
    """None: the table does not say, and holds nothing of the log."""
    recorded = properties.get(PROPERTY)
    if recorded is not None:
        return recorded
    if identified := next((mode for mode in get_args(Mode) if mode_app_id(mode) in versions), None):
        return str(identified)
    if any(versions.get(name(key), 0) > 0 for key in cluster_keys for name in (merge_app_id, merged_app_id)):
        return "upsert or history"
    return "append" if any(marks_among(versions, key) for key in cluster_keys) else None


def check_declared(
    table: TableTransaction, path: str, schema: StructType, mode: Mode, cluster_key: str, former_clusters: Collection[str] = ()
) -> list[str]:
    """Whether a table that exists can go on as it is declared. Returns the clusters that filled it until now and that are declared as former ones,
    from which it must be inherited first. Raises `ClusterKeyMismatch` for one filled from another cluster, `ModeChanged`, and `InvalidSetting` for
    names that its columns cannot have.

    Ids of two clusters have no order: those of a new cluster begin at 0 again, and would count as older than all that the table holds."""
    properties, versions = table.properties(), table.versions()
    refuse_superseded(table, path, cluster_key)
    clusters, others = epochs_among(versions), [key for key in clusters_now(versions) if key != cluster_key]
    if others and (cluster_key in clusters or not set(others) <= set(former_clusters)):
        held = " and ".join(others)
        remedy = f"if this cluster continues that log, set former_clusters: [{', '.join(others)}]; otherwise name another table"
        raise ClusterKeyMismatch(where=f"the table {path}, which is filled from the cluster {held}: {remedy}, with a new checkpoint in each case")
    found = written_as(properties, versions, clusters)
    if found is not None and mode not in found.split(" or "):
        raise ModeChanged(path=path, recorded=found, declared=mode)
    check_columns(schema, properties, merged=mode != "append")
    return others


def refuse_superseded(transaction: TableTransaction, path: str, cluster_key: str) -> None:
    """Raises `ClusterKeyMismatch` if another cluster has inherited the table. If one does before `transaction` commits, the commit fails."""
    superseded, versions = transaction.version(superseded_app_id(cluster_key)) or 0, transaction.versions()
    if superseded > 0 or (cluster_key in epochs_among(versions) and cluster_key not in clusters_now(versions)):
        raise ClusterKeyMismatch(where=f"the table {path}, which another cluster has inherited: name another table and another checkpoint")
