"""Numbers of partitions as people write many of them: `3,5-7`."""

from __future__ import annotations

from collections.abc import Iterable

from waltz_log.errors import InvalidSetting

__all__ = ["format_ranges", "parse_ranges"]

NUMBERS_MAX = 100_000
"""Far more than a log has partitions; a mistyped range must not fill the memory."""


def parse_ranges(option: str, text: str) -> tuple[int, ...]:
    """In the order of the text. Raises `InvalidSetting` with the option's name."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        good = _is_number(first) and (not dash or (_is_number(last) and 0 <= int(last) - int(first) < NUMBERS_MAX))
        if not good:
            raise InvalidSetting(name=option, reason=f"must be numbers and ranges such as 3,5-7, got {text!r}", nearest=None)
        found += range(int(first), int(last if dash else first) + 1)
    return tuple(found)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def format_ranges(numbers: Iterable[int]) -> str:
    """Sorted: `0-3,7`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
