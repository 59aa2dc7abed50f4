"""Which version of a Delta table holds one transaction of the log: what `waltz trace --table` shows. Reads the table's log alone, without Spark.

`waltz` finds this function by the entry point `delta` in the group `waltz.tables`, because the log does not know the sink.
"""

from __future__ import annotations

from waltz_delta.errors import PositionForgotten, PositionNotReached
from waltz_delta.marks.positions import version_at
from waltz_log.client.inspection.transaction_trace import TableVersion

__all__ = ["table_version"]


def table_version(path: str, partition: int, transaction_id: int, cluster_key: str) -> TableVersion:
    """`NotADeltaTable` if there is no table; `InvalidRequest` if it holds nothing of the partition, but of others. A transaction that the
    pipeline filtered out counts as held from the version on whose batch covered it."""
    try:
        return TableVersion(path, version_at(path, {partition: transaction_id}, cluster_key=cluster_key), exact=True, mark=None)
    except PositionForgotten as error:
        return TableVersion(path, error.oldest_version, exact=False, mark=None)
    except PositionNotReached as error:
        return TableVersion(path, None, exact=True, mark=error.mark)
