"""The state of a replica that a session receives when it opens the partition. The statistics of a node are in `core.status.storage_statistics`."""

from __future__ import annotations

from dataclasses import dataclass

from waltz_log.core.formats.control_format import SessionMark

__all__ = ["ReplicaState"]


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """The state that a session receives when it opens the partition. `may_lack`: this replica may have acknowledged from memory more than it holds.
    `grew_as_member`: its log grew in the session in which it is clean."""

    mark: SessionMark
    first_id: int
    last_id: int
    may_lack: bool = False
    grew_as_member: bool = False
