"""What the other nodes of a cluster know, which a node that starts asks for before it decides who may do what.

The coordinator alone proves nothing to a process that knows nothing: it may have been put back to before the first rule, or to before a revocation.
Storage nodes keep the values that decide access on their disks, and log servers keep them while they live. The newest of each value is used, so
that a node that starts refuses what a running one refuses. Until a majority of the storage nodes has answered, a node without a memory of its own
decides nothing: applications and readers get `Unavailable`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from waltz_log.coordination.asked_nodes import ask_nodes
from waltz_log.coordination.followed import ASSIGNMENT, PARAMETERS, REPLICA_ASSIGNMENT, RULES, TOPICS, KnownValues
from waltz_log.core.metadata import STORAGE_NODES
from waltz_log.core.ports import Network, Values
from waltz_log.loggers import get_logger

__all__ = ["ASK_AGAIN_PAUSE_S", "OtherNodes"]

log = get_logger(__name__)

ASK_AGAIN_PAUSE_S: Final = 1.0
"""Between two rounds of questions, while fewer than a majority have answered."""

LEARNED: Final = (RULES, TOPICS, ASSIGNMENT, PARAMETERS, REPLICA_ASSIGNMENT)
"""Entries of folders are not among them, because an entry may be removed in order, and would come back from a node that missed it."""


class OtherNodes:
    """The other nodes of one process. `known`: what the process knows, to which `ask` adds. Answers of nodes of another cluster are ignored.
    `storage`: the name of the storage node that asks, which has answered itself; empty: a log server asks. `learned`: awaited after each round."""

    def __init__(self, network: Network, known: KnownValues, *, storage: str = "", learned: Callable[[], Awaitable[None]] | None = None) -> None:
        self._network = network
        self._known = known
        self._storage = storage
        self._learned = learned
        self._reported = -1
        self.answered = False
        """Whether a majority of the storage nodes has said what it knows."""

    async def ask(self, coordinator: Values) -> None:
        """Asks each node that the coordinator names, once. Raises the errors of the coordinator, and `Unavailable` if it does not say which cluster
        this is."""
        cluster = self._known.expect(PARAMETERS, await self._known.get(coordinator, PARAMETERS, latest=True))
        answers = await ask_nodes(coordinator, self._network, known_values=True, except_for=self._storage)
        valid = {name: each for name, each in answers.items() if each.failed is None and each.cluster_key == str(cluster.key)}
        for answer in valid.values():
            for kind in LEARNED:
                if answer.known is not None and kind.path in answer.known:
                    self._known.learn(kind, answer.known[kind.path].encode())
        for kind in (RULES, TOPICS):
            if any(kind.path in answer.refused for answer in valid.values()):
                self._known.expect_later(kind)
        storages = {*await coordinator.children(STORAGE_NODES, latest=True), self._storage} - {""}
        answered = len(storages & {*valid, self._storage})
        self.answered = answered > len(storages) // 2
        if not self.answered and answered != self._reported:
            log.warning("too few storage nodes say which rules they know", answered=answered, storage_nodes=len(storages))
            self._reported = answered
        if self._learned is not None:
            await self._learned()
