"""Whether a table goes on as it was filled: from the same cluster, in the same mode. It records the mode in the property `waltz.mode`.

Rows that were appended have no single row for a key, and a MERGE would update each of them. A table from before the property is known by its
identifiers: a MERGE sets one of its own (`marks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from pyspark.sql.types import StructType

from waltz_delta.base.table_transaction import TableTransaction
from waltz_delta.errors import ModeChanged
from waltz_delta.marks.marks import cluster_keys_among, marks_among, merge_app_id, merged_app_id
from waltz_delta.tables.column_names import check_names
from waltz_log.errors import ClusterKeyMismatch

__all__ = ["Mode", "check_declared", "with_mode"]

Mode = Literal["append", "upsert", "history"]
PROPERTY: Final = "waltz.mode"


def with_mode(properties: Mapping[str, str], mode: Mode) -> dict[str, str]:
    """The properties of a table that is created."""
    return {**properties, PROPERTY: mode}


def written_as(properties: Mapping[str, str], versions: Mapping[str, int], cluster_key: str) -> str | None:
    """None: the table does not say, and holds nothing of the log."""
    recorded = properties.get(PROPERTY)
    if recorded is not None:
        return recorded
    if {merge_app_id(cluster_key), merged_app_id(cluster_key)} & versions.keys():
        return "upsert or history"
    return "append" if marks_among(versions, cluster_key) else None


def check_declared(table: TableTransaction, path: str, schema: StructType, mode: Mode, cluster_key: str) -> None:
    """Whether a table that exists can go on as it is declared. Raises `ClusterKeyMismatch` for one filled from another cluster, `ModeChanged`,
    and `InvalidSetting` for names that its columns cannot have.

    Ids of two clusters have no order: those of a new cluster begin at 0 again, and would count as older than all that the table holds."""
    properties, versions = table.properties(), table.versions()
    if set(cluster_keys_among(versions)) - {cluster_key}:
        raise ClusterKeyMismatch(where=f"the table {path}, which is filled from another cluster: name another table and another checkpoint")
    found = written_as(properties, versions, cluster_key)
    if found is not None and mode not in found.split(" or "):
        raise ModeChanged(path=path, recorded=found, declared=mode)
    check_names(schema, properties, merged=mode != "append")
