"""Chooses the engine that writes a table: the Arrow engine where `allowed` accepts the table, otherwise Spark's, with the reason.

It is chosen when a query starts, and again when a batch finds that the table has changed: a feature can be added to a table while its query runs.
From Spark's engine a running query does not go back, except after a batch or a table that was too large for the Arrow engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Final, Literal

from pyspark.sql import SparkSession

from waltz_delta.base import internal
from waltz_delta.base.file_systems import has_file_system
from waltz_delta.base.log_store import LOCAL, is_single_driver, located, named_store, one_committer, require_one_winner
from waltz_delta.base.session import session_settings, session_zone
from waltz_delta.base.table_transaction import TableTransaction
from waltz_delta.engine.allowed import TableShape, refusal, refusal_of_path
from waltz_delta.engine.arrow_table import ArrowTable, NotOpened
from waltz_delta.engine.arrow_transaction import ArrowTransaction
from waltz_delta.engine.store_options import S3, refusal_of_storage
from waltz_delta.engine.store_probe import refusal_of_directory, require_conditional_put
from waltz_delta.errors import UnsafeTable
from waltz_log.errors import InvalidSetting
from waltz_log.loggers import get_logger

__all__ = ["EngineChoice", "TableEngine"]

log = get_logger(__name__)

EngineChoice = Literal["auto", "arrow", "spark"]

_OF_SPARKS_WRITER: Final = (
    "spark.databricks.delta.autoCompact.enabled",
    "spark.databricks.delta.optimizeWrite.enabled",
    "spark.hadoop.parquet.crypto.factory.class",
    "spark.sql.files.maxRecordsPerFile",
)
_OFF: Final = frozenset({"", "0", "false", "none"})
_OF_SPARKS_STORE: Final = "spark.hadoop.fs.s3"

_ALLOWED: Final = "the table needs nothing that this engine does not write"


class TableEngine:
    """The engine of one table. `wanted`: as configured. `storage`: options of the object store, for the Arrow engine. `refuses`: why
    the Arrow engine does not write a table of this shape as it is needed here, although `allowed` accepts it."""

    def __init__(
        self,
        path: str,
        wanted: EngineChoice,
        storage: Mapping[str, str],
        refuses: Callable[[TableShape], str | None] = lambda _: None,
    ) -> None:
        self._refuses = refuses
        self._reported: tuple[str, str] | None = None
        self._is_tested = False
        """Whether Delta in Spark is known to be the tested version."""
        self._path, self._wanted, self._storage = path, wanted, storage
        self._table: ArrowTable | None = None
        self._refused: str | None = "the setting engine is spark" if wanted == "spark" else None
        """Why it is Spark's engine."""

    def choose(self, spark: SparkSession, refusal_of_new: str | None) -> None:
        """Before the first batch. `refusal_of_new`: why the Arrow engine does not write the table that is created if there is none. Raises
        `InvalidSetting` if the table cannot be written as configured."""
        table = self.arrow(spark)
        if table is not None and (reason := self._refusal_of(table, refusal_of_new)):
            self._refuse(reason)
        if self._refused is None and table is not None:
            require_conditional_put(self._path, table.location, self._storage)
        self.report()

    def _refusal_of(self, table: ArrowTable, refusal_of_new: str | None) -> str | None:
        try:
            opened = table.open()
        except NotOpened as error:
            return str(error)
        if opened is None:
            return refusal_of_new
        return refusal(opened.protocol, opened.shape) or self._refuses(opened.shape)

    def report(self) -> None:
        """Logs the engine if it or its reason is another than before, unless the setting names Spark's."""
        self._report("arrow" if self._refused is None else "spark", self.reason)

    @property
    def reason(self) -> str:
        """Why it is this engine."""
        return _ALLOWED if self._refused is None else self._refused

    @property
    def may_be_sparks(self) -> bool:
        """Whether Spark's engine may do what the Arrow engine cannot."""
        return self._wanted != "arrow"

    def leave_to_spark(self, reason: str) -> None:
        """Spark's engine writes this batch, and perhaps not the next one. Raises `InvalidSetting` if it must not."""
        self._forbid(reason)
        self._report("spark", reason)

    def refuse(self, reason: str) -> None:
        """Spark's engine writes the table from now on. Raises `InvalidSetting` if it must not."""
        self._refuse(reason)
        self.report()

    def _report(self, engine: str, reason: str) -> None:
        if self._wanted != "spark" and self._reported != (engine, reason):
            self._reported = engine, reason
            log.info("table engine chosen", table=self._path, engine=engine, reason=reason)

    def arrow(self, spark: SparkSession) -> ArrowTable | None:
        """The table by the Arrow engine; None if Spark's writes it."""
        if self._refused is None and self._table is None:
            scheme, location = located(spark, self._path)
            reason = refusal_of_path(scheme, location) or refusal_of_storage(scheme, location, self._storage)
            if reason is None and scheme == LOCAL:
                reason = refusal_of_directory(self._path, location)
            if reason is None and self._wanted == "auto":
                reason = self._refusal_of_session(spark, scheme)
            if reason is not None:
                self._refuse(reason)
            elif scheme == LOCAL:
                require_one_winner(spark, self._path)
                self._table = ArrowTable(self._path, location, {}, lambda: one_committer(spark, self._path))
            else:
                named = "s3" if scheme in S3 else scheme
                self._table = ArrowTable(self._path, f"{named}://{location.partition('://')[2].rstrip('/')}", self._storage, nullcontext)
        return self._table if self._refused is None else None

    def _refusal_of_session(self, spark: SparkSession, scheme: str) -> str | None:
        """What Spark's configuration asks of a writer that this engine does not do; None if there is nothing."""
        given = session_settings(spark)
        if asked := next((name for name in _OF_SPARKS_WRITER if given.get(name, "").lower() not in _OFF), None):
            return f"Spark's configuration has {asked}, which this engine does not follow"
        if scheme == LOCAL:
            return None
        if store := named_store(spark, scheme):
            return f"other writers may commit by {store}, which Spark's configuration names, and this engine does not"
        if self._storage:
            return None
        if scheme not in S3:
            return f"Spark has a file system for {scheme}:, and the setting storage is empty" if has_file_system(spark, scheme) else None
        access = next((name for name in sorted(given) if name.startswith(_OF_SPARKS_STORE)), None)
        if access is not None and is_single_driver(spark):
            return f"Spark's configuration says how the store is reached ({access}), and the setting storage does not"
        return None

    def begin(self, spark: SparkSession) -> TableTransaction:
        """A transaction on the table. Raises `InvalidSetting` if the table changed so that it cannot be written as configured."""
        table = self.arrow(spark)
        if table is not None:
            try:
                transaction = ArrowTransaction(table, zone=session_zone(spark))
            except NotOpened as error:
                self._refuse(str(error))
            else:
                reason = transaction.refusal or (self._refuses(transaction.shape) if transaction.shape is not None else None)
                if reason is None:
                    return transaction
                self._refuse(reason)
            self.report()
        self._require_tested(spark)
        return internal.TableTransaction(spark, self._path)

    def require_spark(self, spark: SparkSession) -> None:
        """Before Spark's engine writes a batch, perhaps only this one. Raises `UnsupportedDelta`, and `UnsafeTable` where it must not write."""
        self._require_tested(spark)
        try:
            require_one_winner(spark, self._path)
        except UnsafeTable as error:
            why = self._refused if self._reported is None else self._reported[1]
            raise UnsafeTable(path=self._path, reason=f"Spark's engine must write it, because {why}, and {error.reason}") from None

    def _require_tested(self, spark: SparkSession) -> None:
        """A job that may need no Delta in Spark does not check it at its start."""
        if self._wanted == "auto" and not self._is_tested:
            internal.check_versions(spark)
            self._is_tested = True

    def _refuse(self, reason: str) -> None:
        self._forbid(reason)
        self._refused = reason

    def _forbid(self, reason: str) -> None:
        """Raises if Spark's engine must not write."""
        if self._wanted == "arrow":
            raise InvalidSetting(name="engine", reason=f"is arrow, and {reason}: table={self._path}", nearest=None)
