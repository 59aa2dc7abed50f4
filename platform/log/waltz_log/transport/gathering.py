"""Calls that every worker of a node answers in part: how the parts become the node's one answer. Statistics are merged by `waltz_log.statistics`.

A worker that does not answer is left out: its partitions are missing in the answer, as those of a node that is down are, and `workers` of the
statistics says so. One that refuses speaks for all: what it says is the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from waltz_log.core.ports import Handler, Method, Service
from waltz_log.core.status.server_statistics import ServerStatistics
from waltz_log.core.status.storage_statistics import NodeStatistics
from waltz_log.core.status.worker_statistics import WorkerStatistics
from waltz_log.statistics import from_json, merge, to_json
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["GATHERED", "Gather", "describing"]


class Gather(NamedTuple):
    """`together`: from the answers in the order of the workers, None where there is none, to one answer. `partitions`: of which a request wants to
    know; nobody but their owners is asked then, so that a worker that stands still holds up nobody who asks of others. Empty: of all."""

    together: Callable[[Sequence[Any | None]], Any]
    partitions: Callable[[Any], Sequence[int]] = lambda request: ()


def describing(service: Service, describe: Callable[[], WorkerStatistics]) -> Service:
    """The service, with what its process reports of itself among the workers of its statistics."""

    def described(handler: Handler) -> Handler:
        async def tell(request: Any) -> Any:
            answer = await handler(request)
            answer.json = json.dumps(json.loads(answer.json) | {"workers": [to_json(describe())]})
            return answer

        return tell

    return {method: described(handler) if method in _STATISTICS else handler for method, handler in service.items()}


def _bounds(answers: Sequence[Any | None]) -> Any:
    found = [bound for answer in answers if answer is not None for bound in answer.bounds]
    return pb.BoundResponse(bounds=sorted(found, key=lambda bound: int(bound.partition)))


def _statistics(kind: type[ServerStatistics] | type[NodeStatistics], answers: Sequence[Any | None]) -> str:
    """Of workers of one version. At least the one that was asked answers."""
    found = merge(from_json(kind, json.loads(answer.json), unknown="refuse") for answer in answers if answer is not None)
    silent = [WorkerStatistics(number, answers=False) for number, answer in enumerate(answers) if answer is None]
    return json.dumps(to_json(replace(found, workers=tuple(sorted([*found.workers, *silent], key=lambda each: each.worker)))))


GATHERED: Mapping[Method, Gather] = {
    methods.BOUND: Gather(_bounds, lambda request: request.partitions),
    methods.SERVER_STATUS: Gather(lambda answers: pb.ServerStatusResponse(json=_statistics(ServerStatistics, answers))),
    methods.STORAGE_STATUS: Gather(lambda answers: pb.StorageStatusResponse(json=_statistics(NodeStatistics, answers))),
}

_STATISTICS = (methods.SERVER_STATUS, methods.STORAGE_STATUS)
