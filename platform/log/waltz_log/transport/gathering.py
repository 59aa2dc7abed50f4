"""Calls that every worker of a node answers in part: merges the parts into the node's answer. `waltz_log.statistics` merges statistics.

A worker that does not answer is left out of statistics, whose `workers` show it. Bounds without those of a worker would say that the node does not
own its partitions, so the call fails. If a worker refuses the call, its error is the node's answer.

`Any` stands for the messages of whichever method is called; `_gather` checks that a method and its functions fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple  # Any: messages of any method

from waltz_log.core.ports import AnyMethod, CallMethod, Handler, Request, Response, Served, Service
from waltz_log.core.status.server_statistics import ServerStatistics
from waltz_log.core.status.storage_statistics import NodeStatistics
from waltz_log.core.status.worker_statistics import WorkerStatistics
from waltz_log.statistics import from_json, merge, to_json
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["GATHERED", "Gather", "describing"]


class Gather(NamedTuple, Generic[Request, Response]):
    """`together`: merges the answers in the order of the workers, None for a missing one. `partitions`: the partitions that a request names. Only
    their owners are asked then, so that a worker that hangs does not delay requests for other partitions. Empty: all workers are asked. `needs_all`:
    an answer without the part of a worker that was asked would be wrong. `waits`: whether a worker may answer as late as the caller permits."""

    together: Callable[[Sequence[Response | None]], Response]
    partitions: Callable[[Request], Sequence[int]]
    needs_all: bool = False
    waits: Callable[[Request], bool] = lambda request: False


def describing(service: Service, describe: Callable[[], WorkerStatistics]) -> Service:
    """The service, with what its process reports of itself among the workers of its statistics."""

    def described(handler: Handler) -> Handler:
        async def with_worker(request: Any) -> Any:
            answer = await handler(request)
            answer.json = json.dumps(json.loads(answer.json) | {"workers": [to_json(describe())]})
            return answer

        return with_worker

    return [Served(each.method, described(each.handler)) if each.method in _STATISTICS else each for each in service]


def _bounds(answers: Sequence[pb.BoundResponse | None]) -> pb.BoundResponse:
    found = [bound for answer in answers if answer is not None for bound in answer.bounds]
    return pb.BoundResponse(bounds=sorted(found, key=lambda bound: bound.partition))


def _statistics(
    kind: type[ServerStatistics] | type[NodeStatistics], answers: Sequence[pb.ServerStatusResponse | pb.StorageStatusResponse | None]
) -> str:
    """The statistics of workers of one version. At least the one that was asked answers."""
    found = merge(from_json(kind, json.loads(answer.json), unknown="refuse") for answer in answers if answer is not None)
    silent = [WorkerStatistics(number, answers=False) for number, answer in enumerate(answers) if answer is None]
    return json.dumps(to_json(replace(found, workers=tuple(sorted([*found.workers, *silent], key=lambda each: each.worker)))))


def _server_status(answers: Sequence[pb.ServerStatusResponse | None]) -> pb.ServerStatusResponse:
    return pb.ServerStatusResponse(json=_statistics(ServerStatistics, answers))


def _storage_status(answers: Sequence[pb.StorageStatusResponse | None]) -> pb.StorageStatusResponse:
    return pb.StorageStatusResponse(json=_statistics(NodeStatistics, answers))


def _gather(
    method: CallMethod[Request, Response],
    together: Callable[[Sequence[Response | None]], Response],
) -> tuple[AnyMethod, Gather[Any, Any]]:
    return method, Gather(together, lambda request: ())


GATHERED: Mapping[AnyMethod, Gather[Any, Any]] = dict(
    [
        (methods.BOUND, Gather(_bounds, lambda request: request.partitions, needs_all=True, waits=lambda request: bool(request.closed_in))),
        _gather(methods.SERVER_STATUS, _server_status),
        _gather(methods.STORAGE_STATUS, _storage_status),
    ]
)

_STATISTICS = (methods.SERVER_STATUS, methods.STORAGE_STATUS)
