"""The columns of a table, as each engine reads and adds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pyspark.sql.types import StructType

from waltz_delta.base.missing_column import Missing

__all__ = ["Columns"]


class Columns(Protocol):
    """The columns of a table, by one engine."""

    def schema(self) -> StructType:
        """As they are now."""
        ...

    def add(self, missing: Sequence[Missing]) -> None:
        """Adds columns and fields in a commit of their own."""

    def is_conflict(self, error: BaseException) -> bool:
        """Whether `add` failed because another commit came first."""
        ...
