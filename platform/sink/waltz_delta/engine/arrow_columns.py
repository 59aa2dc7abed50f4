"""Adds columns to a table by the Arrow engine, in a commit of its own that succeeds only on the version that it was decided from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any  # JSON values

from pyspark.sql.types import StructField, StructType

from waltz_delta.base.columns import Columns
from waltz_delta.base.missing_column import Missing
from waltz_delta.engine.allowed import TableShape, refusal
from waltz_delta.engine.arrow_table import ArrowTable, OpenedTable
from waltz_delta.engine.commit_files import no_hooks
from waltz_delta.errors import SchemaMismatch
from waltz_log.loggers import get_logger

__all__ = ["ArrowColumns"]

log = get_logger(__name__)


class ArrowColumns:
    """`Columns` by `deltalake`. `others`: adds what `deltalake` cannot add; None: that is refused. `refuses`: why the engine would not write a table
    with such columns."""

    def __init__(self, table: ArrowTable, others: Columns | None = None, refuses: Callable[[TableShape], str | None] = lambda _: None) -> None:
        self._table = table
        self._others = others
        self._refuses = refuses

    def schema(self) -> StructType:
        opened = self._table.open()
        return StructType() if opened is None else StructType.fromJson(dict(opened.shape.schema))

    def add(self, missing: Sequence[Missing]) -> None:
        """Raises `SchemaMismatch` for a type that would change the table's protocol, and for a field within a column, unless another engine may add
        them."""
        from deltalake import CommitProperties, Schema

        opened = self._table.open()
        assert opened is not None, "columns are added to a table that exists"
        added = json.loads(StructType([StructField(each.place[0], each.kind) for each in missing]).toNullable().json())
        refused = self._refusal(opened, missing, added)
        if refused is not None:
            if self._others is None:
                place, reason = refused
                raise SchemaMismatch(path=self._table.path, column=".".join(place), reason=f"cannot be added by the Arrow engine: {reason}")
            log.info("columns are added by Spark's engine", table=self._table.path, reason=refused[1])
            self._others.add(missing)
            return
        version = opened.version + 1
        with self._table.committing():
            opened.delta_table.alter.add_columns(
                Schema.from_json(json.dumps(added)).fields,
                commit_properties=CommitProperties(max_commit_retries=0),
                post_commithook_properties=no_hooks(),
            )
        self._table.sync_commit(version)

    def is_conflict(self, error: BaseException) -> bool:
        from deltalake.exceptions import CommitFailedError

        return isinstance(error, CommitFailedError) or (self._others is not None and self._others.is_conflict(error))

    def _refusal(self, opened: OpenedTable, missing: Sequence[Missing], added: Mapping[str, Any]) -> tuple[Sequence[str], str] | None:
        """What this engine cannot add, and why; None if it can add everything. `added`: the columns as Delta stores them."""
        within = next((each for each in missing if len(each.place) > 1), None)
        if within is not None:
            return within.place, "it is within a column; choose the engine spark, once"
        shape = TableShape(added, (), {})
        reason = refusal(opened.protocol, shape) or self._refuses(shape)
        if reason is None and "timestamp_ntz" in json.dumps(added) and "timestampNtz" not in opened.protocol.features:
            reason = "TIMESTAMP_NTZ needs a table feature that the table does not have"
        return None if reason is None else (missing[0].place, reason)
