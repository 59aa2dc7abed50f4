"""Runs moves of replicas for `waltz drain` and `waltz rebalance`: several at once, each recorded in the coordinator while it is in progress.

A command that is killed leaves its records. The next one that moves replicas first completes what was begun, then plans the rest again. A move whose
target has gone since is cancelled: a replica that was never filled holds nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from waltz_log.cli.cluster.replicas import change_replicas
from waltz_log.coordination.entries import parsed
from waltz_log.coordination.placement import read_moves, record_moves
from waltz_log.coordination.survey import Survey, survey
from waltz_log.core.metadata import REPLICAS, ReplicaAssignment, ReplicaMove
from waltz_log.core.ports import Coordinator, Network
from waltz_log.core.replica_change import ReplicaChange
from waltz_log.errors import InvalidRequest, WaltzError

__all__ = ["MoveRunner", "able_nodes", "read_replicas"]


async def read_replicas(coordinator: Coordinator) -> dict[int, tuple[str, ...]]:
    """Raises `InvalidRequest` if there is no cluster."""
    node = await coordinator.get(REPLICAS, latest=True)
    if node is None:
        raise InvalidRequest(reason="there is no cluster at this address: create one first")
    return parsed(REPLICAS, node, ReplicaAssignment.from_bytes).replicas


def able_nodes(found: Survey) -> list[str]:
    """Storage nodes that may get replicas now: they answer, with all their workers, and are not drained."""
    return [node.name for node in found.storages if node.answers and not node.silent and node.name not in found.drained]


@dataclass
class MoveRunner:
    """`report` gets a line for each step. `failed`: why partitions were not moved; nothing was lost there, and the command can be repeated."""

    coordinator: Coordinator
    network: Network
    address: str
    at_once: int
    wait_s: float
    report: Callable[[str], None]
    done: int = 0
    failed: dict[int, WaltzError] = field(default_factory=dict)

    async def resume(self, found: Survey) -> None:
        """Completes what earlier commands began."""
        begun = await read_moves(self.coordinator)
        if not begun:
            return
        self.report(f"going on with {len(begun)} moves that an earlier command began")
        replicas, able = await read_replicas(self.coordinator), {node.name for node in found.storages if node.answers}
        possible = []
        for move in begun.values():
            held = replicas.get(move.partition, ())
            if move.remove in held and move.add not in able:
                await self._cancel(move, held)
            elif move.remove in held:
                possible.append(move)
            else:
                await record_moves(self.coordinator, ended=[move.partition])
        await self.run(possible)

    async def _cancel(self, move: ReplicaMove, held: tuple[str, ...]) -> None:
        self.report(f"partition {move.partition}: {move.add} does not answer any more, the move to it is cancelled")
        try:
            if move.add in held:
                await self._change(ReplicaChange(move.partition, None, move.add))
            await record_moves(self.coordinator, ended=[move.partition])
        except WaltzError as error:
            self._note(move.partition, error)

    async def run(self, moves: Iterable[ReplicaMove]) -> None:
        """Returns when each move is complete or has failed."""
        waiting = deque(moves)
        whole = len(waiting)
        before = self.done

        async def work() -> None:
            while waiting:
                move = waiting.popleft()
                try:
                    await record_moves(self.coordinator, begun=[move])
                    await self._change(ReplicaChange(move.partition, move.add, move.remove))
                    await record_moves(self.coordinator, ended=[move.partition])
                except WaltzError as error:
                    self._note(move.partition, error)
                    continue
                self.done += 1
                self.report(f"{self.done - before} of {whole} partitions moved")

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self.at_once, whole)):
                group.create_task(work())

    async def _change(self, change: ReplicaChange) -> None:
        await change_replicas(self.coordinator, self.network, self.address, change, wait_s=self.wait_s, report=self.report)

    def _note(self, partition: int, error: WaltzError) -> None:
        self.failed[partition] = error
        self.report(f"partition {partition} is not moved: {error}")

    async def survey(self) -> Survey:
        return await survey(self.coordinator, self.network, self.address)
