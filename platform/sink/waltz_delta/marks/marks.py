"""A Delta table states its own high-water marks: per log partition the last transaction id whose rows it holds.

Each mark is a Delta transaction identifier, `waltz:<cluster key>:<partition>`, set in the same commit that adds the rows, so the marks and the rows
cannot disagree. They decide what a batch, a replay, a second driver or a start after a lost checkpoint still has to write. Reading them needs no JVM
(`high_water_marks`). This module holds the names and the arithmetic; `append` and `upsert` commit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from waltz_delta.errors import GapInTable
from waltz_log.errors import InvalidRequest

__all__ = [
    "EPOCH_IDS",
    "BatchRange",
    "app_id",
    "cluster_key_among",
    "clusters_now",
    "epoch_app_id",
    "epochs_among",
    "high_water_marks",
    "marks_among",
    "merge_app_id",
    "merged_app_id",
    "overlap",
    "position",
    "refuse_gaps",
    "superseded_app_id",
]

EPOCH_IDS: Final = 10**15
"""A takeover lowers the transaction ids in a table by this number, so that all ids of the former cluster are below 0. The id in its log is the
remainder. A partition would need 31 years at a million transactions a second to reach it."""

_OF_CLUSTER = re.compile(r"waltz:(.+):(?:\d+|merge|epoch)")


@dataclass(frozen=True, slots=True)
class BatchRange:
    """What a batch covers: per partition the ids from `starts` up to and without `ends`. `starts` is None if only the least ids of the rows are
    known. A row that a filter dropped is covered too: the marks state how far the log was processed."""

    ends: Mapping[int, int]
    starts: Mapping[int, int]
    exact: bool
    origins: Mapping[int, int] | None = None
    """The id at which reading of each partition began, before this batch or with it; a partition without an entry began at 0. None: not known."""
    checkpoint: str | None = None
    """The checkpoint directory of the query that runs the batch; None outside of a query."""

    def marks(self) -> dict[int, int]:
        """The table's marks after this batch, of the partitions in which the batch advanced."""
        return {partition: end - 1 for partition, end in self.ends.items() if end > self.starts[partition]}


def app_id(cluster_key: str, partition: int) -> str:
    return f"waltz:{cluster_key}:{partition}"


def merge_app_id(cluster_key: str) -> str:
    """MERGE can set only one identifier; its version is `position` of the marks."""
    return f"waltz:{cluster_key}:merge"


def merged_app_id(cluster_key: str) -> str:
    """Its version is the number of the last MERGE whose marks are set."""
    return f"waltz:{cluster_key}:merged"


def epoch_app_id(cluster_key: str) -> str:
    """Its version counts the takeovers of the table up to that by this cluster. The first cluster has none. Below 0: a RESTORE undid the takeover."""
    return f"waltz:{cluster_key}:epoch"


def superseded_app_id(cluster_key: str) -> str:
    """Set when a takeover begins: from then on no writer of this cluster commits to the table."""
    return f"waltz:{cluster_key}:superseded"


def marks_among(versions: Mapping[str, int], cluster_key: str) -> dict[int, int]:
    """The marks among all transaction identifiers of a table. A version below 0 is no mark: a RESTORE to before the first batch of a partition leaves
    one, since an identifier can be changed and not removed (`restored`)."""
    start = app_id(cluster_key, 0)[:-1]
    return {
        int(name.removeprefix(start)): version
        for name, version in versions.items()
        if version >= 0 and name.startswith(start) and name.removeprefix(start).isdecimal()
    }


def position(marks: Mapping[int, int]) -> int:
    """The number of transactions at or below the marks. It rises with every batch, whatever its partitions."""
    return sum(mark + 1 for mark in marks.values())


def overlap(batch: BatchRange, marks: Mapping[int, int]) -> dict[int, int]:
    """Partitions in which the table may already hold the first rows of the batch, with the mark above which a row is new."""
    return {p: marks[p] for p, end in batch.ends.items() if p in marks and batch.starts[p] <= marks[p] and end > batch.starts[p]}


def refuse_gaps(path: str, batch: BatchRange, marks: Mapping[int, int]) -> None:
    """Raises `GapInTable` if the table would miss transactions between its mark and the batch. Without a mark the table holds nothing of the
    partition, so the batch must start at its beginning."""
    if not batch.exact:
        return
    for partition, first in batch.starts.items():
        mark = marks.get(partition)
        if mark is None:
            held = first if batch.origins is None else batch.origins.get(partition, 0)
        else:
            held = mark + 1
        if first > held and batch.ends[partition] > first:
            raise GapInTable(path=path, partition=partition, first=held, last=first - 1)


def epochs_among(versions: Mapping[str, int]) -> dict[str, int]:
    """The clusters whose logs the table holds: by key the number of takeovers before its rows."""
    keys = {found[1] for name, version in versions.items() if version >= 0 and (found := _OF_CLUSTER.fullmatch(name))}
    epochs = {key: versions.get(epoch_app_id(key), 0) for key in sorted(keys)}
    return {key: epoch for key, epoch in epochs.items() if epoch >= 0}


def clusters_now(versions: Mapping[str, int]) -> list[str]:
    """The keys of the clusters that the table is filled from: one, unless an early release filled it from several without a takeover."""
    epochs = epochs_among(versions)
    return [key for key, epoch in epochs.items() if epoch == max(epochs.values())]


def cluster_key_among(versions: Mapping[str, int], path: str) -> str | None:
    """The key of the cluster that the table is filled from; None if there is none. Raises `InvalidRequest` for a table that holds the logs of two
    clusters without a takeover: pass a key."""
    keys = clusters_now(versions)
    if len(keys) > 1:
        raise InvalidRequest(reason=f"the table {path} holds the logs of {len(keys)} clusters, say which: cluster_key={' or '.join(keys)}")
    return keys[0] if keys else None


def high_water_marks(path: str, cluster_key: str | None = None, *, storage_options: dict[str, str] | None = None) -> dict[int, int]:
    """The marks of the table at `path`, read without a JVM. Empty for a table without a batch; raises `NotADeltaTable` if there is no table. After a
    RESTORE they are those of the restored version, whether or not a query has set them already.

    `cluster_key`: by default that of the cluster which fills the table now. After a takeover the marks of a former cluster stay as they were."""
    from waltz_delta.marks.positions_log import TableLog
    from waltz_delta.marks.positions_restored import current_identifiers

    versions = current_identifiers(TableLog(path, storage_options))
    key = cluster_key or cluster_key_among(versions, path)
    return {} if key is None else dict(sorted(marks_among(versions, key).items()))
