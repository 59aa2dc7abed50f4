"""Which topics of a run are constantly trimmed and compacted. Drawn separately, so that the rest of a seed does not depend on it."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from waltz_log.core.topics.catalogue import HOUR_MS, Policies

__all__ = ["TOPICS_FROM", "KeptTopic", "draw_kept"]

LONG_MS: Final = 1000 * HOUR_MS

SOMETIMES: Final = 1 / 32
"""The share of the seeds. A run with these topics takes several times as long as one without."""

TOPICS_FROM: Final = 100_000
TOPICS_TO: Final = 200_000
"""Between these seeds every run has such topics."""


@dataclass(frozen=True, slots=True)
class KeptTopic:
    type: str
    policies: Policies


def draw_kept(seed: int, first: int) -> dict[int, KeptTopic]:
    """By log partition, from `first` on."""
    rng = Random(f"kept {seed}")
    if not TOPICS_FROM <= seed < TOPICS_TO and rng.random() > SOMETIMES:
        return {}
    kinds = rng.choice((("regular",), ("compaction",), ("compaction",), ("regular", "compaction")))
    return {
        first + place: KeptTopic(
            kind,
            Policies(
                retention_bytes=rng.choice((0, 0, 5000, -1)),
                retention_ms=rng.choice((HOUR_MS, LONG_MS)),
                tombstone_retention_ms=rng.choice((0, LONG_MS, LONG_MS)),
            ),
        )
        for place, kind in enumerate(kinds)
    }
