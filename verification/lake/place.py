"""Where the tables of races and tests are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Place"]


@dataclass(frozen=True)
class Place:
    """`storage`: options of the store."""

    location: str
    storage: Mapping[str, str]
