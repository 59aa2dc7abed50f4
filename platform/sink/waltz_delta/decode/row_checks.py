"""What a worker checks of decoded rows besides their types, and the columns that say what it found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

__all__ = ["MISSING", "MISSING_KEY", "UNSTORED", "Checks", "partitioned_keys"]

MISSING: Final = "_waltz_missing"
"""Why the transaction cannot be a row: a required column that is missing. Beside `PROBLEM` if deletes, which need only their key, are
possible: Spark knows which they are."""
MISSING_KEY: Final = "_waltz_missing_key"
"""Why the transaction cannot be a delete: a required column of its key that is missing."""

UNSTORED: Final = ("", "__HIVE_DEFAULT_PARTITION__")
"""Texts that a partition column stores as NULL."""


def partitioned_keys(keys: Iterable[str], partition_by: Iterable[str]) -> frozenset[str]:
    """The columns that are keys and partition columns at once, in lower case."""
    return frozenset(name.lower() for name in keys) & {name.lower() for name in partition_by}


@dataclass(frozen=True, slots=True)
class Checks:
    """`keys`: of the table, if transactions may be deletes. `unstorable`: the columns that are keys and partition columns at once."""

    keys: tuple[str, ...] | None = None
    unstorable: tuple[str, ...] = ()
