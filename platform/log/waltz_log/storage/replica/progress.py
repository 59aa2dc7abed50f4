"""The mark of a replica that is being filled: how much of its log outlasts the session that copied it (docs/decisions/0022).

The session of a mark is the last one in which the replica was clean, and it does not change here: readers, votes and the repair of segments still see
a replica that was clean long ago or never. Only the two water marks rise: the low-water mark to the mark of the session that fills it, the local one
to what is on disk (On-Disk Data Structures, Control File: the local low-water mark is smaller while the storage lags behind).
"""

from __future__ import annotations

from waltz_log.core.formats.control_format import SessionMark
from waltz_log.errors import OutOfRange, ProtocolViolation

__all__ = ["mark_of_progress"]


def mark_of_progress(partition: int, mark: SessionMark, session: int, low_water_mark: int, kept: int, last: int) -> SessionMark:
    """The mark to write; the same one if the call arrives late. `kept`: everything up to this id is committed; `last`: the last id on disk. Raises
    `OutOfRange` if more is to be kept than is on disk or committed, `ProtocolViolation` if the low-water mark would fall."""
    if mark.session == session or kept <= mark.local_low_water_mark:
        return mark  # the replica is clean by now, or a newer call was faster
    if kept > min(last, low_water_mark):
        raise OutOfRange(partition=partition, asked=kept, first=mark.local_low_water_mark, last=min(last, low_water_mark))
    if low_water_mark < mark.low_water_mark:
        raise ProtocolViolation(reason=f"low-water mark decreases partition={partition} from={mark.low_water_mark} to={low_water_mark}")
    return SessionMark(mark.session, low_water_mark, kept)
