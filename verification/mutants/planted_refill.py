"""Bugs to plant in what a replica keeps of a fill that outlasts its session (as in `planted.py`)."""

from __future__ import annotations

from typing import Any

from verification.mutants.planting import bug, change
from waltz_log.core.formats.control_format import SessionMark
from waltz_log.server.replication.replica_session import ReplicaSession
from waltz_log.storage.replica.session_marks import SessionMarks

__all__: list[str] = []


@bug
def progress_forgotten() -> None:
    """A fill begins at its beginning in every session."""

    async def keep_nothing(_: ReplicaSession, _reached: int) -> None:
        return

    change(ReplicaSession, "_keep_progress", keep_nothing)


@bug
def too_much_kept() -> None:
    """A replica keeps all that it holds when a newer session comes, also what was never decided."""

    async def keep_all(self: SessionMarks, last: int) -> None:
        await original(self, last)
        mark = self.mark
        if last > mark.local_low_water_mark:
            await self.put_progress(SessionMark(mark.session, max(mark.low_water_mark, last), last))

    original: Any = change(SessionMarks, "end_fill", keep_all)
