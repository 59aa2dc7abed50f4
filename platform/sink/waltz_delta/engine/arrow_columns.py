"""Adds columns to a table by the Arrow engine, in a commit of its own that succeeds only on the version that it was decided from."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pyspark.sql.types import StructField, StructType

from waltz_delta.base.missing_column import Missing
from waltz_delta.engine.allowed import TableShape, refusal
from waltz_delta.engine.arrow_table import ArrowTable
from waltz_delta.errors import SchemaMismatch

__all__ = ["ArrowColumns"]


class ArrowColumns:
    """`tables.evolution.Columns` by `deltalake`."""

    def __init__(self, table: ArrowTable) -> None:
        self._table = table

    def schema(self) -> StructType:
        opened = self._table.open()
        return StructType() if opened is None else StructType.fromJson(dict(opened.shape.schema))

    def add(self, missing: Sequence[Missing]) -> None:
        """Raises `SchemaMismatch` for a type that would change the table's protocol, and for a field within a column."""
        from deltalake import CommitProperties, PostCommitHookProperties, Schema

        opened = self._table.open()
        assert opened is not None, "columns are added to a table that exists"
        within = next((each for each in missing if len(each.place) > 1), None)
        if within is not None:
            impossible = "cannot be added by the Arrow engine, since it is within a column; choose the engine spark, once"
            raise SchemaMismatch(path=self._table.path, column=".".join(within.place), reason=impossible)
        fields = [StructField(each.place[0], each.kind) for each in missing]
        added = json.loads(StructType(fields).toNullable().json())
        reason = refusal(opened.protocol, TableShape(added, (), {}))
        if reason is None and "timestamp_ntz" in json.dumps(added) and "timestampNtz" not in opened.protocol.features:
            reason = "TIMESTAMP_NTZ needs a table feature that the table does not have"
        if reason is not None:
            raise SchemaMismatch(path=self._table.path, column=fields[0].name, reason=f"cannot be added by the Arrow engine: {reason}")
        version = opened.version + 1
        with self._table.committing():
            opened.handle.alter.add_columns(
                Schema.from_json(json.dumps(added)).fields,
                commit_properties=CommitProperties(max_commit_retries=0),
                post_commithook_properties=PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
            )
        self._table.sync_commit(version)

    def is_conflict(self, error: BaseException) -> bool:
        from deltalake.exceptions import CommitFailedError

        return isinstance(error, CommitFailedError)
