"""What a sink needs of one optimistic transaction on a table, whichever engine runs it: Spark's (`internal.TableTransaction`) or the Arrow engine's
(`engine.arrow_transaction`). An engine decides nothing about marks: it stores identifiers, and refuses a commit that was decided from an older state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol  # Any: JSON values, and what `write` returns to `commit`

from pyspark.sql import DataFrame, SparkSession

__all__ = ["BeginTransaction", "TableTransaction"]


class TableTransaction(Protocol):
    """Identifiers that are read with `version` are conflict-checked: if another commit changes one of them first, ours fails."""

    @property
    def exists(self) -> bool:
        """Whether there was a table when the transaction began."""
        ...

    @property
    def read_version(self) -> int:
        """The table version that this transaction sees; -1 if there is no table."""
        ...

    @property
    def table_id(self) -> str:
        """Delta's id of the table, constant from its creation to its removal; empty if there is no table."""
        ...

    def version(self, app_id: str) -> int | None: ...

    def versions(self) -> dict[str, int]:
        """All identifiers, without a conflict check."""
        ...

    def versions_at(self, version: int) -> dict[str, int]:
        """All identifiers as they were at an older version of the table."""
        ...

    def commits(self, count: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Version and `commitInfo` of the newest commits, newest first, as far back as the log's files reach."""
        ...

    def version_until(self, before: int, timestamp: str) -> int:
        """The last version below `before` that was committed at this time or earlier."""
        ...

    def refuse_strange_checksum(self) -> None: ...

    def properties(self) -> dict[str, str]:
        """The table's properties; empty if there is no table."""
        ...

    def schema_text(self) -> str:
        """The table's columns as Delta stores them; equal texts are equal schemas. Empty if there is no table."""
        ...

    def lost_to_another(self, error: BaseException) -> bool:
        """Whether a commit failed because another one came first."""
        ...

    def rows(self, spark: SparkSession, columns: Sequence[str]) -> DataFrame:
        """These columns of the rows of the version that this transaction sees; the same rows whenever the plan runs. Raises `NotADeltaTable` if there
        is no table."""
        ...

    def write(self, rows: DataFrame, *, partition_by: Sequence[str], properties: Mapping[str, str]) -> Any:
        """Writes the files of the rows. No reader sees them before `commit` names them."""
        ...

    def commit(self, written: Any, versions: Mapping[str, int], *, query: str, batch: int, metadata: str) -> int:
        """Commits the result of `write` and the identifiers together. Returns the table version."""
        ...

    def mark(self, versions: Mapping[str, int], *, query: str, batch: int, metadata: str) -> int:
        """Commits identifiers alone."""
        ...


BeginTransaction = Callable[[], TableTransaction]
