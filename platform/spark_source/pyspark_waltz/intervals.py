"""Sets of whole numbers as intervals: the values of a column that a filter accepts. Pure.

The columns for which filters are pushed down are never null, so SQL's third truth value comes only from the filter's own values: a comparison with
null accepts nothing, and neither does its negation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any  # values of Spark's filters

__all__ = ["ALL", "Intervals"]

_MIN, _MAX = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class Intervals:
    """Disjoint intervals in ascending order, with a gap between two; both ends are included."""

    spans: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, spans: Iterable[tuple[int, int]]) -> Intervals:
        found: list[tuple[int, int]] = []
        for low, high in sorted(span for span in spans if span[0] <= span[1]):
            if found and low <= found[-1][1] + 1:
                found[-1] = (found[-1][0], max(found[-1][1], high))
            else:
                found.append((low, high))
        return cls(tuple(found))

    def __contains__(self, value: int) -> bool:
        return any(low <= value <= high for low, high in self.spans)

    def __and__(self, other: Intervals) -> Intervals:
        return Intervals.of((max(a, c), min(b, d)) for a, b in self.spans for c, d in other.spans)

    def __invert__(self) -> Intervals:
        edges = [_MIN, *(edge for low, high in self.spans for edge in (low - 1, high + 1)), _MAX]
        return Intervals.of(zip(edges[::2], edges[1::2], strict=True))

    @property
    def hull(self) -> tuple[int, int] | None:
        """The least and the greatest value, None if the set is empty. Without a bound they are those of 64 bits."""
        return (self.spans[0][0], self.spans[-1][1]) if self.spans else None

    @classmethod
    def compared(cls, operator: str, value: Any, *, negated: bool) -> Intervals | None:
        """The values that satisfy `column <operator> value`; the operator is the name of Spark's filter. None if that cannot be decided."""
        if operator in ("IsNull", "IsNotNull"):
            return ALL if (operator == "IsNotNull") != negated else NOTHING
        values = list(value) if operator == "In" else [value]
        if not all(each is None or (isinstance(each, int) and not isinstance(each, bool)) for each in values):
            return None
        known = [each for each in values if each is not None]
        match operator:
            case "In" | "EqualTo" | "EqualNullSafe":
                found = cls.of((each, each) for each in known)
            case "GreaterThan":
                found = cls.of((each + 1, _MAX) for each in known)
            case "GreaterThanOrEqual":
                found = cls.of((each, _MAX) for each in known)
            case "LessThan":
                found = cls.of((_MIN, each - 1) for each in known)
            case "LessThanOrEqual":
                found = cls.of((_MIN, each) for each in known)
            case _:
                return None
        if not negated:
            return found
        if len(known) < len(values) and operator != "EqualNullSafe":
            return NOTHING
        return ~found


ALL = Intervals(((_MIN, _MAX),))
NOTHING = Intervals(())
