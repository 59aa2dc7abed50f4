"""Bugs to plant in quotas (as in `planted.py`)."""

from __future__ import annotations

from typing import Any

from verification.mutants.planting import bug, change
from waltz_log.core.quotas import Meter
from waltz_log.server.partition.append_task import AppendTask

__all__: list[str] = []


@bug
def quota_counts_refused_appends() -> None:
    """A frame is charged when it arrives, whatever becomes of it."""

    def within(self: AppendTask, frames: list[Any]) -> list[Any]:
        for frame in frames:
            if frame.appender.meter is not None:
                charge(frame.appender.meter, frame.count, len(frame.records), self._now_s())
        return list(original(self, frames))

    charge: Any = change(Meter, "charge_append", lambda self, *_: None)
    original: Any = change(AppendTask, "_within_quotas", within)


@bug
def quota_not_charged() -> None:
    """Nothing that is accepted counts."""
    change(Meter, "charge_append", lambda self, *_: None)


@bug
def frames_behind_a_refusal_are_ordered() -> None:
    """Frames that a client sent before it saw a refusal are accepted: its appends change their order, and one that it sends again is there twice."""

    def expected(self: AppendTask, frame: Any) -> bool:
        frame.quota_refusals = frame.appender.quota_refusals
        return True

    change(AppendTask, "_is_expected", expected)


@bug
def planned_work_is_not_counted() -> None:
    """A block holds whatever a principal sent, as if nothing of the block had been planned before."""
    change(Meter, "fits", lambda *_: True)


@bug
def planned_bytes_are_not_counted() -> None:
    """As above, of the bytes alone."""

    def fits(self: Meter, transactions: int, _size: int, now_s: float) -> bool:
        return bool(original(self, transactions, 0, now_s))

    original: Any = change(Meter, "fits", fits)
