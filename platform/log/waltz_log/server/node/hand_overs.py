"""The cluster manager's part in handing partitions over to servers that reach a majority of their replicas: reads what servers publish
(`server.node.reachability`), keeps the times that the rules (`core.hand_over`) ask for, and applies them to an assignment.

A manager that comes into office knows no times and waits the whole pauses once more, so that a change of manager never makes anything move sooner.
"""

from __future__ import annotations

import asyncio

from waltz_log.coordination.entries import read_entry
from waltz_log.coordination.followed import REPLICA_ASSIGNMENT, KnownValues
from waltz_log.core import metadata as paths
from waltz_log.core.hand_over import Reach, hand_over, majority_of, merge_reach, parse_reach, pause_s, readmit
from waltz_log.core.metadata import Assignment
from waltz_log.core.ports import Coordinator
from waltz_log.loggers import get_logger
from waltz_log.server.node.reachability import ROUNDS, read_stranded

__all__ = ["HandOvers"]

log = get_logger(__name__)


class HandOvers:
    def __init__(self, coordinator: Coordinator, after_s: float, known: KnownValues) -> None:
        self._known = known
        self._coordinator = coordinator
        self._after_s = after_s
        self._busy = False
        self._moved_s: dict[int, float] = {}
        """By partition, when it was handed over last."""
        self._steady_since_s: dict[tuple[int, int], float] = {}
        self._calm_since_s: dict[int, float] = {}

    async def wait_round(self) -> None:
        """Until there may be something to decide: the first report of a stranded partition, or, while there is one or the assignment remembers one,
        a round."""
        if self._busy:
            await asyncio.sleep(min(1.0, self._after_s / ROUNDS))
        else:
            await self._coordinator.wait_children(paths.STRANDED, [])

    async def apply(self, assignment: Assignment) -> Assignment:
        """The assignment with the hand-overs that are due, and without those that have ended."""
        names = await self._coordinator.children(paths.STRANDED)
        stranded = await read_stranded(self._coordinator, names)
        self._busy = bool(names or assignment.handed_over)  # a report that cannot be read must not end each wait at once
        if not self._busy:
            return assignment
        reach = await self._reach()
        await self._keep_time(assignment, reach)
        now_s = asyncio.get_running_loop().time()
        steady_s = {key: now_s - since for key, since in self._steady_since_s.items()}
        calm_s = {partition: now_s - since for partition, since in self._calm_since_s.items()}
        assignment = readmit(assignment, steady_s, calm_s, self._after_s)
        resting = [
            partition
            for partition, each in assignment.handed_over.items()
            if now_s - self._moved_s.setdefault(partition, now_s) < pause_s(each.moves, self._after_s)
        ]
        return hand_over(assignment, stranded, reach, resting)

    def note(self, before: Assignment, after: Assignment) -> None:
        """The assignment was written."""
        now_s = asyncio.get_running_loop().time()
        for partition, each in after.handed_over.items():
            known = before.handed_over.get(partition)
            if known is None or known.moves < each.moves:
                self._moved_s[partition] = now_s
                log.warning(
                    "partition handed over to a server that reaches a majority of its replicas",
                    partition=partition,
                    server=after.partitions[partition].server_id,
                    avoids=each.avoids,
                    moves=each.moves,
                )

    async def _reach(self) -> Reach:
        found = []
        for name in await self._coordinator.children(paths.REACH):
            reported = await read_entry(self._coordinator, f"{paths.REACH}/{name}", parse_reach)
            if reported is not None:
                found.append(reported)
        return merge_reach(found)

    async def _keep_time(self, assignment: Assignment, reach: Reach) -> None:
        """Since when avoided servers have reached a majority, and since when no server has been avoided for a partition."""
        now_s = asyncio.get_running_loop().time()
        steady: dict[tuple[int, int], float] = {}
        calm: dict[int, float] = {}
        if assignment.handed_over:
            found = self._known.accept(REPLICA_ASSIGNMENT, await self._known.get(self._coordinator, REPLICA_ASSIGNMENT), expected=True)
            replicas = {} if found is None else found.replicas
            for partition, each in assignment.handed_over.items():
                for server in each.avoids:
                    if majority_of(reach.get(server, {}).get(partition, ()), replicas.get(partition, ())):
                        steady[partition, server] = self._steady_since_s.get((partition, server), now_s)
                if not each.avoids:
                    calm[partition] = self._calm_since_s.get(partition, now_s)
        self._steady_since_s, self._calm_since_s = steady, calm
        self._moved_s = {partition: when for partition, when in self._moved_s.items() if partition in assignment.handed_over}
