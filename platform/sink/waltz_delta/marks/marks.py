"""A Delta table states its own high-water marks: per log partition the last transaction id whose rows it holds.

Each mark is a Delta transaction identifier, `waltz:<cluster key>:<partition>`, set in the very commit that adds the rows, so the marks and the rows
can never disagree. A batch, a replay, a second driver and the start after a lost checkpoint are all judged by them. Reading them needs no JVM
(`high_water_marks`). Here stand the names and the arithmetic; committing is `append` and `upsert`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from waltz_delta.errors import GapInTable
from waltz_log.errors import InvalidRequest

__all__ = [
    "BatchRange",
    "app_id",
    "cluster_key_among",
    "high_water_marks",
    "marks_among",
    "merge_app_id",
    "merged_app_id",
    "overlap",
    "position",
    "refuse_gaps",
]

_MARK = re.compile(r"waltz:(.+):(?:\d+|merge)")


@dataclass(frozen=True, slots=True)
class BatchRange:
    """What a batch covers: per partition the ids from `starts` up to and without `ends`. `starts` None: not known, only the rows' own least ids.

    A row that a filter dropped is covered all the same: the marks tell how far the log was considered."""

    ends: Mapping[int, int]
    starts: Mapping[int, int]
    exact: bool
    origins: Mapping[int, int] | None = None
    """Where the reading of each partition began, before this batch or with it; a partition that is left out began at 0. None: not known."""
    checkpoint: str | None = None
    """The checkpoint directory of the query that runs the batch; None outside of a query."""

    def marks(self) -> dict[int, int]:
        """The marks a table has when it holds this batch, of the partitions that got further."""
        return {partition: end - 1 for partition, end in self.ends.items() if end > self.starts[partition]}


def app_id(cluster_key: str, partition: int) -> str:
    return f"waltz:{cluster_key}:{partition}"


def merge_app_id(cluster_key: str) -> str:
    """MERGE can carry one identifier only; its version is `position` of the marks."""
    return f"waltz:{cluster_key}:merge"


def merged_app_id(cluster_key: str) -> str:
    """Its version is the number of the last MERGE whose marks are set."""
    return f"waltz:{cluster_key}:merged"


def marks_among(versions: Mapping[str, int], cluster_key: str) -> dict[int, int]:
    """The marks among all transaction identifiers of a table. A version below 0 is none: a RESTORE to before the first batch of a partition leaves
    it, since an identifier can be changed and not removed (`restored`)."""
    start = app_id(cluster_key, 0)[:-1]
    return {
        int(name.removeprefix(start)): version
        for name, version in versions.items()
        if version >= 0 and name.startswith(start) and name.removeprefix(start).isdecimal()
    }


def position(marks: Mapping[int, int]) -> int:
    """How many transactions lie at or below the marks. It rises with every batch, whatever its partitions."""
    return sum(mark + 1 for mark in marks.values())


def overlap(batch: BatchRange, marks: Mapping[int, int]) -> dict[int, int]:
    """Partitions whose first rows of the batch the table may hold already, with the mark above which a row is new."""
    return {p: marks[p] for p, end in batch.ends.items() if p in marks and batch.starts[p] <= marks[p] and end > batch.starts[p]}


def refuse_gaps(path: str, batch: BatchRange, marks: Mapping[int, int]) -> None:
    """`GapInTable` where the table would miss transactions between its mark and the batch. Without a mark the table holds nothing of the partition,
    so the batch must be the first of it."""
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


def cluster_key_among(versions: Iterable[str], path: str) -> str | None:
    """The key of the cluster that the identifiers name; None where none does. A table that holds two logs is asked with a key: `InvalidRequest`."""
    keys = sorted({found[1] for name in versions if (found := _MARK.fullmatch(name))})
    if len(keys) > 1:
        raise InvalidRequest(reason=f"the table {path} holds the logs of {len(keys)} clusters, say which: cluster_key={' or '.join(keys)}")
    return keys[0] if keys else None


def high_water_marks(path: str, cluster_key: str | None = None, *, storage_options: dict[str, str] | None = None) -> dict[int, int]:
    """The marks of the table at `path`, read without a JVM. Empty for a table that no batch reached; `NotADeltaTable` where there is none. After a
    RESTORE they are those of the restored version, whether or not a query has set them already.

    `cluster_key` need be given only for a table that is filled from several clusters."""
    from waltz_delta.marks.positions_log import TableLog
    from waltz_delta.marks.positions_restored import current_identifiers

    versions = current_identifiers(TableLog(path, storage_options))
    key = cluster_key or cluster_key_among(versions, path)
    return {} if key is None else dict(sorted(marks_among(versions, key).items()))
