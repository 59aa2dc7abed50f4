"""The type of a declared column, whatever the format: what turns the values of a batch into an Arrow array.

A whole column is converted at once. Only if Arrow refuses it or a bound is broken are its values judged one by one, to find which and why."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final  # Any: values of any format, and pyarrow has no types

import pyarrow as pa

from pyspark_waltz.decode.problems import Problems, Refused, shown

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

__all__ = ["Kind", "Rows", "Scalar", "type_shown"]

Rows = Sequence[int]
"""For each value, the transaction of the batch that it belongs to."""

_JUDGED_AT_ONCE: Final = 512
"""Most values that are judged one by one because of one of them."""

_TYPE_SHOWN_MAX: Final = 60
"""Most characters of a type that a reason shows."""


def type_shown(declared: DataType) -> str:
    """A type as SQL, as `Kind.shown` has it: only the beginning of a long one."""
    return str(declared.simpleString()).upper()[:_TYPE_SHOWN_MAX]


@dataclass(frozen=True, slots=True)
class Kind(ABC):
    """A declared type at a path: fields of a STRUCT with dots; elements and values have the path of what contains them."""

    path: str
    shown: str
    """The type as SQL."""
    arrow: Any

    @abstractmethod
    def column(self, values: Sequence[Any], rows: Rows, problems: Problems) -> Any:
        """An array of `arrow`; null where a value is None or a problem."""

    def mismatch(self, value: str) -> Refused:
        """The problem of a value that is not of the type."""
        return Refused(f"{self.path} is not {self.shown}: {shown(value)}")


class Scalar(Kind, ABC):
    __slots__ = ()

    def column(self, values: Sequence[Any], rows: Rows, problems: Problems) -> Any:
        try:
            found = self.convert(values)
        except (pa.ArrowException, OverflowError, TypeError, Refused):
            found = None
        if found is not None:
            return found
        if len(values) > _JUDGED_AT_ONCE:
            starts = range(0, len(values), _JUDGED_AT_ONCE)
            return pa.concat_arrays([self.column(values[at : at + _JUDGED_AT_ONCE], rows[at : at + _JUDGED_AT_ONCE], problems) for at in starts])
        return self._one_by_one(values, rows, problems)

    def _one_by_one(self, values: Sequence[Any], rows: Rows, problems: Problems) -> Any:
        kept = []
        for row, value in zip(rows, values, strict=True):
            try:
                kept.append(None if value is None else self.one(value))
            except Refused as refused:
                problems.add(row, str(refused))
                kept.append(None)
        return self.array(kept)

    def array(self, kept: Sequence[Any]) -> Any:
        return pa.array(kept, self.arrow)

    def convert(self, values: Sequence[Any]) -> Any:
        """All values at once; None, `Refused` or one of Arrow's errors, if they must be judged one by one."""
        return pa.array(values, self.arrow)

    def one(self, value: Any) -> Any:
        """One value, as `array` accepts it. Raises `Refused`."""
        return value
