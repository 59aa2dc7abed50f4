"""What `--faults` kills, and when: by the share of flights appended, so that every kill happens in the middle of the work.

Pure: the plan decides what to do, its actions do it. Each fault strikes once and is repaired once, in order; a plan is finished when all are
repaired.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Fault", "FaultPlan"]


@dataclass(frozen=True)
class Fault:
    """`strike` kills `victim` once `share` of the work is done and `worthwhile`; `repair` restarts it `repair_after_s` later."""

    victim: str
    share: float
    strike: Callable[[], None]
    repair: Callable[[], None]
    repair_after_s: float
    worthwhile: Callable[[], bool] = lambda: True
    """A kill of a driver before its first commit would prove little."""


class FaultPlan:
    def __init__(self, faults: Sequence[Fault]) -> None:
        self._ahead = sorted(faults, key=lambda fault: fault.share)
        self._struck: list[tuple[float, Fault]] = []

    @property
    def finished(self) -> bool:
        return not self._ahead and not self._struck

    def advance(self, share: float, now_s: float) -> list[str]:
        """Runs the actions that are due; returns what was done, in words."""
        done = []
        while self._ahead and share >= self._ahead[0].share and self._ahead[0].worthwhile():
            fault = self._ahead.pop(0)
            fault.strike()
            self._struck.append((now_s, fault))
            done.append(f"killed {fault.victim} (SIGKILL)")
        for struck_s, fault in list(self._struck):
            if now_s - struck_s >= fault.repair_after_s:
                fault.repair()
                self._struck.remove((struck_s, fault))
                done.append(f"started {fault.victim} again")
        return done
