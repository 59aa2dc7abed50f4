"""Chooses the engine that writes an append table: the Arrow engine where `allowed` accepts the table, otherwise Spark's, with the reason.

It is chosen when a query starts, and again when a batch finds that the table has changed: a feature can be added to a table while its query runs.
From Spark's engine a running query does not go back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Final, Literal

from pyspark.sql import SparkSession

from waltz_delta.base import internal
from waltz_delta.base.log_store import LOCAL, located, one_committer, require_one_winner
from waltz_delta.base.table_transaction import TableTransaction
from waltz_delta.engine.allowed import TableShape, refusal_of_new, refusal_of_path
from waltz_delta.engine.arrow_table import ArrowTable, NotOpened
from waltz_delta.engine.arrow_transaction import ArrowTransaction
from waltz_delta.engine.store_probe import require_conditional_put
from waltz_log.errors import InvalidSetting
from waltz_log.loggers import get_logger

__all__ = ["EngineChoice", "TableEngine"]

log = get_logger(__name__)

EngineChoice = Literal["auto", "arrow", "spark"]

_ALLOWED: Final = "the table needs nothing that this engine does not write"


class TableEngine:
    """The engine of one table. `wanted`: as configured. `storage`: options of the object store, for the Arrow engine. `refuses`: why the Arrow engine
    does not write a table as it is needed here, although `allowed` accepts it."""

    def __init__(
        self, path: str, wanted: EngineChoice, storage: Mapping[str, str], refuses: Callable[[TableShape], str | None] = lambda _: None
    ) -> None:
        self._refuses = refuses
        self._path, self._wanted, self._storage = path, wanted, storage
        self._table: ArrowTable | None = None
        self._refused: str | None = "the setting engine is spark" if wanted == "spark" else None
        """Why it is Spark's engine."""

    def choose(self, spark: SparkSession, new: TableShape, cluster_by: Sequence[str]) -> None:
        """Before the first batch. `new`, `cluster_by`: the table that is created if there is none. Raises `InvalidSetting` if the table cannot be
        written as configured."""
        table = self.arrow(spark)
        if table is not None and (reason := table.refusal(otherwise=refusal_of_new(new, cluster_by))):
            self._refuse(reason)
        if self._refused is None and table is not None:
            require_conditional_put(self._path, table.location, self._storage)
        self.report()

    def report(self) -> None:
        """Logs the engine, unless it is simply the default."""
        if self._wanted != "spark":
            engine, reason = ("arrow", _ALLOWED) if self._refused is None else ("spark", self._refused)
            log.info("table engine chosen", table=self._path, engine=engine, reason=reason)

    def arrow(self, spark: SparkSession) -> ArrowTable | None:
        """The table by the Arrow engine; None if Spark's writes it."""
        if self._refused is None and self._table is None:
            scheme, location = located(spark, self._path)
            if reason := refusal_of_path(scheme, location):
                self._refuse(reason)
            elif scheme == LOCAL:
                require_one_winner(spark, self._path)
                self._table = ArrowTable(self._path, location, {}, lambda: one_committer(spark, self._path))
            else:
                self._table = ArrowTable(self._path, f"s3://{location.partition('://')[2].rstrip('/')}", self._storage, nullcontext)
        return self._table if self._refused is None else None

    def begin(self, spark: SparkSession) -> TableTransaction:
        """A transaction on the table. Raises `InvalidSetting` if the table changed so that it cannot be written as configured."""
        table = self.arrow(spark)
        if table is not None:
            try:
                transaction = ArrowTransaction(table)
            except NotOpened as error:
                self._refuse(str(error))
            else:
                reason = transaction.refusal or (self._refuses(transaction.shape) if transaction.shape is not None else None)
                if reason is None:
                    return transaction
                self._refuse(reason)
            self.report()
        return internal.TableTransaction(spark, self._path)

    def _refuse(self, reason: str) -> None:
        if self._wanted == "arrow":
            raise InvalidSetting(name="engine", reason=f"is arrow, and {reason}: table={self._path}", nearest=None)
        self._refused = reason
