"""Why a transaction does not decode. The first problem of a transaction is the one that is reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["DATA", "LOSSLESS_ADVICE", "PROBLEM", "Problems", "Refused", "shown"]

DATA: Final = "data"
PROBLEM: Final = "problem"
"""The columns of what does not decode, in the rows of a source that decodes."""

_SHOWN_MAX: Final = 40
"""Most characters of a value that a reason shows."""

LOSSLESS_ADVICE: Final = "send a number, or set numeric_strings to lossless"


class Refused(ValueError):
    """Why a value or a transaction does not decode. Internal to the decoder."""


def shown(value: str) -> str:
    """The start of a value, as a reason shows it."""
    return value[:_SHOWN_MAX]


class Problems:
    """The reason of each transaction of a batch that does not decode, by its index in the batch."""

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}

    def add(self, row: int, reason: str) -> None:
        self.reasons.setdefault(row, reason)

    def column(self, count: int) -> Sequence[str | None]:
        """A reason or None for each of `count` transactions."""
        found: list[str | None] = [None] * count
        for row, reason in self.reasons.items():
            found[row] = reason
        return found
