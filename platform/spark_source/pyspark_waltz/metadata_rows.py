"""`mode=metadata`: the log's partitions as rows. Requested when Spark plans, once for each action; the one task carries the rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_waltz.log_view import Connect, LogView
from pyspark_waltz.options import SourceOptions
from pyspark_waltz.schema import METADATA_SCHEMA

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MetadataReader", "MetadataRows"]

Row: TypeAlias = tuple[int, int | None, int | None, str | None, int | None, int | None, list[str]]


@dataclass(frozen=True)
class MetadataRows(InputPartition):
    rows: tuple[Row, ...]


class MetadataReader(DataSourceReader):
    def __init__(self, options: SourceOptions, connect: Connect) -> None:
        self._options = options
        self._connect = connect

    def partitions(self) -> Sequence[InputPartition]:
        view = LogView(self._options, self._connect)
        try:
            return [MetadataRows(tuple(_rows(view)))]
        finally:
            view.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        assert isinstance(partition, MetadataRows)
        columns = zip(*partition.rows, strict=True) if partition.rows else [()] * len(METADATA_SCHEMA.fields)
        schema = to_arrow_schema(METADATA_SCHEMA, timezone="UTC")
        yield pa.RecordBatch.from_arrays([pa.array(list(c), f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def _rows(view: LogView) -> Iterator[Row]:
    owners, replicas = view.owners(), view.replicas()
    bounds = view.bounds_of([partition for partition, owner in owners.items() if owner is not None])
    for partition, owner in owners.items():
        held = list(replicas.get(partition, ()))
        bound = bounds.get(partition)
        if bound is None:
            yield (partition, None, None, None, None, None, held)
        else:
            yield (partition, bound.first_transaction_id, bound.high_water_mark, owner, bound.generation, bound.session, held)
