"""Bugs to plant in what clients are given and in what they bring (as in `planted.py`)."""

from __future__ import annotations

from typing import Any

from verification.mutants.planting import bug, change
from waltz_log.client.feed import decode_feed
from waltz_log.server.ordering.sequencer import Sequencer

__all__: list[str] = []


@bug
def generation_decoded_wrongly() -> None:
    """A reader gets the first generation with every transaction, whatever the record says."""

    def records(block: Any, partition: int, expected: int, found: list[Any]) -> None:
        before = len(found)
        original(block, partition, expected, found)
        found[before:] = [each._replace(generation=1) for each in found[before:]]

    original: Any = change(decode_feed, "_records", records)


@bug
def foreign_marks_believed() -> None:
    """A mark above the log passes every check of locks."""

    def sequence(self: Sequencer, frames: Any, append_time_ms: int, *_: Any) -> Any:
        return original(self, frames, append_time_ms)

    original: Any = change(Sequencer, "sequence", sequence)
