"""Which filters of a batch read the source evaluates itself, and which part of the log remains after them.

| column | the planner | the executor | Spark filters again |
|---|---|---|---|
| `partition`, `transaction_id` | reads only those | | no |
| `header`, and the whole numbers of `includeMetadata` | | returns only those rows | no |
| `timestamp` | reads only from and to the transactions of those times | | yes: times are known to the millisecond and per block |

Spark evaluates all other filters. Streams have no pushed filters in Spark 4.2.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from pyspark.sql.datasource import Filter, Not

from pyspark_waltz.intervals import ALL, Intervals

__all__ = ["PLANNED", "TESTED", "Pushed", "asked_for", "push"]

PLANNED = ("partition", "transaction_id")
TESTED = ("header", "client_id", "generation", "sequence")
_TIME = "timestamp"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Pushed:
    """The values that may pass, by column; all values of a column without an entry. `times_us`: the hull of the times, in microseconds."""

    passes: Mapping[str, Intervals] = field(default_factory=dict)
    times_us: tuple[int, int] | None = ALL.hull

    def of(self, column: str) -> Intervals:
        return self.passes.get(column, ALL)

    @property
    def tests(self) -> dict[str, Intervals]:
        """The columns that the executor tests."""
        return {column: passes for column, passes in self.passes.items() if column in TESTED}

    @property
    def from_ms(self) -> int | None:
        """Only transactions appended then or later; None: all."""
        if self.times_us is None or self.times_us[0] == _LOWEST:
            return None
        return max(0, self.times_us[0] // 1000)

    @property
    def until_ms(self) -> int | None:
        """Only transactions appended before; None: all."""
        if self.times_us is None or self.times_us[1] == _HIGHEST:
            return None
        return max(0, self.times_us[1] // 1000 + 1)

    @property
    def nothing(self) -> bool:
        return self.times_us is None or any(not passes.spans for passes in self.passes.values())


_LOWEST, _HIGHEST = ALL.spans[0]


_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"


def asked_for() -> bool:
    """Whether Spark pushes filters down in this process. Spark refuses a reader that accepts filters if its setting
    `spark.sql.python.filterPushdown.enabled` is off (DATA_SOURCE_PUSHDOWN_DISABLED), and only the process shows whether it is on: Spark then plans in
    a process of another module, which is the process's main module or, if forked from a daemon, one that it imported."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return _PUSHING in sys.modules or (spec is not None and spec.name == _PUSHING)


def push(filters: Iterable[Filter], columns: Iterable[str]) -> tuple[Pushed, list[Filter]]:
    """The rows that the filters accept together, and the filters that Spark must evaluate again."""
    known = set(columns)
    passes: dict[str, Intervals] = {}
    times = ALL
    left: list[Filter] = []
    for each in filters:
        negated, plain = (True, each.child) if isinstance(each, Not) else (False, each)
        path: tuple[str, ...] = getattr(plain, "attribute", ())
        column = path[0] if len(path) == 1 and path[0] in known else ""
        operator, value = type(plain).__name__, getattr(plain, "value", None)
        if column in (*PLANNED, *TESTED):
            found = Intervals.compared(operator, value, negated=negated)
            if found is None:
                left.append(each)
            else:
                passes[column] = passes.get(column, ALL) & found
            continue
        if column == _TIME:
            moments = _microseconds(value)
            found = Intervals.compared(operator, moments, negated=negated) if moments is not _UNKNOWN else None
            times = times & found if found is not None else times
        left.append(each)
    return Pushed(passes, times.hull), left


_UNKNOWN = object()


def _microseconds(value: object) -> object:
    """The microseconds of a time, or of each of several; `_UNKNOWN` for any other value."""
    if value is None:
        return None
    if isinstance(value, (tuple, list)):
        found = [_microseconds(each) for each in value]
        return _UNKNOWN if _UNKNOWN in found else tuple(found)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return (value - _EPOCH) // timedelta(microseconds=1)
    return _UNKNOWN
