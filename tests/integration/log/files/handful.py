"""Which cases of a matrix run with every change: a few of each kind, so that each condition occurs too. `make handed-files` runs all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

__all__ = ["matrix"]


def matrix(cases: Iterable[tuple[Any, Any]], each: int, name: Callable[[Any, Any], str]) -> list[Any]:
    """Cases of a kind and a condition as parameters, which are compared by what `ascii` prints of them. All are marked slow but `each` of a kind,
    which begin where those of the kind before ended, and the first one of each condition that would not occur."""
    every = list(cases)
    kinds: dict[str, list[int]] = {}
    for number, (kind, _) in enumerate(every):
        kinds.setdefault(ascii(kind), []).append(number)
    chosen = {row[(place * each + offset) % len(row)] for place, row in enumerate(kinds.values()) for offset in range(each)}
    conditions = {ascii(every[number][1]) for number in chosen}
    for number, (_, condition) in enumerate(every):
        if ascii(condition) not in conditions:
            conditions.add(ascii(condition))
            chosen.add(number)
    return [pytest.param(*case, id=name(*case), marks=() if number in chosen else pytest.mark.slow) for number, case in enumerate(every)]
