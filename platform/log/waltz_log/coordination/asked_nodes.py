"""What each node of a cluster reports of the values that it follows: asked for before a change of the rules is called done, and for a repair.

The coordinator names the nodes. An entry that cannot be read is a finding, not an error, because a repair has to work then.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, Final  # Any: an answer of either kind of node, which holds JSON

from waltz_log.coordination.followed import SERVER_ENTRIES, STORAGE_ENTRIES, KnownValues
from waltz_log.core import metadata as paths
from waltz_log.core.ports import CallMethod, Coordinator, Network, Request, Values
from waltz_log.core.status.server_statistics import ServerStatistics
from waltz_log.core.status.storage_statistics import NodeStatistics
from waltz_log.errors import WaltzError
from waltz_log.security.rules import AccessRules
from waltz_log.statistics import from_json
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["NodeAnswer", "ask_nodes", "newest_revision", "wait_enforced"]

CALL_TIMEOUT_S: Final = 2.0
POLL_S: Final = 0.1


@dataclass(frozen=True)
class NodeAnswer:
    """`failed`: why there is no answer, None for one. `rules`: the labels of the rules that its processes enforce (`AccessControl.label`); empty for
    a node without TLS. `known`: by path, values of the coordinator that it knows, if they were asked for. `refused`: by path, why it does not use the
    value that the coordinator has. `cluster_key`: of its cluster."""

    failed: str | None = None
    rules: tuple[str, ...] = ()
    known: Mapping[str, str] | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    cluster_key: str | None = None

    def lacks(self, rules: AccessRules) -> str | None:
        """Why the node does not enforce these rules, or something may not; None if it does, or enforces no rules at all."""
        if self.failed is not None:
            return self.failed
        other = sorted({each for each in self.rules if each != rules.label})
        return None if not other else f"enforces {', '.join(_described(each) for each in other)}"


def _described(label: str) -> str:
    return {"closed": "that nothing is permitted", "none": "no rules"}.get(label, f"revision {label.partition('-')[0]}")


async def ask_nodes(coordinator: Values, network: Network, *, known_values: bool = False, except_for: str = "") -> dict[str, NodeAnswer]:
    """By name: `server ID`, or the name of the storage node. `except_for`: a storage node to leave out. Raises `PermissionDenied` if this process may
    not ask."""
    questions = {}
    for name in await coordinator.children(paths.SERVERS, latest=True):
        server = KnownValues().accept(SERVER_ENTRIES, await coordinator.get(f"{paths.SERVERS}/{name}"), name)
        questions[f"server {int(name)}" if name.isdecimal() else name] = None if server is None else partial(_server, network, server.address)
    for name in await coordinator.children(paths.STORAGE_NODES, latest=True):
        storage = KnownValues().accept(STORAGE_ENTRIES, await coordinator.get(f"{paths.STORAGE_NODES}/{name}"), name)
        if name != except_for:
            questions[name] = None if storage is None else partial(_storage, network, storage.address)
    answers = await asyncio.gather(*(_unread() if ask is None else ask(known_values) for ask in questions.values()))
    return dict(zip(questions, answers, strict=True))


async def _unread() -> NodeAnswer:
    return NodeAnswer("its entry in the coordinator cannot be read")


async def _server(network: Network, address: str, known_values: bool) -> NodeAnswer:
    return await _asked(network, address, methods.SERVER_STATUS, pb.ServerStatusRequest(known_values=known_values), ServerStatistics)


async def _storage(network: Network, address: str, known_values: bool) -> NodeAnswer:
    return await _asked(network, address, methods.STORAGE_STATUS, pb.StorageStatusRequest(known_values=known_values), NodeStatistics)


async def _asked(
    network: Network, address: str, method: CallMethod[Request, Any], request: Request, statistics: type[ServerStatistics] | type[NodeStatistics]
) -> NodeAnswer:
    channel = network.connect(address)
    try:
        answer = await channel.call(method, request, timeout_s=CALL_TIMEOUT_S)
        return _answer(from_json(statistics, json.loads(answer.json), unknown="ignore", missing="empty"))
    except WaltzError as error:
        return NodeAnswer(f"does not answer: {error}")
    finally:
        await channel.close()


def _answer(found: ServerStatistics | NodeStatistics) -> NodeAnswer:
    silent = [str(each.worker) for each in found.workers if not each.answers]
    return NodeAnswer(
        f"does not answer for worker {', '.join(silent)}" if silent else None,
        found.rules,
        found.known_values,
        found.refused_values or {},
        found.cluster_key,
    )


def newest_revision(answers: Mapping[str, NodeAnswer]) -> tuple[int, str]:
    """The newest revision of the rules that nodes enforce, with a node that does; -1: none enforces any."""
    found = [(int(label.partition("-")[0]), name) for name, each in answers.items() for label in each.rules if label[:1].isdigit()]
    return max(found, default=(-1, ""))


async def wait_enforced(coordinator: Coordinator, network: Network, rules: AccessRules, timeout_s: float) -> dict[str, str]:
    """By name, the nodes that do not enforce the rules at the end of the timeout, and why. Empty as soon as all do."""
    deadline = monotonic() + timeout_s
    while True:
        answers = await ask_nodes(coordinator, network)
        lacking = {name: why for name, each in answers.items() if (why := each.lacks(rules)) is not None}
        if not lacking or monotonic() >= deadline:
            return lacking
        await asyncio.sleep(POLL_S)
