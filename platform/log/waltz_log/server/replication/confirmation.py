"""Confirms that a store session is still the newest: a majority of its replicas has seen no newer one.

An owner that was replaced and does not know it cannot get this confirmation, because every newer session has fenced a majority.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from waltz_log.background_tasks import end_tasks, start_task
from waltz_log.core.recovery import majority
from waltz_log.errors import Fenced, WaltzError
from waltz_log.server.replication.fence_evidence import FenceEvidence
from waltz_log.server.replication.replica_session import ReplicaSession

__all__ = ["ConfirmedSession", "confirmed_by_majority"]


class ConfirmedSession(Protocol):
    """The store session to confirm."""

    assigned: tuple[str, ...]
    failed: WaltzError | None
    evidence: FenceEvidence


async def confirmed_by_majority(session: ConfirmedSession, replicas: Iterable[ReplicaSession]) -> bool:
    """Asks each replica once. Returns whether a majority of the assigned ones confirmed, as soon as that many have answered: a replica that does not
    answer must not delay the others. Raises the error that ended the session."""
    asked = [start_task(_confirms(session, replica)) for replica in replicas]
    confirmed = 0
    try:
        for answer in asyncio.as_completed(asked):
            confirmed += await answer
            if session.failed is not None:
                raise session.failed
            if confirmed >= majority(len(session.assigned)):
                return True
        return False
    finally:
        await end_tasks(asked)


async def _confirms(session: ConfirmedSession, replica: ReplicaSession) -> bool:
    try:
        await replica.probe()
    except Fenced as error:
        await session.evidence.judge(replica.name, error)
        return False
    except WaltzError:
        return False
    return True
