"""Invariants about faults of disks, clocks and networks (`checkers.py` explains checkers)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from verification.simulation.history import Evidence

__all__ = ["FAULT_CHECKERS"]


def a_failed_operation_is_final(evidence: Evidence) -> Iterator[str]:
    """14: after a failed write, rename or sync of a directory of a partition, the node acknowledges nothing more of the partition until it
    restarts."""
    for failed in evidence.history.operations_failed:
        before = [-1]
        for each in evidence.history.acknowledgments:
            if (each.storage, each.life, each.partition) == (failed.storage, failed.life, failed.partition):
                if each.at_s <= failed.at_s:
                    before.append(each.last)
                elif each.last > max(before):
                    yield f"{failed.storage} acknowledged {each.last} at {each.at_s:.3f}, after its {failed.kind} failed at {failed.at_s:.3f}"
                    break


FAULT_CHECKERS: Final = (a_failed_operation_is_final,)
